"""Bad calls of the Python API: each ends in an InputError of one line, never in anything else."""

import copy
import inspect
import re
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from backends.zoo import ShiftPositions
from corpora import packed
from refusals import refused
from sinkinterp._experiments.book.chapter import chapters_in
from sinkinterp._experiments.book.story import write_front_pages
from transformers import LlamaConfig, LlamaForCausalLM

import sinkinterp as si
import sinkinterp.applications
import sinkinterp.measurement
import sinkinterp.report
from sinkinterp import interventions as edit
from sinkinterp.applications import dormant, eviction, quantising
from sinkinterp.applications.outliers import norm_limit
from sinkinterp.applications.position_swap import swap_table
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.sites import CALL, RESIDUAL
from sinkinterp.backends import encoder as encoder_input
from sinkinterp.checks import InputError
from sinkinterp.data import tokens as token_sets
from sinkinterp.data.texts import source_of as texts_of, text_of_file
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import selectors
from sinkinterp.interventions.attention_layers import PatchNormalization
from sinkinterp.interventions.changes import Operation
from sinkinterp.lm.model import LMSpec, SinkConfig
from sinkinterp.measurement import patching
from sinkinterp.measurement.explaining import cut_maps, massive_path
from sinkinterp.measurement.lens import logit_parts
from sinkinterp.measurement.maps import head_maps
from sinkinterp.measurement.path_patching import path_patching
from sinkinterp.metrics import estimates, instruments
from sinkinterp.metrics.metric import LogitsMetric, Metric
from sinkinterp.pages.live import serve_live
from sinkinterp.report import heads
from sinkinterp.runs.inputs import Inputs
from sinkinterp.spec import Spec
from sinkinterp.table import Table
from sinkinterp.train.loop import held_out_tokens

SUBJECT, TOKENS = "sinkinterp/demo-softmax", torch.arange(24).reshape(2, 12)
NAN, INF, HUGE = float("nan"), float("inf"), 10**30


def outcome(call):
    """The error of a call. Anything but a refusal of one line fails the test."""
    message = refused(call)
    assert message and "\n" not in message and len(message) < 600, message
    assert not re.search(r"(?<!\S)--[a-z]", message), message  # options are for the command line
    return message


def changed(report, **fields):
    return si.Report.from_dict(report.to_dict() | fields)


def with_tensor(report, name, change):
    """The report that is read back after a change of one of its tensors."""
    plain = report.to_dict()
    return si.Report.from_dict(plain | {"tensors": plain["tensors"] | {name: change(plain["tensors"][name])}})


def model_with(change):
    """A small model, loaded after a change of it."""
    model = copy.deepcopy(si.load("sinkinterp/demo-softmax").model)
    return change(model) or model


def with_theta(theta):
    rope = {"rope_type": "default", "rope_theta": theta}
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, rope_parameters=rope, **sizes))


def run_patched(subject, *inputs):
    with si.patched(subject.model, si.SwapPositions(0, 1)):
        subject.model(*inputs)


