"""Bad calls of the Python API: each ends in an InputError of one line, never in anything else."""

import copy
import inspect
import json
import os
import pkgutil
import re
import signal
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import sinkinterp as si
import sinkinterp.measurement
import sinkinterp.report
from sinkinterp import interventions as edit
from sinkinterp.applications import eviction, generation, streaming, without_outliers
from sinkinterp.applications.position_swap import swap_table
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.sites import CALL, RESIDUAL
from sinkinterp.backends.encoder import encoder_input
from sinkinterp.backends.files.model_files import check_fits_memory
from sinkinterp.data import given_tokenizer, token_sources
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.given_tokenizer import rendered
from sinkinterp.data.packing import PackedText
from sinkinterp.data.sources import Texts
from sinkinterp.data.texts import text_of_file, texts_of
from sinkinterp.data.tokenisers import ByteBPE
from sinkinterp.data.tokens import TokenSet
from sinkinterp.errors import InputError
from sinkinterp.interventions.attention_layers import PatchNormalization
from sinkinterp.interventions.selectors import LABELS
from sinkinterp.lm.config import LMSpec, SinkConfig
from sinkinterp.lm.model import build
from sinkinterp.measurement import activation_patching, patching, sweep
from sinkinterp.measurement.explaining import cut_maps
from sinkinterp.measurement.maps import attention_map
from sinkinterp.measurement.path_patching import path_patching
from sinkinterp.metrics import bootstrap, instruments
from sinkinterp.metrics.metric import LogitsMetric, Metric
from sinkinterp.pages.book import write_front_pages
from sinkinterp.pages.chapters import chapters_in
from sinkinterp.pages.live.page import serve_live
from sinkinterp.report import compare, heads
from sinkinterp.runs.inputs import Inputs
from sinkinterp.runs.trained import held_out_tokens
from sinkinterp.spec import Spec
from sinkinterp.table import Table
from sinkinterp.train.chats import read_chats, tokenised

TOKENS = torch.arange(24).reshape(2, 12)
NAN, INF = float("nan"), float("inf")
HUGE = 10**30


def plain_of(report):
    """The dictionary of a report without its seal, so that the checks of its numbers are reached."""
    return {name: value for name, value in report.to_dict().items() if name not in ("sha256", "sealed")}


def changed(report, **fields):
    return si.Report.from_dict(plain_of(report) | fields)


def without(report, name):
    plain = plain_of(report)
    plain["tensors"] = {key: value for key, value in plain["tensors"].items() if key != name}
    return si.Report.from_dict(plain)


def with_tensor(report, name, tensor):
    plain = plain_of(report)
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain["tensors"][name] = {"dtype": dtype, "shape": list(tensor.shape), "values": tensor.flatten().tolist()}
    return si.Report.from_dict(plain)


def with_number(report, name, number):
    plain = plain_of(report)
    plain["tensors"][name]["values"][0] = number
    return si.Report.from_dict(plain)


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