X = torch.arange(48.0).reshape(2, 3, 8).cos()
DOORS = {  # the arguments of a right call of each public function, of a subject and its report
    si.load: lambda s, r: {"source": SUBJECT},
    si.compare: lambda s, r: {"before": r, "after": r},
    si.view: lambda s, r: {"model": s, "text": TOKENS[:1], "open_browser": False},
    si.sweep: lambda s, r: {"model": s, "tokens": TOKENS, "edits": [si.SwapPositions(0, 1)]},
    si.sink_rate: lambda s, r: {"model": r},
    si.reproduce: lambda s, r: {"name": "propositions", "scale": "smoke"},
    si.place_or_token: lambda s, r: {"model": s, "tokens": TOKENS, "positions": (5,)},
    si.twin_patching: lambda s, r: {"source": s, "target": s, "tokens": TOKENS},
    si.trained: lambda s, r: {"recipe": si.Recipe()},
    si.AttentionOf: lambda s, r: {"module": "x", "computes": print},
    si.ModuleParts: lambda s, r: {"blocks": "x"},
    eviction.first_token_losses: lambda s, r: {"subject": s, "tokens": TOKENS, "windows": (4,)},
    eviction.streaming_table: lambda s, r: {"subject": s, "tokens": TOKENS, "window": 4, "sinks": (0, 1)},
    swap_table: lambda s, r: {"subject": s, "token_sets": {"a": TOKENS}, "targets": [4]},
    quantising.fake_quantised: lambda s, r: {"x": X, "bits": 4, "over": (-1,)},
    estimates.estimate: lambda s, r: {"values": torch.zeros(3)},
    token_sets.random_tokens: lambda s, r: {"vocab": 64, "length": 5, "sequences": 2},
    held_out_tokens: lambda s, r: {"task": si.Recipe().data, "sequences": 2},
    Table: lambda s, r: {"title": "", "note": ""},
    heads.top_heads: lambda s, r: {"table": r.heads()},
    serve_live: lambda s, r: {"model": s},
    **dict.fromkeys(
        (
            *(si.measure, si.mask, si.explain, dormant.dormant_heads, si.loss, si.massive_activations),
            *(si.key_norms, si.value_norms, si.residual_norms, si.qk_angles, si.qk_cosines),
            *(si.attention_weights, si.hidden_states),
        ),
        lambda s, r: {"model": s, "tokens": TOKENS},
    ),
    **dict.fromkeys((si.attention_map, si.sinks), lambda s, r: {"model": s, "text": TOKENS}),
    **dict.fromkeys(
        (si.activation_patching, path_patching), lambda s, r: {"model": s, "clean": TOKENS, "corrupted": TOKENS + 1}
    ),
    **dict.fromkeys((massive_path, quantising.cache_table), lambda s, r: {"subject": s, "tokens": TOKENS}),
    head_maps: lambda s, r: {"model": s, "tokens": TOKENS},
    cut_maps: lambda s, r: {"model": s, "tokens": TOKENS, "answer": None},
    logit_parts: lambda s, r: {"subject": s, "tokens": TOKENS, "right": TOKENS[:, 0], "wrong": TOKENS[:, 1]},
    eviction.heads_table: lambda s, r: {"subject": s, "tokens": TOKENS, "window": 4},
    **dict.fromkeys(
        attrgetter("sink_rate", "alpha", "null_sink_rate", "heads", "summary", "plot", "extra", "save")(si.Report),
        lambda s, r: {"self": r},
    ),
    **dict.fromkeys((si.Report.load, si.Report.from_dict, chapters_in, si.without_adapter), lambda s, r: {}),
}
RIGHT = {  # arguments by a name of NONSENSE that mean something else: parts of modules, places counted from the end
    si.ModuleParts: ("positions",),
    si.sinks: ("text",),
    logit_parts: ("position",),
    si.reproduce: ("name", "model"),
}
NO_COUNTS, NO_PLACES = (0, -1, "3", 1.5, NAN), (0.5, True, 99, "0", NAN)
NO_SEQUENCES = (
    "text", 5, TOKENS[:0], TOKENS[:, :1], TOKENS / 2, pd.DataFrame(TOKENS.numpy()),
    np.ma.masked_array(TOKENS.numpy(), TOKENS.numpy() > 5), {"input_ids": TOKENS, "inputs_embeds": TOKENS},
    torch.nested.nested_tensor([TOKENS[0], TOKENS[1, :5]], layout=torch.jagged),
)  # fmt: skip
NO_TOKENS = (
    *NO_SEQUENCES, 0.5, "", len, ["one", "two"], [[[1, 2], [3, 4]]], torch.tensor(5), [[1, 2**64]], [[1] * 17],
    torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 5, dtype=torch.complex64), torch.ones(2, 2, 5, dtype=torch.long),
    torch.ones(2, 5, dtype=torch.long, device="meta"), torch.eye(5, dtype=torch.long).to_sparse(), np.ones((2, 5)),
    np.zeros(3, dtype=[("a", int)]), np.array(["2024-01-01"], dtype="datetime64[D]"), {"input_ids": ["a", "b"]},
    b"ab", {1, 2}, [True, False], ["ab", 3], [[1, 2], "ab"],
    torch.zeros(1, 1, dtype=torch.long).expand(1, 10**10), {"input_ids": [[1, 2, 3]], "position_ids": [[2, 1, 0]]},
    *({"input_ids": [[1, 2]], "token_type_ids": given} for given in ([[0, 1]], [[0]], "ab")),
)  # fmt: skip
OUTSIDE = ([[1, 64]], [[1, -1]], np.array([[1, 2**63]], dtype=np.uint64))  # the vocabulary
NO_MODELS = (None, 5, [], TOKENS, torch.nn.Linear)
NO_REPORTS = (None, 5, "report", [], {}, {"a": 5}, TOKENS)
NO_ACTIVATIONS = (None, 5, [1.0], np.zeros((2, 3, 8)), X * 1j, X > 0, torch.tensor(1.0), X.to("meta"))
NO_HEADS = (5, "0.0.0", [(0, 0, 0)], ["a"], [1.0], [None], [(0, 1), (0, 1)], (9, 0))
WRONG_CALLS = (  # what an edit makes of a call, which attention would not refuse
    lambda: 1,
    lambda call: call.with_pattern("x"),
    lambda call: replace(call, mask=call.q.new_zeros(12, 12)),
    *(partial(replace, scale=scale) for scale in ("big", NAN)),
    partial(replace, softcap="big"),
    *(lambda call, n=n, x=x: replace(call, **{n: getattr(call, n) * x}) for n, x in product("qkv", (NAN, INF))),
)
NONSENSE = {  # what an argument of this name must not be, whichever function takes it
    **dict.fromkeys(("model", "subject"), NO_MODELS),
    **dict.fromkeys(("head", "heads"), NO_HEADS),
    **dict.fromkeys(("most", "top", "vocab", "seeds"), NO_COUNTS),
    **dict.fromkeys(("attention", "cache", "folder", "on_data", "module", "computes"), (5,)),
    "task": (None,),
    **dict.fromkeys(("tokens", "text", "clean", "corrupted"), (*NO_TOKENS, *OUTSIDE)),
    **dict.fromkeys(("before", "after"), NO_REPORTS),
    **dict.fromkeys(("x", "values"), NO_ACTIVATIONS),
    "source": (None, 3, "", ["gpt2"], torch.nn.Linear, "./nowhere", "./no\nwhere", "no\0where", "x" * 5000, b"gpt2"),
    "backend": ("", "jax", ["huggingface"]),
    "dtype": ("float7", torch.int64, 32),
    "device_map": ("cuda:99", 3.5, ["cpu"], *({"": to} for to in ("cuda:99", 99, torch.device("cuda", 98), [1]))),
    "tokenizer": (3, "nope", __file__),
    "encoder": ("silence", "off"),
    "name": (3,),
    "parts": (5, "blocks"),
    "edits": ([3], [si.SwapPositions], "swap", edit.Zero(), ShiftPositions(100), *WRONG_CALLS),
    "instruments": ("LOS", [3], [instruments.LOSS, (replace(instruments.LOSS[0], read=len),)]),
    "convention": ("paper",),
    "progress": ("yes", lambda: None),
    "epsilon": (NAN, 1, 5, -0.3, "0.3"),
    "position": NO_PLACES,
    "positions": ((0.5,), (True,), "0", [NAN], [HUGE], 0.5, [3, 3]),
    "layers": (0.5, "every", [0.5], [NAN], [1, 1], [9]),
    "seed": ("a", 0.5, None, 2**70),
    "frozen": (5, "a"),
    "metric": (5, instruments.LOSS[0], lambda: 0.5, lambda report: 0.5, lambda report, other: 0),
    "control": ("shuffled", 0.5, True, 0, 10**9),
    "times": ("a", NAN, 0.5, 1.0),
    "window": (0, 99, "6"),
    "windows": ((), "44", None, (4.5,), 4.5, (0,)),
    "kept": ((), "01", None, (0.5,), (-1,)),
    "sinks": ((),),
    "tolerance": ("a", NAN, None, 0.0, -1.0),
    "budget": ("a", NAN),
    "bits": (1, 0, -1, 4.5, 1000, "4", None, (), (1,), (33,)),
    "over": ((), (9,), (0.5,)),
    "length": (*NO_COUNTS, 10**9),
    "sequences": (*NO_COUNTS, 10**11),
    "site": (3, "residdd"),
    "by": (5, (), [["layer"]], "nothing", ("layer", "layer")),
    "receiver": (edit.ChangeKeys(kv_heads=[(0, 0)]),),
    "recipe": (None, "sofmax"),
    "device": (5, "cuda:99"),
    "on_step": (5, [], "print", lambda: None, lambda step: None),
    "view": (None, ["norms"], "attention"),
    "path": ("", 3, "."),
    "plain": ([], {}),
    "token_sets": ({}, [], {"a": 5}),
    "targets": ([],),
    "port": ("a", -1, 2**16),
    "scale": ("tiny", 3),
}


def called(function, arguments):
    bound = inspect.signature(function).bind(**arguments)
    return function(*bound.args, **bound.kwargs)


def test_every_public_function_is_a_door_and_every_name_of_nonsense_an_argument():
    names = {name for function in DOORS for name in inspect.signature(function).parameters}
    assert names >= NONSENSE.keys()
    others = {"save", "patched", "mend", "with_adapter", "texts"}  # they write, are entered, or read later
    public = {
        name
        for name in si.__all__
        if callable(getattr(si, name)) and not isinstance(getattr(si, name), type | ModuleType | dict)
    }
    assert public - others <= {function.__name__ for function in DOORS}


@pytest.mark.parametrize("function", DOORS, ids=attrgetter("__qualname__"))
def test_nonsense_for_any_argument_of_a_public_function_is_refused(function, subject, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, wrong = DOORS[function](subject, report), []
    for name in inspect.signature(function).parameters:
        for value in () if name in RIGHT.get(function, ()) else NONSENSE.get(name, ()):
            try:
                outcome(lambda name=name, value=value: called(function, good | {name: value}))
            except BaseException as error:  # of any kind
                wrong.append((name, value, error))
    assert not wrong and not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def report(subject):
    return si.measure(subject, TOKENS)


@dataclass(frozen=True)
class Nothing(edit.Edit):
    def residuals(self, block, x):
        return x * 0


NOT_CALLED_SO = (5, lambda: 1, lambda a, b, c: a)  # functions of the user that cannot be called as they will be
METRICS = {
    "a text": lambda: patching.logit_difference("a", "b"),
    "a negative token": lambda: patching.logit_difference(-1, 5),
    "a token outside": lambda: patching.logit_difference(10**9, 5),
    "answers of three pairs": lambda: patching.logit_difference([1, 2, 3], 4),
    "the loss of token 0": lambda: patching.loss_at([0]),
    "a loss outside": lambda: patching.loss_at([99]),
    "a loss at a position twice": lambda: patching.loss_at([3, 3]),
    "a divergence outside": lambda: patching.divergence_from_clean(99),
    "a layer outside": lambda: patching.first_alpha(layer=9),
    "an epsilon of 5": lambda: patching.first_alpha(epsilon=5),
}
WATCHED = {
    "a step before the first": lambda watch, s: watch.step(s.model, -1),
    "no state": lambda watch, s: watch.load_state_dict(None),
    "an empty state": lambda watch, s: watch.load_state_dict({}),
    "a history of numbers": lambda watch, s: watch.load_state_dict({"history": [5]}),
}
SOUNDS = ("Silence(-1)", "Silence(float('nan'))", "Silence('1')", "Text(' ')", "Text(5)", "TokenIds(())")
NOTHING = torch.zeros(1, 0, dtype=torch.long)
PATCHED = ((torch.tensor([[1, 64]]),), (torch.tensor([[1, -3]]),), (), ("hello",), ([1, 2],), (NOTHING,))
CALLS = {  # whose parts are right one by one, or whose argument is no argument of a function
    "a model without a head": lambda s: si.load(model_with(lambda model: setattr(model, "lm_head", None))),
    "a model that is all body": lambda s: si.load(model_with(lambda model: model.base_model)),
    "a model without memory": lambda s: si.load(model_with(lambda model: model.to("meta"))),
    "an own module on meta": lambda s: si.load(model_with(lambda model: torch.nn.Sequential(model).to("meta"))),
    "a layer of transformers": lambda s: si.load(with_theta(1e4).model.layers[0]),
    "a report of nothing": lambda s: si.Report(),
    "a cell that is a list": lambda s: Table.of("", "", ({"x": [1]},)).to_dict(),
    **{f"a rope of {theta}": lambda s, theta=theta: si.load(with_theta(theta)) for theta in (0.0, -5.0, NAN)},
    **{
        f"a module run by {f!r:.9}": lambda s, f=f: si.load(torch.nn.Embedding(5, 3), parts=si.ModuleParts(f))
        for f in NOT_CALLED_SO
    },
    **{f"patched, {given}": lambda s, given=given: run_patched(s, *given) for given in PATCHED},
    "a pass of rows of different lengths": lambda s: s.run([[1, 2, 3], [1, 2]]),
    "reads that are none": lambda s: s.run(TOKENS, reads=5),
    "a negative block": lambda s: si.mask(s, TOKENS).keep(-1),
    "no activations to keep": lambda s: si.mask(s, TOKENS).keep(1)(None),
    "a block beyond the model": lambda s: si.mask(s, TOKENS).keep(99),
    "activations of another width": lambda s: si.mask(s, TOKENS).keep(1)(torch.zeros(3, 5)),
    "a swap of a position with itself": lambda s: edit.ChangeResidual(edit.SwapWith(0, 0)),
    "a page of negative width": lambda s: si.save(si.attention_map(s, TOKENS[:1]), "x.html", width=-3),
    "a column of plain text": lambda s: si.texts(Path("x.txt"), column="a"),
    "a part of a file": lambda s: si.texts(Path("x.txt"), split="test"),
    "the label of a token outside": lambda s: s.label(99999),
    **{f"Quantise to {bits} bits": lambda s, bits=bits: quantising.Quantise(bits, (-1,), quantising.nothing)
       for bits in (1, 0, 4.5)},
    "an estimate of three axes": lambda s: estimates.estimate(X),
    **{f"a metric of {of.args[-1]} {f!r:.9}": lambda s, of=of, f=f: si.measure(s, TOKENS, instruments=[of(f)])
       for of in (partial(Metric, "own", CALL), partial(Metric, "own", RESIDUAL), partial(LogitsMetric, "own"))
       for f in NOT_CALLED_SO},
    "a metric without a name": lambda s: si.measure(s, TOKENS, instruments=(replace(instruments.LOSS[0], name=""),)),
    **{f"patching by {name}": lambda s, made=made: si.activation_patching(s, TOKENS, TOKENS + 1, metric=made())
       for name, made in METRICS.items()},
    "equal prompts": lambda s: si.activation_patching(s, TOKENS, TOKENS),
    "twins of two shapes": lambda s: si.twin_patching(s, "sinkinterp/text-softmax", TOKENS),
    "the largest two of text": lambda s: si.measure(s, TOKENS).heads().largest("alpha_1", n="2"),
    "patches without a site": lambda s: patching.patches(3, s, TOKENS),
    "one name twice": lambda s: si.compare(SUBJECT, SUBJECT, TOKENS),
    "edits of nothing": lambda s: si.sweep(s, TOKENS, [[]]),
    "an edit that overrides nothing": lambda s: si.measure(s, TOKENS, edits=Nothing()),
    "a control that cannot be drawn": lambda s: si.sweep(s, TOKENS, [edit.ChangeResidual(edit.Zero())], control=1),
    "too few others to draw": lambda s: si.sweep(s, TOKENS, [PatchNormalization(Sigmoid(), heads=[(0, 0)])], control=1),
    "a metric without end": lambda s: si.sweep(s, TOKENS, edit.RemoveColumn(), metric=lambda r: r.alpha()[:, 0, 0] / 0),
    "outliers of no activations": lambda s: norm_limit(torch.ones(0)),
    "cut maps of nothing": lambda s: cut_maps(s, TOKENS, None),
    "cut maps of another model":
        lambda s: cut_maps(si.load(s.model, name="other"), TOKENS, si.explain(s, TOKENS, head=(0, 0))),
    "a graph of half a head": lambda s: si.explain(s, TOKENS, head=(0, 0)).plot(5),
    "patterns of two batches": lambda s: si.sinks([torch.eye(4).expand(n, 1, 4, 4) for n in (2, 3)]),
    "patterns of two lengths": lambda s: si.sinks([torch.eye(n)[None, None] for n in (4, 5)]),
    **{f"watching {name}": lambda s, step=step: step(si.SinkCallback(TOKENS, every=1), s)
       for name, step in WATCHED.items()},
    "a log that is none": lambda s: si.SinkCallback(TOKENS, log=5),
    **{f"a page saved to {path!r}": lambda s, path=path: si.view(s, TOKENS[:1], open_browser=False).save(path)
       for path in (None, 5, b"page.html", "page.pdf")},
    **{f"texts of {given!r}": lambda s, given=given: list(texts_of(given)) for given in (None, 5, ["a"], b"a")},
    **{f"texts {given!r}": lambda s, given=given: si.load("sinkinterp/text-softmax").tokens(given)
       for given in (" ", "\n\t", ["", " "], {"a": 1}, "the \ud800 cat")},
    "BOS as asked for": lambda s: s.tokens("words", bos="sometimes"),
    "a token set of floats": lambda s: TokenSet(torch.rand(2, 5), "floats", ""),
    "a token set of one axis": lambda s: TokenSet(torch.arange(5), "flat", ""),
    **{f"rows of {rows}": lambda s, rows=rows: TokenSet.of_rows(rows)
       for rows in (5, [[0.5, 1.5]], [], [[]], [[1, 2], [3]])},
    **{f"inputs of {given}": lambda s, given=given: Inputs(*given) for given in ((0, 5), (5, -1), (5, 1.5), ("a", 5))},
    **{f"an encoder of {given}": lambda s, given=given: eval(given, vars(encoder_input)) for given in SOUNDS},
    **{f"a data set of {given!r:.9}": lambda s, given=given: si.texts(given) for given in (None, 5, b"a", ["a"])},
    **{f"a table from {given!r}": lambda s, given=given: Table.from_dict(given)
       for given in (None, {}, [], 5, {"title": "", "note": "", "rows": 3})},
    "a configuration of another kind": lambda s: SinkConfig({"kind": "Nothing like it"}),
    "a recipe of another kind": lambda s: si.Recipe.from_dict({"kind": "LMSpec"}),
    "a recipe that is a list": lambda s: si.Recipe.from_dict([]),
    "a configuration with another field": lambda s: SinkConfig(LMSpec().to_dict() | {"n_legs": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_parts_do_not_fit_is_refused(name, subject):
    outcome(lambda: CALLS[name](subject))


def made(kind):
    """An edit, operation or spec with its defaults, and with small numbers where it has none; None without such."""
    needed = [f for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    known = {int: [4, 1], float: [2.0, 3.0]}
    try:
        return kind(**{f.name: known[f.type].pop(0) for f in needed})
    except (KeyError, IndexError, NotImplementedError):
        return PatchNormalization(Sigmoid()) if kind is PatchNormalization else None


JUNK = {int: (0.5, "3", True, None, NAN, HUGE), float: (NAN, INF, "2", None)}  # for fields of these types
CHOICES = (0.5, "every", [0.5], [True], ["3x"], [NAN])  # for selectors
KINDS = {
    kind.__name__: good
    for kind in (*Spec.kinds.values(), *(getattr(edit, name) for name in edit.__all__))
    if is_dataclass(kind) and issubclass(kind, Spec | edit.Edit | Operation) and (good := made(kind)) is not None
}


def junk_for(field, held):
    """What a field must not take."""
    if field.name in selectors.LABELS:
        return CHOICES
    return JUNK.get(field.type) or (("nonsense", 3, type(held)) if is_dataclass(held) else ())


@pytest.mark.parametrize("name", KINDS)
def test_every_field_of_an_edit_or_a_spec_refuses_what_is_not_of_its_type(name):
    assert len(KINDS) > 90
    for field in fields(KINDS[name]):
        for value in junk_for(field, getattr(KINDS[name], field.name)):
            outcome(lambda field=field, value=value: replace(KINDS[name], **{field.name: value}))


REPORTS = {
    "an epsilon without the first token": lambda r: si.measure(SUBJECT, TOKENS, positions=[3]).plot("epsilons"),
    "a tensor of words": lambda r: with_tensor(r, "importance", lambda x: x | {"values": ["abc", *x["values"][1:]]}),
    "another number": lambda r: with_tensor(r, "importance", lambda x: x | {"values": [0.5, *x["values"][1:]]}),
    "a token of half": lambda r: with_tensor(r, "tokens", lambda x: x | {"values": [0.5, *x["values"][1:]]}),
    "another protocol": lambda r: changed(r, protocol=r.to_dict()["protocol"] | {"sequences": 5}),
    "a name that no report has": lambda r: changed(r, surplus=1),
    "a dictionary without importance": lambda r: changed(r, tensors={"tokens": r.to_dict()["tensors"]["tokens"]}),
    "tokens of floats": lambda r: with_tensor(r, "tokens", lambda x: x | {"dtype": "float32"}),
    "norms of fewer tokens": lambda r: replace(r, key_norms=r.key_norms[..., 1:]),
    "loading what is not there": lambda r: si.Report.load("nowhere.safetensors"),
}


def test_norms_of_a_half_precision_model_are_not_frozen():
    assert "load it in float32" in outcome(lambda: si.explain(with_theta(1e4).to(torch.bfloat16), TOKENS, head=(0, 0)))


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_refuses(name, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome(lambda: REPORTS[name](report))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["numbers", "numbers.SAFETENSORS", "numbers.JSON"])
def test_a_saved_report_of_any_name_is_ours_and_read_back(name, report, tmp_path):
    for _ in range(2):
        report.save(tmp_path / name)
    assert si.Report.load(tmp_path / name) == report != si.measure(SUBJECT, TOKENS + 1)


def test_a_book_without_chapters_is_not_written(tmp_path):
    outcome(lambda: write_front_pages(tmp_path / "absent"))
    assert not list(tmp_path.iterdir())


def test_nothing_to_train_on_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n' * 99)
    outcome(lambda: packed(tmp_path / "empty.jsonl").prepare(tmp_path))


def test_a_relative_path_names_the_text_of_the_folder_that_the_program_is_in(tmp_path, monkeypatch):
    hashes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        (tmp_path / name / "t.txt").write_text("\n\n".join(f"{name} sinks {i}" for i in range(99)))
        hashes.append(packed("t.txt").prepare(tmp_path / "cache").sha256)
    assert hashes[0] != hashes[1]


def test_the_mark_that_begins_a_file_of_windows_is_not_a_token(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfThe cat sat")
    assert list(texts_of(tmp_path / "t.txt")) == [text_of_file(tmp_path / "t.txt")] == ["The cat sat"]


def test_names_of_thousands_of_letters_are_cut():
    assert len(str(InputError("x" * 5000 + " is absent"))) < 300 and len(str(InputError("a b " * 5000))) < 4000