def corpus_of(texts, folder):
    (folder / "empty.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    PackedText(source=Texts(str(folder / "empty.jsonl")), tokenizer=ByteBPE(300), length=11).prepare(folder)


def chats_of(content, folder):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": messages}))
    tokenised(read_chats(str(folder / "chats.jsonl"))[0], None, 8)


def rendered_by(template, subject):
    tokenizer = copy.deepcopy(subject.tokenizer)
    tokenizer.chat_template = template
    return rendered([{"role": "user", "content": "hi"}], tokenizer, "chat 0")


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
SUBJECT = "sinkinterp/demo-softmax"
LOADS = {
    "a model without a head": lambda: si.load(model_with(lambda model: setattr(model, "lm_head", None))),
    "a model that is all body": lambda: si.load(model_with(lambda model: model.base_model)),
    "a model without memory": lambda: si.load(model_with(lambda model: model.to("meta"))),
    **{f"a rope of {theta}": lambda theta=theta: si.load(with_theta(theta)) for theta in (0.0, -5.0, NAN)},
    "None": lambda: si.load(None),
    "a number": lambda: si.load(3),
    "an empty name": lambda: si.load(""),
    "a list": lambda: si.load(["gpt2"]),
    "a class": lambda: si.load(torch.nn.Linear),
    "a folder that is not there": lambda: si.load("./nowhere"),
    "a name with a newline": lambda: si.load("./no\nwhere"),
    "a name with a null byte": lambda: si.load("no\0where"),
    "a name of 5,000 letters": lambda: si.load("x" * 5000),
    "bytes": lambda: si.load(b"gpt2"),
    "an empty backend": lambda: si.load("sinkinterp/demo-softmax", backend=""),
    "a backend that is no text": lambda: si.load("sinkinterp/demo-softmax", backend=["huggingface"]),
    "a dtype that is none": lambda: si.load("sinkinterp/demo-softmax", dtype="float7"),
    "a dtype of whole numbers": lambda: si.load("sinkinterp/demo-softmax", dtype=torch.int64),
    "a dtype that is a number": lambda: si.load("sinkinterp/demo-softmax", dtype=32),
    "a device that is not there": lambda: si.load("sinkinterp/demo-softmax", device_map="cuda:99"),
    "a device that is no text": lambda: si.load("sinkinterp/demo-softmax", device_map=3.5),
    "a tokenizer that is none": lambda: si.load("sinkinterp/demo-softmax", tokenizer=3),
    "an encoder for a decoder": lambda: si.load("sinkinterp/demo-softmax", encoder="silence"),
    "a name that is a number": lambda: si.load("sinkinterp/demo-softmax", name=3),
    "a subject again, on another backend": lambda: si.load(si.load("sinkinterp/demo-softmax"), backend="nnsight"),
}

TOKENS_GIVEN = {
    "a float": 0.5,
    "no text": "",
    "texts without a tokenizer": ["one", "two"],
    "a tensor of booleans": torch.ones(2, 5, dtype=torch.bool),
    "a complex tensor": torch.ones(2, 5, dtype=torch.complex64),
    "three axes": torch.ones(2, 2, 5, dtype=torch.long),
    "nested thrice": [[[1, 2], [3, 4]]],
    "no axes": torch.tensor(5),
    "a meta tensor": torch.ones(2, 5, dtype=torch.long, device="meta"),
    "a sparse tensor": torch.eye(5, dtype=torch.long).to_sparse(),
    "an array of floats": np.ones((2, 5)),
    "an array of dates": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "an array of records": np.zeros(3, dtype=[("a", int)]),
    "an id of the vocabulary's size": [[1, 64]],
    "a negative id": [[1, -1]],
    "an id beyond 64 bits": [[1, 2**64]],
    "an unsigned id beyond 63 bits": np.array([[1, 2**63]], dtype=np.uint64),
    "more tokens than the context": [[1] * 17],
    "more tokens than memory": torch.zeros(1, 1, dtype=torch.long).expand(1, 10**10),
    "a generator": (i for i in range(5)),
    "a function": len,
    "a mapping with texts": {"input_ids": ["a", "b"]},
}

MEASURES = {
    "positions of halves": {"positions": (0.5,)},
    "positions of booleans": {"positions": (True,)},
    "positions as text": {"positions": "0"},
    "a position of NaN": {"positions": [NAN]},
    "a position beyond 64 bits": {"positions": [HUGE]},
    "a float as positions": {"positions": 0.5},
    "an edit that is none": {"edits": [3]},
    "the class of an edit": {"edits": [si.SwapPositions]},
    "an edit as text": {"edits": "swap"},
    "a kernel as an edit": {"edits": [Sigmoid()]},
    "an operation as an edit": {"edits": edit.Zero()},
    "a shift past the table": {"edits": edit.ShiftPositions(100)},
    "an instrument as text": {"instruments": "LOS"},
    "an instrument that is none": {"instruments": [3]},
    "one instrument twice under another read": {
        "instruments": [instruments.LOSS, (replace(instruments.LOSS[0], read=len),)]
    },
    "a convention that is none": {"convention": "paper"},
    "progress that is none": {"progress": "yes"},
}

EDITS = {
    "a clip upside down": lambda: edit.ClipPattern(1.0, 0.0),
    "blind to half a dimension": lambda: edit.BlindKeys([0.5]),
}

REPORTS = {
    "epsilon of NaN": lambda r: r.sink(epsilon=NAN),
    "epsilon of all": lambda r: r.null_sink_rate(epsilon=1),
    "epsilon as text": lambda r: r.sink(epsilon="0.3"),
    "epsilon of None": lambda r: r.summary(epsilon=None),
    "half a position": lambda r: r.sink(position=0.5),
    "a boolean position": lambda r: r.alpha(True),
    "a position that was not measured": lambda r: r.alpha(99),
    "an answer by its name": lambda r: r.extra("loss"),
    "a view of None": lambda r: r.plot(None),
    "a view that is a list": lambda r: r.plot(["norms"]),
    "maps that were not measured": lambda r: r.plot("attention"),
    "heads at a negative epsilon": lambda r: r.heads(-0.3),
    "a step of text": lambda r: r.steps("2"),
    "a step of NaN": lambda r: r.steps(NAN),
    "compare with nothing": lambda r: si.compare(r, None),
    "compare with a table": lambda r: si.compare(r, r.heads()),
    "compare at NaN": lambda r: si.compare(r, r, epsilon=NAN),
    "the sink rate of a table": lambda r: si.sink_rate(r.heads()),
    "epsilons of a report without the first token": lambda r: si.measure(SUBJECT, TOKENS, positions=[3]).plot(
        "epsilons"
    ),
    "a column that a table lacks": lambda r: r.heads().column("laier"),
    "rows by a column that a table lacks": lambda r: r.heads().where(laier=1),
    "a tensor of words": lambda r: with_number(r, "importance", "abc"),
    "a figure of a table without one": lambda r: r.summary().table.plot(),
    "a dictionary that is none": lambda r: si.Report.from_dict([]),
    "importance above one": lambda r: with_tensor(r, "importance", r.importance + 5),
    "importance below zero": lambda r: with_tensor(r, "importance", r.importance - 5),
    **{
        f"{number} in its {name}": lambda r, name=name, number=number: with_number(r, name, number)
        for name, numbers in {
            "importance": ("nan", "inf"),
            "raw_importance": ("nan", "-inf"),
            "null": (1.5, -0.5, "nan"),
            "bias_null": (1.5, "inf"),
            "off_sequence": ("nan",),
            "residual_norms": (-1.0, "nan"),
            "key_norms": (-1.0, "nan"),
            "value_norms": (-1.0, "inf"),
            "tokens": (-1, -5, 0.5),
        }.items()
        for number in numbers
    },
    "a number that the hash does not know": lambda r: si.Report.from_dict(r.to_dict() | {"attention_layers": [1]}),
    "a name that no report has": lambda r: changed(r, surplus=1),
    "a position twice": lambda r: changed(r, positions=[0] * len(r.positions)),
    "an empty dictionary": lambda r: si.Report.from_dict({}),
    "a dictionary without tokens": lambda r: without(r, "tokens"),
    "a dictionary without importance": lambda r: without(r, "importance"),
    "importance of another shape": lambda r: with_tensor(r, "importance", torch.rand(2, 1, 1, 5)),
    "norms of another shape": lambda r: with_tensor(r, "residual_norms", torch.rand(3, 2, 12)),
    "keys of no axes": lambda r: with_tensor(r, "key_norms", torch.tensor(1.0)),
    "tokens of floats": lambda r: with_tensor(r, "tokens", torch.rand(2, 12)),
    "a tensor that no report has": lambda r: with_tensor(r, "surplus", torch.rand(2)),
    "positions of halves, read back": lambda r: changed(r, positions=[0.5]),
    "positions that are too few": lambda r: changed(r, positions=[0]),
    "layers that are too many": lambda r: changed(r, attention_layers=[0, 1]),
    "a protocol that is none": lambda r: changed(r, protocol=3),
    "a protocol of another n": lambda r: changed(r, protocol=r.to_dict()["protocol"] | {"sequences": 5}),
    "fewer sequences": lambda r: replace(r, importance=r.importance[:1]),
    "other positions": lambda r: replace(r, positions=(5,)),
    "no layers": lambda r: replace(r, attention_layers=()),
    "saving to nothing": lambda r: r.save(""),
    "saving to a number": lambda r: r.save(3),
    "saving to a folder": lambda r: r.save("."),
    "loading a number": lambda r: si.Report.load(3),
    "loading a folder": lambda r: si.Report.load("."),
    "loading what is not there": lambda r: si.Report.load("nowhere.safetensors"),
}

SWEPT = {"tokens": TOKENS, "edits": [si.SwapPositions(0, 1)]}
SWEEPS = {
    "edits of nothing": {"edits": [[]]},
    "edits that are none": {"edits": [3]},
    "one edit of text": {"edits": "swap"},
    "None": {"edits": None},
    "a metric that is a metric of a report": {"metric": instruments.LOSS[0]},
    "a metric of one number": {"metric": lambda report: 0.5},
    "a metric of heads": {"metric": lambda report: report.alpha()},
    "a control that is none": {"control": "shuffled"},
    "half a control": {"control": 0.5},
    "a boolean control": {"control": True},
    "a control without end": {"control": 10**9},
    "a control that cannot be drawn": {"edits": [edit.ChangeResidual(edit.Zero())], "control": 1},
    "too few others to draw": {"edits": [si.PatchNormalization(Sigmoid(), heads=[(0, 0)])], "control": 1},
}

SPECS = {
    "no data": lambda: si.Recipe(data=None),
    "no layers": lambda: LMSpec(n_layers=0),
    "no heads": lambda: LMSpec(n_heads=0),
    "negative heads": lambda: LMSpec(n_heads=-2),
    "no dimensions": lambda: LMSpec(d_model=0),
    "no vocabulary": lambda: LMSpec(vocab=0),
    "no context": lambda: LMSpec(n_ctx=0),
    "a task of negative length": lambda: BigramBackcopy(length=-1),
    "a task of no symbols": lambda: BigramBackcopy(vocab=0),
    "a model of 10,000 wide layers": lambda: build(LMSpec(n_layers=10_000, d_model=4096, n_heads=32)),
    "a configuration without heads": lambda: SinkConfig(LMSpec().to_dict() | {"n_heads": 0}),
    "a configuration of another kind": lambda: SinkConfig({"kind": "Nothing like it"}),
    "a configuration with another field": lambda: SinkConfig(LMSpec().to_dict() | {"n_legs": 4}),
    "a recipe of another kind": lambda: si.Recipe.from_dict({"kind": "LMSpec"}),
    "a recipe that is a list": lambda: si.Recipe.from_dict([]),
    "trained from a variant's name": lambda: si.trained("softmax"),
}


def functions_of(package, takes):
    """The public functions of a package's modules whose first parameters satisfy `takes`."""
    modules = (import_module(f"{package.__name__}.{module.name}") for module in pkgutil.iter_modules(package.__path__))
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            parameters = list(inspect.signature(function).parameters.values())
            if not name.startswith("_") and function.__module__ == module.__name__ and takes(parameters):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", function, parameters


def needed(parameters, most):
    """None for each of the parameters after the first `most` that has no default."""
    return {p.name: None for p in parameters[most:] if p.default is p.empty and p.kind is not p.VAR_KEYWORD}


NEIGHBOURS = {  # masks and caches
    "a module that is called": lambda subject: si.measurement.measure(subject, TOKENS),
    "another that is called": lambda subject: si.backends.load(SUBJECT),
    "a tokenizer that is not there": lambda subject: si.load(subject.model, tokenizer="nope"),
    "a tokenizer that is a file": lambda subject: si.load(subject.model, tokenizer=__file__),
    "a GPU that is not here": lambda subject: si.load(SUBJECT, device_map="cuda:99"),
    "a page as a picture": lambda subject: si.view(subject, TOKENS[:1], open_browser=False).save("page.pdf"),
    "times as text": lambda subject: si.mask(subject, TOKENS, times="10"),
    "a block beyond the model": lambda subject: si.mask(subject, TOKENS).keep(99),
    "a negative block": lambda subject: si.mask(subject, TOKENS).keep(-1),
    "a seed as text": lambda subject: edit.KeepHeaviest(4, 1, seed="x"),
    "a seed of 70 bits": lambda subject: edit.KeepHeaviest(4, 1, seed=2**70),
    "a window that evicts nothing": lambda subject: eviction.heads_table(subject, TOKENS, 99),
    "the same for heavy hitters": lambda subject: eviction.memory_table(subject, TOKENS, 99),
    "a window as text": lambda subject: eviction.heads_table(subject, TOKENS, "6"),
    "a window of nothing": lambda subject: eviction.first_token_losses(subject, TOKENS, (0,)),
    "no token to generate": lambda subject: generation.generation_table(subject, TOKENS, 0),
    "no room to generate": lambda subject: generation.generation_table(subject, TOKENS.repeat(1, 2)[:, :16], 5),
}
OTHERS = {
    **{
        f"patched, {what}": lambda s, inputs=inputs: run_patched(s, *inputs)
        for what, inputs in {
            "ids outside the vocabulary": (torch.tensor([[1, 64]]),),
            "ids below 0": (torch.tensor([[1, -3]]),),
            "nothing": (),
            "a text": ("hello",),
            "a list": ([1, 2],),
            "no tokens": (torch.zeros(1, 0, dtype=torch.long),),
        }.items()
    },
    "a pass of one axis": lambda s: s.run(torch.arange(4)),
    "a configuration": lambda s: si.load(s.model.config),
    "outliers beyond a word": lambda s: si.mask(s, TOKENS, times="a"),
    "a layer of transformers": lambda s: si.load(with_theta(1e4).model.layers[0]),
    "an encoder that is a word": lambda s: si.load(SUBJECT, encoder="off"),
    **{
        f"an encoder that is given {given}": lambda s, given=given: eval(given, vars(encoder_input))
        for given in (
            "Silence(-1)",
            "Silence(float('nan'))",
            "Silence('1')",
            "Text(' ')",
            "Text(5)",
            "TokenIds(())",
            "TokenIds((-1,))",
            "TokenIds((0.5,))",
        )
    },
    **{
        f"token types {given}": lambda s, given=given: si.measure(s, {"input_ids": [[1, 2]], "token_type_ids": given})
        for given in ([[0, 1]], [[0]], "ab")
    },
    "activations of another width": lambda s: si.mask(s, TOKENS).keep(1)(torch.zeros(3, 5)),
    **{
        f"attention with {given}": lambda s, given=given: si.AttentionOf(**{"module": "x", "computes": print} | given)
        for given in (
            {"computes": 5},
            {"module": 5},
        )
    },
    **{
        f"told {name}": lambda s, given=given: si.trained(si.Recipe(), on_step=given)
        for name, given in {
            "a number": 5,
            "a list": [],
            "a name": "print",
            "what takes nothing": lambda: None,
            "what takes a step": lambda step: None,
        }.items()
    },
    "told of data": lambda s: si.trained(si.Recipe(), on_data=5),
    "progress without arguments": lambda s: si.measure(s, TOKENS, progress=lambda: None),
    "numbers that are texts": lambda s: Table("title", "note", ({"a": "x"},)).numbers("a"),
    **{
        f"a table from {given!r}": lambda s, given=given: Table.from_dict(given)
        for given in (None, {}, [], 5, {"title": "", "note": "", "rows": 3})
    },
    **{
        f"training with {given}": lambda s, given=given: si.trained(si.Recipe(), **given)
        for given in ({"folder": 5}, {"cache": 5}, {"device": 5}, {"device": "cuda:99"})
    },
    **{
        f"a module run by {given!r:.9}": lambda s, given=given: si.load(torch.nn.Embedding(5, 3), forward=given)
        for given in (5, lambda ids: ids)
    },
    "a metric of two reports": lambda s: si.sweep(s, **SWEPT, metric=lambda report, other: 0),
    **{f"inputs of {given}": lambda s, given=given: Inputs(*given) for given in ((0, 5), (5, -1), (5, 1.5), ("a", 5))},
    "cut maps of nothing": lambda s: cut_maps(s, TOKENS, None),
    "cut maps of another model": lambda s: cut_maps(
        si.load(s.model, name="other"), TOKENS, si.explain(s, TOKENS, head=(0, 0))
    ),
    "a graph of half a head": lambda s: si.explain(s, TOKENS, head=(0, 0)).plot(5),
    "a path to the first layer": lambda s: path_patching(
        s, TOKENS, TOKENS + 1, receiver=edit.ChangeKeys(kv_heads=[(0, 0)])
    ),
    "a head of one number": lambda s: si.explain(s, TOKENS, head=(0,)),
    "a seed that is a word": lambda s: si.explain(s, TOKENS, seed="a"),
    "a site that is a number": lambda s: si.activation_patching(s, TOKENS, TOKENS, site=3),
    "an axis twice": lambda s: si.activation_patching(s, TOKENS, TOKENS, by=("layer", "layer")),
    "patterns of two lengths": lambda s: si.sinks([torch.eye(n)[None, None] for n in (4, 5)]),
    "patterns of two batches": lambda s: si.sinks([torch.eye(4).expand(n, 1, 4, 4) for n in (2, 3)]),
    "a pattern of zeros": lambda s: si.sinks(torch.zeros(1, 1, 4, 4)),
    "a control of no seeds": lambda s: si.sweep(s, TOKENS, [si.SwapPositions(0, 3)], metric=si.sink_rate, control=0),
    "a pass of rows of different lengths": lambda s: s.run([[1, 2, 3], [1, 2]]),
    "a pass of floats": lambda s: s.run(torch.rand(2, 3)),
    "positions of ids": lambda s: si.measure(s, {"input_ids": [[1, 2, 3]], "position_ids": [[2, 1, 0]]}),
    "a text that is not Unicode": lambda s: si.load("sinkinterp/text-softmax").tokens("the \ud800 cat"),
    "a metric without a name": lambda s: si.measure(s, TOKENS, instruments=(replace(instruments.LOSS[0], name=""),)),
    "a site by another name": lambda s: si.activation_patching(s, [1, 2], [1, 3], sites="residual"),
    "a template that fails": lambda s: rendered_by("{{ 1 / 0 }}", si.load("sinkinterp/text-softmax")),
    "a token set of floats": lambda s: si.measure(s, TokenSet(torch.rand(2, 5), "floats", "")),
    "a token set of one axis": lambda s: si.measure(s, TokenSet(torch.arange(5), "flat", "")),
    "maps of text": lambda s: attention_map(s, "text"),
    "maps of two lengths": lambda s: attention_map(s, [[1, 2], [3, 4, 5]]),
    "maps of a head twice": lambda s: attention_map(s, TOKENS, heads=[(0, 1), (0, 1)]),
    "maps of a layer twice": lambda s: attention_map(s, TOKENS, layers=[1, 1]),
    "explaining a head twice": lambda s: si.explain(s, TOKENS, head=[(0, 1), (0, 1)]),
    "a loss at a position twice": lambda s: activation_patching.loss_at([3, 3]),
    "a number without an adapter": lambda s: si.without_adapter(5),
    "an own module on meta": lambda s: si.load(model_with(lambda m: torch.nn.Sequential(m).to("meta"))),
    "maps of half a head": lambda s: attention_map(s, TOKENS, 0, 0.5),
    **{
        f"maps of heads {heads}": lambda s, heads=heads: attention_map(s, TOKENS, heads=heads)
        for heads in ([(0,)], [(0, 0, 0)], ["a"], [1.0], [None])
    },
    "a mask that is added": lambda s: si.measure(
        s, TOKENS, edits=lambda call: replace(call, mask=call.q.new_zeros(12, 12))
    ),
    "a metric without end": lambda s: si.sweep(
        s, TOKENS, edit.RemoveColumn(), metric=lambda r: r.alpha().sum((1, 2)) / 0
    ),
    "a patch from nothing": lambda s: patching.patch(edit.ChangeResidual(), s, None),
    "patches without a site": lambda s: patching.patches(3, s, TOKENS),
    "patched with what is none": lambda s: si.patched(s.model, 3).__enter__(),
    "random tokens without number": lambda s: token_sources.random_tokens(64, 10**6, 10**6),
    "random tokens of half a length": lambda s: token_sources.random_tokens(64, 2.5, 2),
    "random tokens of a huge seed": lambda s: token_sources.random_tokens(64, 5, 2, seed=HUGE),
    "random tokens of no vocabulary": lambda s: token_sources.random_tokens(0, 5, 2),
    "no tokenizer": lambda s: s.tokens("some words"),
    "texts that are ids": lambda s: s.tokens([1, 2]),
    "BOS as asked for": lambda s: s.tokens("words", bos="sometimes"),
    "rows of floats": lambda s: TokenSet.of_rows([[0.5, 1.5]]),
    "a metric of positions outside": lambda s: sweep.importance(si.measure(s, TOKENS), 99),
}

INSIDE = {  # they are given what was checked
    *("checked", "from_dict", "dense_patterns", "passes", "check_fits", "run_note", "check_stream", "streamed"),
}
READ = (["subject", "tokens"], ["model", "tokens"], ["subject", "prompts"])  # the first parameters of what measures
OF_INPUTS = {
    name: (function, given)
    for name, function, given in functions_of(sinkinterp.measurement, lambda given: [p.name for p in given[:2]] in READ)
    if name.rpartition(".")[2] not in INSIDE
}
NO_INPUTS = {
    "no model": lambda s: (None, TOKENS),
    "a number for a model": lambda s: (5, TOKENS),
    "tokens for a model": lambda s: (TOKENS, TOKENS),
    "a text": lambda s: (s, "text"),
    "a number for tokens": lambda s: (s, 5),
    "no texts": lambda s: (s, TOKENS[:0]),
    "one token": lambda s: (s, TOKENS[:, :1]),
    "halves": lambda s: (s, TOKENS / 2),
    "a masked array": lambda s: (s, np.ma.masked_array(TOKENS.numpy(), TOKENS.numpy() > 5)),
    "a nested tensor": lambda s: (s, torch.nested.nested_tensor([TOKENS[0], TOKENS[1, :5]], layout=torch.jagged)),
    "a data frame": lambda s: (s, pd.DataFrame(TOKENS.numpy())),
    "embeddings": lambda s: (s, {"input_ids": TOKENS, "inputs_embeds": TOKENS}),
}
OF_REPORTS = {
    name: (function, parameters)
    for name, function, parameters in functions_of(
        sinkinterp.report, lambda given: given and any(word in str(given[0].annotation) for word in (".Readings", "~R"))
    )
    if name.rpartition(".")[2] not in INSIDE
}
NO_REPORTS = (None, 5, "report", [], {}, {"a": 5}, TOKENS)


class Nothing(edit.Edit):
    def residuals(self, block, x):
        return x * 0


READS = {  # functions of the user that cannot be called as they will be
    "no function": 5,
    "a function of nothing": lambda: 1,
    "a function of three": lambda a, b, c: a,
}
CHANGED_CALLS = {  # what an edit makes of a call, which attention would not refuse
    "a scale of text": lambda call: replace(call, scale="big"),
    "a scale of NaN": lambda call: replace(call, scale=NAN),
    "a softcap of text": lambda call: replace(call, softcap="big"),
    **{
        f"{name} of {number}": lambda call, name=name, number=number: replace(
            call, **{name: getattr(call, name) * number}
        )
        for name in ("q", "k", "v")
        for number in (NAN, INF)
    },
    "a pattern of text": lambda call: call.with_pattern("x"),
    "no argument": lambda: 1,
}
X = torch.arange(48.0).reshape(2, 3, 8).cos()
ACTIVATIONS = (None, 5, [1.0], np.zeros((2, 3, 8)), X * 1j, X > 0, torch.tensor(1.0), X.to("meta"))
OWN_ARGUMENTS = {
    **{f"keep {i}": lambda s, x=x: si.mask(s, TOKENS).keep(1)(x) for i, x in enumerate(ACTIVATIONS)},
    **{f"pca_table of {i}": lambda s, x=x: without_outliers.pca_table(x, si.mask(s, TOKENS))
       for i, x in enumerate((*ACTIVATIONS, X[0], X[:1]))},
    **{f"pca_table of {rank} components": lambda s, rank=rank: without_outliers.pca_table(X, si.mask(s, TOKENS), rank)
       for rank in (0, -1, 1.5, "2")},
    **{f"fake_quantised {i}": lambda s, x=x: without_outliers.fake_quantised(x, 4, (-1,))
       for i, x in enumerate(ACTIVATIONS)},
    **{f"fake_quantised to {bits} bits": lambda s, bits=bits: without_outliers.fake_quantised(X, bits, (-1,))
       for bits in (1, 0, -1, 4.5, 1000, "4", None)},
    **{f"fake_quantised over {over}": lambda s, over=over: without_outliers.fake_quantised(X, 4, over)
       for over in ((), (9,), (0.5,))},
    **{f"Quantise to {bits} bits": lambda s, bits=bits: without_outliers.Quantise(bits, (-1,), without_outliers.nothing)
       for bits in (1, 0, 4.5)},
    **{f"a dictionary of {given}": lambda s, given=given: without_outliers.dictionary(X.flatten(0, 1), **given)
       for given in ({"features": 0, "steps": 1}, {"features": 8, "steps": -1}, {"features": 8, "steps": 1})},
    **{f"estimate {i}": lambda s, x=x: bootstrap.estimate(x) for i, x in enumerate((*ACTIVATIONS, X))},
    "pairs of two lengths": lambda s: bootstrap.difference(torch.zeros(3), torch.zeros(4), paired=True),
    "a seed of text": lambda s: bootstrap.estimate(torch.zeros(3), seed="a"),
    **{f"windows {given!r}": lambda s, given=given: eviction.first_token_losses(s, TOKENS, given)
       for given in ((), "44", None, (4.5,), 4.5)},
    **{f"kept {given!r}": lambda s, given=given: eviction.heads_table(s, TOKENS, 4, kept=given)
       for given in ((), "01", None, (0.5,), (-1,))},
    **{f"a tolerance of {given!r}": lambda s, given=given: eviction.heads_table(s, TOKENS, 4, given)
       for given in ("a", NAN, None)},
    "sinks of nothing": lambda s: streaming.streaming_table(s, TOKENS, window=4, sinks=()),
    **{f"{count!r} tokens to write": lambda s, count=count: generation.generated(s, TOKENS, count)
       for count in (0, -1, 10**9, "3", 1.5)},
    "a seed of text to write with": lambda s: generation.generated(s, TOKENS, 1, seed="a"),
    "an epsilon of 5": lambda s: generation.generation_table(s, TOKENS, 1, epsilon=5),
    **{f"token sets {given!r}": lambda s, given=given: swap_table(s, given, [4]) for given in (None, {}, [], {"a": 5})},
    "no targets": lambda s: swap_table(s, {"a": TOKENS}, []),
    **{f"a head {given!r}": lambda s, given=given: si.explain(s, TOKENS, head=given) for given in (5, [], "0.0.0")},
    **{f"maps by {by!r}": lambda s, by=by: si.activation_patching(s, TOKENS, TOKENS + 1, by=by)
       for by in (5, (), [["layer"]], "nothing")},
    **{f"patching by {name}": lambda s, make=make: si.activation_patching(s, TOKENS, TOKENS + 1, metric=make())
       for name, make in {
           "a text": lambda: activation_patching.logit_difference("a", "b"),
           "a negative token": lambda: activation_patching.logit_difference(-1, 5),
           "a token outside": lambda: activation_patching.logit_difference(10**9, 5),
           "a position outside": lambda: activation_patching.logit_difference(1, 2, position=99),
           "answers of three pairs": lambda: activation_patching.logit_difference([1, 2, 3], 4),
           "a loss outside": lambda: activation_patching.loss_at([99]),
           "the loss of token 0": lambda: activation_patching.loss_at([0]),
           "a divergence outside": lambda: activation_patching.divergence_from_clean(99),
           "a layer outside": lambda: activation_patching.first_alpha(layer=9),
           "an epsilon of 5": lambda: activation_patching.first_alpha(epsilon=5),
       }.items()},
    **{f"watching {name}": lambda s, step=step: step(si.SinkCallback(TOKENS, every=1), s)
       for name, step in {
           "no model": lambda watch, s: watch.step(None, 1),
           "a step of text": lambda watch, s: watch.step(s.model, "a"),
           "a step before the first": lambda watch, s: watch.step(s.model, -1),
           "no state": lambda watch, s: watch.load_state_dict(None),
           "an empty state": lambda watch, s: watch.load_state_dict({}),
           "a history of numbers": lambda watch, s: watch.load_state_dict({"history": [5]}),
       }.items()},
    "a log that is none": lambda s: si.SinkCallback(TOKENS, log=5),
    **{f"a page saved to {path!r}": lambda s, path=path: si.view(s, TOKENS[:1], open_browser=False).save(path)
       for path in (None, 5, b"page.html")},
    **{f"texts of {given!r}": lambda s, given=given: list(texts_of(given)) for given in (None, 5, ["a"], b"a")},
    **{f"blank texts {given!r}": lambda s, given=given: si.load("sinkinterp/text-softmax").tokens(given)
       for given in (" ", "\n\t", ["", " "], {"a": 1})},
    "a table of numbers": lambda s: Table("title", "note", (5,)),
    "a table without rows": lambda s: Table("title", "note", 5),
    "a table of two kinds of rows": lambda s: Table("title", "note", ({"a": 1}, {"b": 1})),
    **{f"{most} heads": lambda s, most=most: heads.top_heads(si.measure(s, TOKENS).heads(), most)
       for most in (0, -1, "2")},
    "no report by length": lambda s: compare.sinks_by_length([]),
    "an epsilon by length": lambda s: compare.sinks_by_length([si.measure(s, TOKENS)], epsilons=(5,)),
    "a mask that is none": lambda s: without_outliers.pca_table(X, None),
    "rows that are none": lambda s: TokenSet.of_rows(5),
    "an attention mask that is none": lambda s: TokenSet.of(TOKENS, attention_mask=5),
    "an edit that overrides nothing": lambda s: si.measure(s, TOKENS, edits=Nothing()),
    "reads that are none": lambda s: s.run(TOKENS, reads=5),
    "a task that is none": lambda s: held_out_tokens(None, 5),
    **{f"{n} sequences of a task": lambda s, n=n: held_out_tokens(si.Recipe().data, n) for n in (0, -1, 10**11, "5")},
    **{f"port {port!r}": lambda s, port=port: serve_live(s, port=port) for port in ("a", -1, 2**16)},
    **{f"a book in {given!r}": lambda s, given=given: chapters_in(given) for given in (None, 5)},
    **{f"weights on {place!r}": lambda s, place=place: si.load(SUBJECT, device_map=place)
       for place in ({"": "cuda:99"}, {"": 99}, {"": torch.device("cuda", 98)}, {"": [1]}, ["cpu"])},
}  # fmt: skip


CALLS = {
    **{
        f"{name} of {what}": lambda s, function=function, parameters=parameters, given=given: function(
            *given(s), **needed(parameters, 2)
        )
        for name, (function, parameters) in OF_INPUTS.items()
        for what, given in NO_INPUTS.items()
    },
    **{
        f"{name} of {given!r:.9} for a report": lambda s, function=function, parameters=parameters, given=given: (
            function(given, **needed(parameters, 1))
        )
        for name, (function, parameters) in OF_REPORTS.items()
        for given in NO_REPORTS
    },
    **{
        f"a metric of {kind} {what}": lambda s, of=of, f=f: si.measure(s, TOKENS, instruments=[of(f)])
        for kind, of in {
            "calls": partial(Metric, "own", CALL),
            "residuals": partial(Metric, "own", RESIDUAL),
            "logits": partial(LogitsMetric, "own"),
        }.items()
        for what, f in READS.items()
    },
    **{
        f"an edit to {what}": lambda s, function=function: si.measure(s, TOKENS, edits=function)
        for what, function in CHANGED_CALLS.items()
    },
    **OWN_ARGUMENTS,
    **{f"load {name}": lambda _, call=call: call() for name, call in LOADS.items()},
    **{f"tokens {name}": lambda s, given=given: si.measure(s, given) for name, given in TOKENS_GIVEN.items()},
    **{f"measure {name}": lambda s, given=given: si.measure(s, TOKENS, **given) for name, given in MEASURES.items()},
    **{f"edit {name}": lambda _, call=call: call() for name, call in EDITS.items()},
    **{f"sweep {name}": lambda s, given=given: si.sweep(s, **SWEPT | given) for name, given in SWEEPS.items()},
    **{f"spec {name}": lambda _, call=call: call() for name, call in SPECS.items()},
    **NEIGHBOURS,
    **OTHERS,
}


def outcome(call):
    """The error of a call. Anything but an InputError of one line fails the test."""
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 600, message
    assert not re.search(r"(?<!\S)--[a-z]", message), message  # options are for the command line
    return message


def made(kind):
    """An edit, operation or spec with its defaults, and with small numbers where it has none; None without such."""
    needed = [f for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    known = {int: [4, 1], float: [2.0, 3.0]}
    try:
        return kind(**{f.name: known[f.type].pop(0) for f in needed})
    except (KeyError, IndexError, NotImplementedError):
        return PatchNormalization(Sigmoid()) if kind is PatchNormalization else None


JUNK = {int: (0.5, "3", True, None, NAN, HUGE), float: (NAN, INF, "2", None)}  # for fields of these types
CHOICES = (0.5, "all", [0.5], [True], ["3x"], [NAN], range(10**8))  # for selectors
KINDS = {
    kind.__name__: good
    for kind in (*Spec.kinds.values(), *(getattr(edit, name) for name in edit.__all__))
    if is_dataclass(kind) and issubclass(kind, Spec | edit.Edit | edit.Operation) and (good := made(kind)) is not None
}


def junk_for(field, held):
    """What a field must not take."""
    if field.name in LABELS:
        return CHOICES
    return JUNK.get(field.type) or (("nonsense", 3, type(held)) if is_dataclass(held) else ())


FIELDS = [
    (kind, field.name, value)
    for kind, good in KINDS.items()
    for field in fields(good)
    for value in junk_for(field, getattr(good, field.name))
]


@pytest.mark.parametrize(("kind", "name", "value"), FIELDS)
def test_every_field_of_an_edit_or_a_spec_refuses_what_is_not_of_its_type(kind, name, value):
    assert len(KINDS) > 90
    outcome(lambda: replace(KINDS[kind], **{name: value}))


def test_a_wrapper_is_refused_with_the_model_inside_it():
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = with_theta(1e4)
            self.base_model.set_attn_implementation("eager")

        def forward(self, *args, **kwargs):
            return self.base_model(*args, **kwargs)

    assert outcome(lambda: si.load(Wrapper())).endswith("or give its .base_model, which is a transformers model")


def test_norms_of_a_half_precision_model_are_not_frozen():
    assert "load it in float32" in outcome(lambda: si.explain(with_theta(1e4).to(torch.bfloat16), TOKENS, head=(0, 0)))


def test_a_missing_report_is_refused_by_its_name(tmp_path):
    assert "is not a file that is there" in outcome(lambda: si.Report.load(tmp_path / "nope.json"))


@pytest.fixture(scope="module")
def report(subject):
    return si.measure(subject, TOKENS)


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_is_refused(name, subject):
    outcome(lambda: CALLS[name](subject))


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_refuses(name, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome(lambda: REPORTS[name](report))
    assert not list(tmp_path.iterdir())


def test_nothing_is_saved_to_a_pipe_which_may_never_be_read(report, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    assert "is a pipe" in outcome(lambda: report.save(tmp_path / "pipe.json"))


@pytest.mark.parametrize("name", ["numbers", "numbers.SAFETENSORS", "numbers.JSON"])
def test_a_saved_report_of_any_name_is_ours_and_read_back(name, report, tmp_path):
    for _ in range(2):
        report.save(tmp_path / name)
    assert torch.equal(si.Report.load(tmp_path / name).importance, report.importance)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "mine.csv", "mine.html"])
def test_a_file_that_is_not_ours_is_kept(name, report, subject, tmp_path):
    (tmp_path / name).write_bytes(b"mine")
    page = si.view(subject, TOKENS[:1], open_browser=False)
    outcome(lambda: (page if name.endswith("html") else report).save(tmp_path / name))
    assert (tmp_path / name).read_bytes() == b"mine"
    (tmp_path / name).write_bytes(b"")  # as tempfile makes it
    for _ in range(2):
        (page if name.endswith("html") else report).save(tmp_path / name)


def test_a_book_without_chapters_is_not_written(tmp_path):
    outcome(lambda: write_front_pages(tmp_path / "absent"))
    assert not list(tmp_path.iterdir())


def test_a_chat_template_that_never_ends_is_ended(reader, monkeypatch):
    monkeypatch.setattr(given_tokenizer, "SECONDS", 0.2)
    assert "has not ended" in outcome(lambda: rendered_by(ENDLESS, reader))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.mark.parametrize("make", [lambda folder: corpus_of([""] * 99, folder), lambda folder: chats_of(" \n", folder),
                                  lambda folder: chats_of("\ud800", folder)])  # fmt: skip
def test_nothing_to_train_on_is_refused(make, tmp_path):
    outcome(lambda: make(tmp_path))


def test_a_relative_path_names_the_text_of_the_folder_that_the_program_is_in(tmp_path, monkeypatch):
    hashes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        (tmp_path / name / "t.txt").write_text("\n\n".join(f"{name} sinks {i}" for i in range(99)))
        corpus = PackedText(source=Texts("t.txt"), tokenizer=ByteBPE(300), length=11)
        hashes.append(corpus.prepare(tmp_path / "cache").sha256)
    assert hashes[0] != hashes[1]


def test_the_mark_that_begins_a_file_of_windows_is_not_a_token(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfThe cat sat")
    assert list(texts_of(tmp_path / "t.txt")) == [text_of_file(tmp_path / "t.txt")] == ["The cat sat"]


def test_names_of_thousands_of_letters_are_cut():
    assert len(str(InputError("x" * 5000 + " is absent"))) < 300 and len(str(InputError("a b " * 5000))) < 4000


def test_a_configuration_of_10_000_layers_is_refused_before_anything_is_allocated(tmp_path):
    config = LlamaConfig(hidden_size=4096, num_hidden_layers=10_000, num_attention_heads=32)
    config.save_pretrained(tmp_path)
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    assert "describes 10,000 layers of width 4,096" in outcome(lambda: si.load(tmp_path))
    message = outcome(lambda: check_fits_memory(config))  # as for a name of the Hub
    assert "10,000 layers of 4,096 dimensions take about 336 GB" in message


@pytest.mark.parametrize("content", [b"", b"junk", b"\0" * 100, b"\xff" * 8 + b"{}", b"{" * 5000])
def test_bytes_that_are_no_report_are_refused(content, tmp_path):
    file = tmp_path / "report.safetensors"
    file.write_bytes(content)
    outcome(lambda: si.Report.load(file))


def test_another_file_of_tensors_is_no_report(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    outcome(lambda: si.Report.load(tmp_path / "model.safetensors"))
