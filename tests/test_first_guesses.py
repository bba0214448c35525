"""What a newcomer types first in Python works, or says what to type."""

import copy
import inspect
import io
import json
import operator
import pickle
import pydoc
import re
import sys
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from backends.zoo import model_of
from refusals import refused
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from typer.main import get_command
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends.files.named_models import SHIPPED
from sinkinterp.checks import InputError
from sinkinterp.cli.main import app
from sinkinterp.data import progress
from sinkinterp.data.tokenisers import ByteBPE
from sinkinterp.guesses import command_of, guesses
from sinkinterp.metrics import instruments
from sinkinterp.runs.case import Inputs
from sinkinterp.runs.catalogue import full_name
from sinkinterp.train.recipe import described

TEXT = "Language models pour attention onto their first token."
TEXTS = [TEXT, "Most heads give it more than a third.", "def first(items): return items[0]"]
ARGUMENTS = [words.split() for words in guesses()["arguments"]]
SETTINGS = dict.fromkeys(("steps", "batch", "n_layers", "n_heads", "d_model", "save_every", "watch_every", "warmup"), 4)
SETTINGS |= {"lr": 0.5, "clip": 0.5, "length": 8}
_OTHERS = {("measure", "n"), ("generate", "tokens")}  # how many texts, and how many new tokens
NAME = "sinkinterp/text-softmax"  # a checkpoint that ships with its tokenizer
TWIN = "sinkinterp/text-sigmoid"


@pytest.fixture(scope="module")
def subject():
    return si.load(NAME)


@pytest.fixture(scope="module")
def report(subject):
    return si.measure(subject, TEXTS, instruments=[*instruments.ALL, instruments.MAPS])


def words(*known):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("?", *known))}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def one_line(text):
    return "\n" not in text and len(text) < 400 and "tensor([" not in text and " object at 0x" not in text


def test_a_name_and_a_text():
    report = si.measure(NAME, TEXT)
    assert report.protocol.model == NAME and report.protocol.sequences == 1 and 0 < report.alpha().mean() < 1


def test_a_call_without_mistakes_searches_no_source_for_a_name(subject, report, monkeypatch):
    monkeypatch.setattr("sinkinterp.attributes.found_anywhere", None)  # it reads every file, which takes longer
    assert si.measure(subject, TEXTS).alpha().equal(report.alpha())


def test_texts_are_measured_at_their_own_lengths_and_the_report_says_so(subject, report):
    lengths = [len(subject.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert (report.tokens >= 0).sum(1).tolist() == lengths
    assert f"T={min(lengths)} to {max(lengths)}" in report.protocol.line()
    assert "BOS tokenizer (id 1 first)" in report.protocol.line()
    for i, text in enumerate(TEXTS):
        torch.testing.assert_close(report.alpha()[i], si.measure(subject, text).alpha()[0])


def test_texts_cut_to_one_length(subject):
    token_set = subject.tokens(TEXTS, length=11)
    assert token_set.tokens.shape == (3, 11) and si.measure(subject, token_set).protocol.length == 11
    refused(lambda: subject.tokens(TEXTS, length=100), "100")


@pytest.mark.parametrize(("bos", "first"), [("never", False), (False, False), ("always", True), (True, True)])
def test_bos_is_as_asked_for(subject, bos, first):
    tokens = subject.tokens(TEXT, bos=bos).tokens[0].tolist()
    assert (tokens[0] == subject.tokenizer.bos_token_id) is first and tokens.count(1) == first


def test_one_edit_needs_no_list(subject, report):
    moved = si.measure(subject, TEXTS, edits=si.SwapPositions(0, 4))
    again = si.measure(subject, TEXTS, edits=[si.SwapPositions(0, 4)])
    assert moved.alpha().equal(again.alpha()) and not moved.alpha().equal(report.alpha())
    assert moved.protocol.edits == ("SwapPositions(0, 4)",)
    assert "change by sequence" in si.compare(report, moved).note


def test_a_transformers_model_takes_ids_as_it_is_and_says_how_it_takes_text():
    model = model_of("gpt2")
    assert si.measure(model, [5, 7, 9]).tokens.tolist() == [[5, 7, 9]]
    refused(lambda: si.measure(model, TEXT))


def test_words_for_one_argument_give_what_its_name_gives(subject, report):
    weights = [torch.full((1, 4, 7, 7), 1 / 7).tril(), torch.eye(7).expand(1, 4, 7, 7)]
    named = si.attention_map(weights, list("abcdefg"), heads=[(1, 2)])
    for words in ({"attention": weights, "tokens": list("abcdefg")}, {"cache": weights, "str_tokens": list("abcdefg")}):
        assert si.attention_map(**words, include_layers=1, head=2).data[0].z == named.data[0].z
    assert si.measure(subject, text=TEXTS).alpha().equal(report.alpha())


def test_a_transformers_model_reads_text_with_the_tokenizer_of_its_folder(report):
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "text-softmax")
    assert si.measure(model, TEXTS).tokens.equal(report.tokens)


def test_a_bridge_goes_in_as_it_is():
    from sinkinterp.backends.bridge import bridge_of

    model = model_of("gpt2")
    bridge = bridge_of(model)
    through_lens = si.measure(bridge, [5, 7, 9, 11])
    assert si.load(bridge).bridge is bridge
    refused(lambda: si.measure(si.load(bridge).model, TEXT), "bridge")
    torch.testing.assert_close(through_lens.importance, si.measure(model, [5, 7, 9, 11]).importance)


def test_an_nnsight_model_goes_in_as_it_is(tmp_path):
    import nnsight

    model = model_of("gpt2")
    model.save_pretrained(tmp_path)
    about = {"task": "text-generation", "tokenizer": words("the", "cat", "sat")}
    lazy = nnsight.TransformersModel(str(tmp_path), **about)  # its weights are not loaded yet
    for given in (nnsight.NNsight(model), lazy):
        report = si.measure(given, [5, 7, 9, 11])
        torch.testing.assert_close(report.importance, si.measure(model, [5, 7, 9, 11]).importance)
    assert si.measure(lazy, "the cat sat").tokens.tolist() == [[1, 2, 3]]


def test_a_path_goes_in_as_it_is(tmp_path):
    model_of("gpt2").save_pretrained(tmp_path)
    assert si.measure(tmp_path, [[5, 7, 9]]).protocol.model == str(tmp_path)


@pytest.mark.parametrize("backend", ["huggingface", "transformer_lens"])
def test_what_a_bridge_computes_any_subject_of_transformers_answers(backend):
    subject = si.load("sinkinterp/text-softmax", backend=backend)
    ids = subject.to_tokens(TEXT)
    logits, cache = subject.run_with_cache(TEXT)
    assert subject.to_str_tokens(TEXT) == [subject.tokenizer.decode(i) for i in ids[0].tolist()]
    for given in (logits, subject(ids)):
        torch.testing.assert_close(given, subject.run(ids).logits, atol=1e-4, rtol=1e-4)
    weights = subject.run(ids, reads={"p": lambda call: call.pattern()})["p"]
    torch.testing.assert_close(cache["pattern", 1], weights[:, 1], atol=1e-5, rtol=1e-4)
    assert subject.cfg.n_layers == subject.shape.n_layers and len(subject.W_Q) == subject.shape.n_layers


def test_a_measurement_does_not_pass_over_the_hooks_of_a_subject():
    subject = si.load(NAME)
    subject.add_hook("blocks.1.attn.hook_z", lambda z, hook: 0 * z)
    refused(lambda: si.measure(subject, TEXT), "hooks on ", "attn.hook_z", "subject.reset_hooks()")
    subject.reset_hooks()
    assert si.measure(subject, TEXT).alpha().equal(si.measure(NAME, TEXT).alpha())
    with si.patched(subject.model, si.SwapPositions(0, 1)):
        refused(lambda: subject.run_with_cache(TEXT), "inside si.patched")
    hooked = si.load(NAME, backend="transformer_lens")
    before = hooked.run(hooked.to_tokens(TEXT)).logits
    hooked.add_hook("blocks.1.attn.hook_z", lambda z, hook: 0 * z)
    assert not torch.allclose(hooked.run(hooked.to_tokens(TEXT)).logits, before, atol=1e-3)


def test_an_import_of_a_name_that_is_not_there_says_what_to_write():
    said = {
        "from sinkinterp import pipeline": "si.load(NAME).generate(text)",
        "from sinkinterp.attention import steer": "interventions.Add(vector)",
        "import sinkinterp.steer": "interventions.Add(vector)",
    }
    for line, fix in said.items():
        with pytest.raises(ImportError, match=re.escape(fix)):
            exec(line)
    exec("from sinkinterp import HookedTransformer, head_view; from sinkinterp.attention import attention_patterns")


def test_weights_and_tokens_go_in_either_order():
    weights, tokens = torch.eye(3)[None], list("abc")
    assert si.attention_map(tokens, weights) == si.attention_map(weights, tokens)


def test_printing_is_short(subject, report):
    table = report.heads()
    trace = subject.run(torch.tensor([[1, 2, 3]]), reads={"x": RESIDUAL.read(lambda x: x)})
    patch = si.measurement.patching.patch(si.interventions.ChangeResidual(layers=[1]), subject, TEXT)
    tokens = subject.tokens(TEXTS)
    everything = (subject, report, table, trace, tokens, patch, report.summary(), si.VARIANTS, si.SwapPositions(0, 4))
    for thing in (*everything, report.sink(), subject.shape, si.Recipe().model.position):
        assert one_line(repr(thing)) or thing is si.VARIANTS, repr(thing)
    assert "3 layers x 1 heads" in repr(report) and "Sink_1 = " in repr(report) and f"n={len(TEXTS)}" in str(report)
    assert "3 layers x 1 heads" in repr(subject) and "huggingface" in repr(subject) and "float32" in repr(subject)


def test_the_summary_is_a_sentence_and_a_table(report):
    summary = report.summary()
    assert summary.sentence.startswith(f"{NAME} has a sink on its first token")
    assert summary.sentence in str(summary) and "Sink_1 at epsilon 0.3" in str(summary)
    assert report.summary(0.5).sentence != summary.sentence


def test_heads_are_listed_strongest_first(report):
    alphas = report.heads().numbers("alpha_1")
    assert alphas == sorted(alphas, reverse=True) and len(alphas) == 3
    assert str(report.heads()).startswith("# Importance of the first position per head")


def test_without_a_view_the_grid_of_sinks_is_plotted(report):
    grid = report.plot().data[0].z
    assert np.allclose(np.array(grid)[:, 0], report.alpha().mean((0, 2)).numpy())
    assert np.allclose(report.heads().plot().data[0].z, grid)  # also from rows in another order


@pytest.mark.parametrize(("view", "name"), [("angles", "GEOMETRY"), ("massive", "MASSIVE"), ("attention", "MAPS")])
def test_a_view_names_the_instrument_that_it_needs(subject, view, name):
    refused(lambda: si.measure(subject, TEXT).plot(view), f"measure with instruments=si.measurement.instruments.{name}")
    assert si.measure(subject, TEXT, instruments=getattr(instruments, name)).plot(view).data


def test_a_sweep_plots(subject):
    table = si.sweep(subject, TEXTS, [si.SwapPositions(0, 2), si.SwapPositions(0, 4)])
    assert len(table.rows) == 3 and table.plot().data


def test_a_notebook_shows_a_card_without_scripts_that_escapes_what_a_user_named():
    card = si.measure(si.load(NAME, name="<script>alert(1)</script>"), TEXT)._repr_html_()
    assert len(card) < 10_000 and card.count("<rect") == 3 and "http://www.w3.org/2000/svg" in card
    assert "<script" not in card and "&lt;script&gt;" in card


HUGE = "si.load(AutoModelForCausalLM.from_pretrained(NAME, ...))"
SAID = {  # what is tried, and what the one line says
    "a report in place of a function": (lambda s, r: si.patch(s, "a b", "c d", metric=r), "is a function; got"),
    "more than an axis has": (lambda s, r: si.sink_scores(s, TEXT).topk(99), ".flatten().topk(99)"),
    "without softmax": (lambda s, r: si.train("no_softmax", steps=2), "si.train('sigmoid', steps=100)"),
    "a kernel's normalisation": (lambda s, r: si.PatchNormalization("sigmoid", normalize=False), "leave it out"),
    "a text and its tokens": (lambda s, r: si.view(s, TEXT, tokens=["a"]), "leave it out: the page shows the tokens"),
    "ids of another model": (lambda s, r: s.run([[7, 10**6]]), "give the text, or ids are 0 to"),
    "a view": (lambda s, r: si.measure(s, TEXT).plot("norm"), "did you mean 'norms'"),
    "an instrument": (lambda s, r: si.measure(s, TEXT, instruments="MASIVE"), "did you mean 'MASSIVE'"),
    "a metric": (lambda s, r: si.sweep(s, TEXT, si.SwapPositions(0, 1), metric="sink_rte"), "si.sink_rate"),
    "a checkpoint": (lambda s, r: si.load("sinkinterp/text-sofmax"), "did you mean 'sinkinterp/text-softmax'"),
    "text for a model of symbols": (lambda s, r: si.measure("sinkinterp/demo-softmax", TEXT), "[[5, 7, 9]]"),
    "a shipped name alone": (lambda s, r: si.load("demo-softmax"), "did you mean 'sinkinterp/demo-softmax'?"),
    "a chat without a template": (lambda s, r: si.measure(s, [{"role": "user", "content": "Hi"}]), "chat template"),
    "both words": (lambda s, r: si.load(NAME, dtype="bf16", torch_dtype="bf16"), 'dtype="bfloat16"'),
    "quantization_config": (lambda s, r: si.load(NAME, quantization_config=object()), HUGE),
    "batch_size of measure": (lambda s, r: si.measure(s, TEXT, batch_size=4), "measure chooses how many"),
    "a model without tokenizer": (lambda s, r: si.measure(model_of("gpt2"), TEXT), "tokenizer=..."),
    "a package": (lambda s, r: si.metrics(s, TEXT), "dir(si.metrics) lists what it has"),
    "texts of a report": (lambda s, r: si.measure(s, TEXT)["pattern", 1], "si.attention_map(model, text)"),
    "a title": (lambda s, r: si.attention_map(s, TEXT, title="t"), "figure.update_layout(title_text=...)"),
    "a mean of heads": (lambda s, r: si.attention_map(s, TEXT, heads="mean"), ".mean(1), tokens)"),
    "attention of a call": (lambda s, r: s(TEXT, output_attentions=True), "si.view(subject, text)"),
    "an edit by a name": (lambda s, r: si.patched(s, mask_sink=True), "RemoveColumn()"),
    "a list of a report": (lambda s, r: pandas.DataFrame([r]), "pandas.DataFrame(report)"),
    "a slip in a keyword": (lambda s, r: si.measure(s, TEXT, editz=()), "did you mean 'edits'"),
    "an item": (lambda s, r: r["import"], "did you mean 'importance'"),
    "one report": (lambda s, r: si.compare(r, 3), "not a model"),
    "a module": (lambda s, r: s.parameters, "subject.model.parameters"),
    "several models in a view": (lambda s, r: si.view([NAME, NAME], TEXT), "si.attention_map(models, text)"),
    "an estimate as a number": (lambda s, r: r.sink() > 0.2, "report.sink().low"),
    "a word of an operation": (lambda s, r: si.interventions.Zero(dims=[3]), "Zero: got an unexpected keyword"),
    "a word that generating does not know": (lambda s, r: si.generate(s, TEXT, hide_the_sink=True), "and edits"),
    "axes of a view": (lambda s, r: si.view(s, TEXT, ax=1), "si.attention_map(model, text) is a plotly figure"),
    "a cell as a column": (lambda s, r: si.norms(s, TEXT).table["key"], "table.where(quantity='key')"),
    "an array in a table": (lambda s, r: r.heads()[:, 0], "table['COLUMN']"),
    "a threshold of massive": (lambda s, r: si.massive_activations(s, TEXT, threshold=50), "for row in table if"),
    "a model to train": (lambda s, r: si.train(s.model, TEXTS, steps=2), 'si.train("sigmoid", steps=100)'),
    "half a swap": (lambda s, r: si.SwapPositions(1), "it takes first, second"),
    "a report of a model": (lambda s, r: si.Report(s), "si.measure(model, tokens) makes a report"),
    "an attribute of no edited model": (lambda s, r: si.patched(s, si.SwapPositions(0, 1)).nothing, "with si.patched("),
    "sinks of a report": (lambda s, r: si.sinks(r), "report.sink()"),
    "all layers": (lambda s, r: si.attention_map(s, TEXT, layers="every"), "whole numbers"),
    "angles of the first token": (lambda s, r: s.first_token(TEXT), "qk_cosines"),
    "no prompts": (lambda s, r: app(["patch", NAME]), f"patch {NAME} --clean"),
    "a flag in place of a file": (lambda s, r: app(["measure", NAME, "--save"]), "such as --save sinks.csv"),
    "a model in place of a command": (lambda s, r: app(["gpt2"]), "sinkinterp measure gpt2"),
    "two models": (lambda s, r: app(["view", NAME, "a/b", "--text", "x"]), f"sinkinterp compare {NAME}"),
    "two models to patch": (lambda s, r: si.patch(NAME, NAME, NAME), "two texts of one model"),
    "a layer of attention": (lambda s, r: s.attention(TEXT, layer=9), "choose from 0, 1, 2"),
}


def test_a_name_of_any_module_of_ours_is_found():
    from sinkinterp.attention.kernels import Sigmoid
    from sinkinterp.measurement.lens import logit_parts

    assert si.Sigmoid is Sigmoid and si.logit_parts is logit_parts


@pytest.mark.parametrize("what", SAID)
def test_a_wrong_name_is_answered_with_the_right_one_in_one_line(what, subject, report, capsys):
    call, fix = SAID[what]
    with pytest.raises((InputError, AttributeError, SystemExit)) as error:
        call(subject, report)
    said = str(error.value) if error.type is not SystemExit else " ".join(capsys.readouterr().err.split())
    assert fix in said and "\n" not in said and "object has no" not in said


def test_a_string_is_a_file_if_that_exists_and_a_text_otherwise(subject, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("\n\n".join(TEXTS))
    Path("rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    expected = si.measure(subject, TEXTS)
    for given in ("notes.txt", Path("notes.txt"), tmp_path / "notes.txt", "rows.jsonl"):
        measured = si.measure(subject, given)
        assert measured.alpha().equal(expected.alpha()) and measured.protocol.source == Path(given).name
    assert si.measure(subject, "hello").protocol.source == "text in memory"


def test_a_text_of_fewer_than_two_tokens_is_left_out_and_counted(subject):
    token_set = subject.tokens(["", TEXT, ""])
    assert len(token_set.tokens) == 1 and token_set.too_short == 2
    assert "2 texts too short" in si.measure(subject, ["", TEXT, ""]).protocol.line()


def test_a_chat_is_measured_in_the_template_of_the_tokenizer(tmp_path):
    tokenizer = words("user", "the", "cat", "sat")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    chat = [{"role": "user", "content": "the cat"}]
    chatty = si.load(model_of("gpt2"), tokenizer=tokenizer)
    for given in (chat, [chat]):
        report = si.measure(chatty, given)
        assert report.tokens.tolist() == [[1, 2, 3]] and report.protocol.bos == "chat template"
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    for said in ("the cat", str(tmp_path / "chats.jsonl")):
        token_set = Inputs(64, 100, chat=said, may_be_fewer=True).token_set(chatty, "chatty")
        assert token_set.tokens.tolist() == [[1, 2, 3]] and token_set.bos == "chat template"


def test_without_a_text_the_default_text_is_measured(subject):
    protocol = si.measure(subject, positions=0).protocol
    assert (protocol.source, protocol.sequences, protocol.length) == ("embedded docstrings", 100, 64)


def test_a_read_is_found_by_its_name(subject, report):
    assert len(report) == len(TEXTS) and float(report.sink()) == report.sink().mean
    assert subject.run([TEXT]).logits.equal(subject.run(TEXT, edits=()).logits)
    assert report["importance"] is report.importance and report["loss"] is report.extra("loss")
    assert list(report.heads()) == list(report.heads().rows)
    assert list(report.heads(top=2)) == list(report.heads())[:2]
    assert subject.run(TEXT).logits.equal(subject.run(subject.tokens(TEXT).tokens).logits)
    with si.patched(subject.model, [si.SwapPositions(0, 1), si.SwapPositions(0, 2)]) as model:
        assert model is subject.model


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("half", torch.float16), ("fp32", torch.float32)]
)
def test_a_dtype_has_its_short_name_and_a_model_says_where_it_lies(name, dtype):
    loaded = si.load(NAME, dtype=name)
    assert loaded.dtype is dtype is si.load(NAME, torch_dtype=name, device="cpu").dtype
    assert loaded.folder == SHIPPED / "text-softmax"
    assert si.load(model_of("gpt2")).folder is None


@pytest.mark.parametrize("typed", ["table7", "table-7", "Table 7", "tab07", "table07", "7"])
def test_the_number_of_a_table_is_enough(typed):
    assert full_name(typed) == "table07_position_swap"


def test_what_the_user_names_is_measured_at_its_own_length_where_no_length_is_asked_for(subject, tmp_path):
    (tmp_path / "ids.json").write_text("[1, 5, 7, 9, 11]")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    defaults = {"may_be_shorter": True, "may_be_fewer": True}
    ids = Inputs(64, 100, tokens=tmp_path / "ids.json", **defaults).token_set(subject, NAME)
    assert ids.tokens.tolist() == [[1, 5, 7, 9, 11]]
    named = {"text": str(tmp_path / "rows.jsonl")}
    texts = Inputs(64, 100, **named, **defaults).token_set(subject, NAME)
    assert texts.tokens.equal(subject.tokens(TEXTS).tokens) and texts.source == "rows.jsonl"
    assert Inputs(11, 100, **named, may_be_fewer=True).token_set(subject, NAME).tokens.shape == (3, 11)
    for asked in ({}, {"may_be_shorter": True}):
        refused(partial(Inputs(64, 100, **named, **asked).token_set, subject, NAME), "100")


def test_tab_completion_lists_the_public_names_and_the_submodules():
    names = dir(si)
    assert {*si.__all__, "report", "interventions", "measurement", "metrics", "train"} <= set(names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]


def test_help_shows_no_lambdas_and_no_objects():
    for name in si.__all__:
        thing = getattr(si, name)
        if callable(thing):
            signature = str(inspect.signature(thing))
            assert "<function" not in signature and " object at " not in signature, signature
    assert inspect.getdoc(si.Report).splitlines()[0].endswith(".")


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("wanted", [True, False])
def test_a_bar_is_shown_in_a_terminal_unless_it_is_unwanted(wanted, subject, monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    si.measure(subject, TEXTS, progress=wanted)
    assert (f"measuring {NAME}" in terminal.getvalue()) is wanted


def test_the_first_lines_of_the_package_run(subject):
    lines = [line for line in si.__doc__.splitlines() if line.startswith(("report", "moved"))]
    assert lines and Path(si.__file__).is_file()
    names = {"si": si, "text": TEXT}
    for line in lines:
        exec(line.replace('"gpt2"', repr(NAME)), names)


@pytest.mark.parametrize("given", ["essay.md\n", ["essay.txt"], ["a text of words", "essay.md"]])
def test_names_of_files_are_not_measured_as_texts(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("essay.txt", "essay.md"):
        (tmp_path / name).write_text("what the file holds")
    subject = si.load("sinkinterp/repeats-softmax")
    refused(lambda: subject.tokens(given))
    refused(lambda: si.measure(subject, ["another text", *([given] if isinstance(given, str) else given)]))


def test_a_table_of_one_text_does_not_claim_intervals():
    subject, tokens = si.load("sinkinterp/repeats-softmax"), torch.arange(2, 15)[None]
    report = si.measure(subject, tokens, progress=False)
    notes = [
        si.sinks(subject.run(tokens, reads={"p": lambda call: call.pattern()})["p"][:, 0]).note,
        si.sweep(subject, tokens, [si.SwapPositions(0, 4)]).note,
        si.explain(subject, tokens, head=(2, 0), progress=False).note,
        si.applications.eviction.heads_table(subject, tokens, 5).note,
        si.report.compare.sinks_by_domain({"one": report, "two": report}).note,
        si.report.compare.sinks_by_length([report]).note,
    ]
    assert [note for note in notes if "95%" in note or "no intervals" not in note] == []


def test_a_function_of_a_model_is_a_method_of_a_subject_and_a_word_means_an_attribute(
    subject, report, tmp_path, monkeypatch
):
    monkeypatch.setattr("sinkinterp.runs.case.OUR_SEQUENCES", 7)
    assert subject.measure(TEXTS).alpha().equal(report.alpha()) and str(subject.sinks(TEXT)) == str(
        si.sinks(subject, TEXT)
    )
    assert subject.plot_attention(TEXT) == si.attention_map(subject, TEXT)
    for rate in (si.sink_rate(report), si.sink_rate(subject, TEXTS), subject.sink_rate(text=TEXTS, eps=0.3, k=1)):
        assert rate == report.sink().mean and rate.per_head.equal((report.alpha() > 0.3).float().mean(0))
    assert (subject.n_heads, subject.vocab) == (subject.shape.n_heads, subject.shape.vocab)
    assert report.length == report.T == report.protocol.length and report.model == NAME
    assert si.attention_map(subject, TEXT).savefig(tmp_path / "a.html").is_file()
    report.to_csv(tmp_path / "a.csv")
    report.to_json(tmp_path / "a.json")
    assert len(report.df()) == len(pandas.read_csv(tmp_path / "a.csv"))
    assert si.read(tmp_path / "a.json").alpha().equal(report.alpha())
    assert repr(report.save) == "report.save is a method; write report.save(...)"
    assert si.Ablate is si.interventions.Ablate and si.table7(NAME).title.startswith("Table 7 on")


def test_the_words_of_an_option_are_those_of_an_argument(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in ("--model {} --prompt 'The cat sat.' -o a.csv", "{} --prompts='The cat sat.' --csv b.csv --eps .3"):
        result = CliRunner().invoke(app, f"run {line.format(NAME)} --first-only")
        assert result.exit_code == 0, result.output
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    given = CliRunner().invoke(app, ["measure", NAME, "The cat sat.", "--save", "c.csv", "--first-only"])
    assert given.exit_code == 0 and Path("c.csv").read_bytes() == Path("a.csv").read_bytes()
    assert get_command(app).commands["measure"]._meant(["--text", "", "--", "-o"]) == ["--text", "", "--", "-o"]
    for command in get_command(app).commands.values():
        for options in (param.opts for param in command.params if param.param_type_name == "option"):
            for words in (words for words in ARGUMENTS if options[0].lstrip("-") in words):
                own = {name.lstrip("-") for param in command.params for name in param.opts}
                alike = [word for word in words if not own & {*words} - {options[0].lstrip("-")}]
                meant = [command._meant(["m", f"--{word}=x"]) for word in alike if (command.name, word) not in _OTHERS]
                assert all(words[1].split("=")[0] == options[0] and "x" in words[-1] for words in meant), meant


EDITS = [name for name, kind in vars(si.interventions).items() if isinstance(kind, type) and issubclass(kind, Edit)]


def test_an_edit_in_small_letters_edits_the_model_or_measures_it_edited(subject):
    swapped = si.SwapPositions(0, 4)
    expected = si.measure(subject, TEXTS, edits=swapped)
    assert expected.protocol.edits == ("SwapPositions(0, 4)",) and si.swap_positions(0, 4) == swapped
    for given in (subject, NAME):
        assert si.swap_positions(given, TEXTS, 0, 4).alpha().equal(expected.alpha())
        assert si.intervene(given, TEXTS, "swap_positions(0, 4)").alpha().equal(expected.alpha())
    for block in (si.swap_positions(subject, 0, 4), si.edit(subject.model, swapped), si.patched(subject, swapped)):
        with block:
            assert si.measure(subject, TEXTS).alpha().equal(expected.alpha())
            both = si.measure(subject.model, TEXTS, edits=si.SwapPositions(1, 2))
            assert both.protocol.edits == ("SwapPositions(0, 4)", "SwapPositions(1, 2)")
            weights, norms = si.attention(subject, TEXT), si.key_norms(subject, TEXTS)
        assert weights.equal(si.attention(subject, TEXT, edits=swapped))
        assert norms.equal(si.key_norms(subject, TEXTS, edits=swapped))
    assert si.measure(subject, TEXTS).protocol.edits == ()


def test_a_position_is_not_lost_where_an_edit_has_positions(subject):
    expected = si.measure(subject, TEXT, edits=si.Ablate(site="mlp", layers=[0], positions=[0]))
    assert si.ablate(subject, TEXT, what="mlp", layer=0, position=0).protocol == expected.protocol


TAKES_A_MODEL = {
    "a report": lambda model, **how: si.measure(model, TEXTS, **how).alpha().tolist(),
    "scores": lambda model, edits=(): si.sink_scores(si.edit(model, edits) if edits else model, TEXTS).tolist(),
    "weights": lambda model, **how: si.attention(model, TEXT, **how).tolist(),
    "a table": lambda model, **how: [*si.heads(model, TEXTS, **how)],
    "a map": lambda model, **how: str(si.attention_map(model, TEXT, layers=1, **how).data),
}


@pytest.mark.parametrize("takes", TAKES_A_MODEL)
def test_an_edited_model_is_a_model_wherever_one_is_taken(takes, subject):
    call, swap, clip = TAKES_A_MODEL[takes], si.SwapPositions(0, 4), si.interventions.Temperature(2.0)
    edited = si.patched(subject, swap)
    assert call(edited) == call(subject, edits=swap) != call(subject)
    assert call(si.edit(edited, clip)) == call(subject, edits=[swap, clip]) == call(edited, edits=clip)
    assert call(subject) == call(si.load(NAME))


def test_an_edited_model_computes_inside_its_block(subject):
    model, swap = AutoModelForCausalLM.from_pretrained(SHIPPED / "text-softmax"), si.SwapPositions(0, 4)
    edited, ids = si.patched(model, swap), subject.ids_of(TEXT)
    with edited, torch.no_grad():
        logits, written = model(ids).logits, model.generate(ids, max_new_tokens=3)
        rate = si.sink_rate(model, TEXTS, tokenizer=subject.tokenizer)
    assert edited.forward(ids).logits.equal(logits) and edited.generate(ids, max_new_tokens=3).equal(written)
    assert si.sink_rate(edited, TEXTS) == rate == si.sink_rate(si.measure(model, TEXTS, edits=swap))
    assert edited.config is model.config and one_line(repr(edited)) and "SwapPositions(0, 4)" in repr(edited)
    twice = si.intervene(model, TEXTS, swap, si.interventions.Temperature(2.0)).protocol.edits
    assert twice == si.intervene(model, TEXTS, [swap, si.interventions.Temperature(2.0)]).protocol.edits
    assert repr(si.intervene(model, swap, swap)) == repr(si.patched(edited, swap))


@pytest.mark.parametrize("name", [name for name in EDITS if len(re.findall("[A-Z]", name)) > 1])
def test_a_model_is_not_taken_for_a_field_of_an_edit(name, subject):
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    try:
        assert not isinstance(getattr(si, word)(subject), Edit)
    except (InputError, AttributeError, TypeError) as error:
        assert "\n" not in str(error)  # an edit that needs more, or a word that the table answers


def test_how_a_model_is_loaded_and_its_text_read_may_be_said_beside_them(subject, tmp_path):
    expected = si.measure(si.load(NAME, dtype="bf16"), subject.tokens(TEXTS, bos="never"))
    given = {"torch_dtype": "bf16", "prepend_bos": False, "backend": "huggingface"}
    assert si.measure(NAME, TEXTS, **given).alpha().equal(expected.alpha())
    assert si.measure(NAME, TEXTS, dtype="bf16", bos="never", device="cpu").protocol == expected.protocol
    heads = si.heads(NAME, TEXTS, **given, save=tmp_path / "heads.csv")
    assert {row["alpha_1"] for row in heads} == {row["alpha_1"] for row in expected.heads()}
    assert len(pandas.read_csv(tmp_path / "heads.csv")) == len(expected.heads())
    assert si.view(subject, TEXT, length=5, open_browser=False).html.count("onto") == 0
    assert si.measure(subject, TEXTS, length=7).protocol.length == 7
    assert si.measure(subject, prepend_bos=False).protocol.bos == "never (none)"
    refused(lambda: si.measure(subject, TEXT, save="sinks.nope"))


def test_a_page_is_shown_by_the_browser(subject, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = si.view(subject, TEXT, layers=1)
    page.show()
    assert len(opened) == 2 and all(Path(address.removeprefix("file://")).is_file() for address in opened)


def test_models_and_reports_are_compared(subject, report):
    other = "sinkinterp/text-sigmoid" if (SHIPPED / "text-sigmoid").is_dir() else NAME
    expected = str(si.compare(si.measure(subject, TEXTS), si.measure(other, TEXTS)))
    assert str(si.compare(subject, other, TEXTS)) == str(subject.compare(other, TEXTS).summary()) == expected
    assert si.compare([subject, other], TEXTS).df["sink_rate"].tolist()[0] == report.sink_rate()


def test_a_method_of_a_value_stands_for_its_answer(report):
    rate = report.sink_rate()
    assert repr(report.sink_rate) == repr(rate) == repr(report["sink_rate"]) and float(report.sink_rate) == rate
    assert f"{report.sink_rate:.3f}" == f"{rate:.3f}" and report.sink_rate > 0 and 1 - report.sink_rate == 1 - rate
    assert report.sink_rate == copy.copy(report).sink_rate and report.sink_rate - report.sink_rate == 0.0
    assert [*report.heads] == [*report.heads()] and report.sink_rate != report.heads and {report.sink_rate}
    assert str(report.heads) == str(report.heads()) and report.heads[0] == report.heads()[0]
    assert report.heads.columns == report.heads().columns and report.summary.sentence == report.summary().sentence
    assert float(pandas.DataFrame({"a": report.sink_rate}, index=[0]).loc[0, "a"]) == rate


def test_layers_and_heads_of_attention_are_chosen_as_of_an_array(subject):
    weights = subject.attention([TEXT])
    assert subject.attention(TEXT).equal(weights[0]) and subject.hidden_states(TEXT).equal(
        subject.hidden_states([TEXT])[:, 0]
    )
    assert si.attention(subject, TEXT, layer=1).equal(weights[0, 1])
    assert si.attention(subject, [TEXT], layers=[2, 0], head=0).equal(weights[:, [2, 0], 0])
    assert si.activations(subject, TEXT, layers=[1]).keys() == {1}
    ids = subject.tokens(TEXT).tokens
    for given in (TEXT, ids, [TEXT, TEXT]):
        assert si.activations(subject, given, layers=[1])[1].shape[-2] == ids.shape[1]
    refused(lambda: si.activations(subject, [TEXT, TEXT + TEXT], layers=[1]), "of one length")
    refused(lambda: si.attention(subject, TEXT, layers=9))


def test_a_variant_is_trained_by_its_name_with_settings(tmp_path):
    run = si.train("sigmoid", steps=2, n_layers=1, batch=4, seed=3, cache=tmp_path)
    assert (run.recipe.steps, run.recipe.model.n_layers, run.recipe.seed) == (2, 1, 3)
    assert si.trained(run.recipe, cache=tmp_path).folder == run.folder
    assert si.train(attention="sigmoid", max_steps=2, n_layers=1, batch_size=4, seed=3, cache=tmp_path) == run
    refused(lambda: si.train("sigmoid", stepz=2, cache=tmp_path), "stepz")


def test_a_run_is_a_model_and_answers_for_what_trainers_call_its_parts(tmp_path):
    run, ids = si.train(steps=2, batch=4, cache=tmp_path), torch.arange(2, 14)[None]
    expected = si.measure(run.subject(), ids)
    assert si.sink_rate(run, ids) == run.sink_rate(ids) == si.sink_rate(expected) and run.measure(ids).alpha().equal(
        expected.alpha()
    )
    assert isinstance(run.net, torch.nn.Module) and one_line(repr(run)) and run.out_dir == run.folder
    assert run.history[-1] == run.history()[-1] and [*run.history] == [*run.history()]
    assert run.history.plot(x="step", y="sink_rate").data and si.load(run.save(tmp_path / "a")).folder == tmp_path / "a"
    assert len(si.compare(run, run, ids)) and run.recipe.model == described("softmax", {}).model
    assert si.TrainConfig("kv_bias", attention="sigmoid") == si.TrainConfig("sigmoid", kv_bias=True)
    assert si.TrainConfig(kv_bias="k") == si.TrainConfig("k_bias")
    twin = "sinkinterp/text-sigmoid"
    cut = si.activation_patching(NAME, twin, ["The cat sat", "The cat sat on the mat"], layers=0)
    assert len(cut) == len(si.activation_patching(NAME, twin, "The cat sat", layers=0))


@pytest.mark.parametrize("words", [words for words in ARGUMENTS if {*words} & {*SETTINGS}], ids=" ".join)
def test_words_for_one_setting_of_a_training_mean_it(words):
    name, value = next((word, SETTINGS[word]) for word in words if word in SETTINGS)
    expected = described("softmax", {name: value})
    assert expected != described("softmax", {}) and {described("softmax", {word: value}) for word in words} == {
        expected
    }


def test_options_that_are_settings_or_edits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meant = get_command(app).commands["train"]._meant(["--attention", "sigmoid", "--steps", "5", "--lr=.1"])
    assert meant == ["sigmoid", "--set", "steps=5", "--set", "lr=.1"]
    line = ["intervene", NAME, "--text", "The cat sat.", "--first-only", "-o", "a.json"]
    for edited in (["--remove-column"], ["--edit", "RemoveColumn"], ["--intervention=remove_column()"]):
        result = CliRunner().invoke(app, [*line, *edited])
        assert result.exit_code == 0 and f"{NAME} with RemoveColumn(" in result.output, result.output
        assert si.read("a.json").protocol.edits == ("RemoveColumn(Renormalised())",)


def test_a_quantity_of_a_report_is_a_function_of_a_model_and_a_text(subject, report, tmp_path):
    views = {"massive_activations": "massive", "sinks_by_head": "sinks"}
    for word, view in views.items():
        table, drawn = getattr(si, word)(subject, TEXTS), report.plot(view, token_text=subject.label)
        assert table.plot().savefig(tmp_path / f"{view}.html").is_file()
        assert len(table) and table.plot().data == drawn.data == getattr(si, f"plot_{word}")(NAME, TEXTS).data
    top = sorted(si.heads(subject, TEXT), key=lambda row: row["alpha_1"], reverse=True)[:2]
    assert list(si.heads(subject, TEXT, top_k=2)) == top == list(subject.heads(TEXT).top(2))
    refused(lambda: si.heads(subject, TEXT, layer=9), "leave layers=... out")


def test_a_number_of_each_token_is_a_tensor_that_knows_its_axes(subject, report):
    norms, maps = subject.norms(TEXTS), report.extras
    assert norms.keys.equal(si.key_norms(subject, TEXTS)) and norms.values.equal(subject.value_norms(TEXTS))
    assert norms.keys.equal(report.key_norms.nanmean(0)) and norms.residuals[:, 0].equal(
        si.hidden_norms(subject, TEXTS, position=0)
    )
    cosines = si.qk_cosines(subject, TEXTS, layer=1, head=0)
    first = maps["cosine_maps"][:, 1, 0, :, 0].nanmean(0)
    torch.testing.assert_close(cosines, first, equal_nan=True)
    torch.testing.assert_close(
        si.qk_angles(subject, TEXTS)[1, 0], first.acos().rad2deg(), equal_nan=True, atol=1, rtol=0
    )
    states = si.hidden_states(subject, [TEXT])
    assert states.shape[:2] == (4, 1) and si.first_token_hidden_states(subject, [TEXT]).equal(states[:, :, 0])
    torch.testing.assert_close(states.norm(dim=-1)[:, 0], si.measure(subject, TEXT).residual_norms[0])
    frame = si.sink_scores(subject, TEXTS).to_pandas()
    assert frame.pivot(index="layer", columns="head", values="score").to_numpy().tolist() == pytest.approx(
        report.alpha().mean(0).numpy()
    )
    assert si.key_norms(subject, TEXTS, layer=-1, head=0, position=2) == report.key_norms[:, -1, 0, 2].mean()
    refused(lambda: si.key_norms(subject, TEXT, layer=9), "choose from 0, 1, 2")


def test_a_rate_is_a_number_with_the_table_of_its_heads(subject, report, tmp_path):
    rate = subject.sink_rate(TEXTS, position=1)
    expected = (report.alpha(1) > 0.3).float()
    assert f"{rate:.3f}" == f"{expected.mean():.3f}" and rate == subject.sink_rate(TEXTS, k=2) == rate.item()
    for by, axes in {"sequence": (1, 2), "layer": (0, 2), "head": (0,)}.items():
        assert si.sink_rate(subject, TEXTS, position=1, by=by).equal(expected.mean(axes))
    assert si.sink_rate(subject, TEXTS, k=2, per_head=True).df["rate"].mean() == pytest.approx(rate)
    assert rate.save(tmp_path / "a.csv").is_file() and rate.plot().data and rate.top(1)[0]["alpha_2"] <= 1
    assert si.sink_rate(subject, TEXTS, layer=1, head=0, num_samples=2) == 1
    refused(lambda: si.sink_rate(report, edits="sigmoid"), "give the model")
    for wrong in ("shape", "tolist", "nothing"):
        with pytest.raises(AttributeError, match=r"per_sequence, rate\.per_layer and rate\.per_head"):
            getattr(rate, wrong)


@pytest.mark.parametrize("name", ["groupby", "sort_values", "nlargest", "describe", "iloc", "pivot", "query"])
def test_a_table_has_what_a_frame_of_it_has(report, name):
    assert callable(getattr(report.heads(), name)) and getattr(report.heads().df, name)


def test_columns_answer_to_the_words_that_people_use(report):
    heads = report.heads()
    frame = heads.to_pandas()
    assert list(frame["score"]) == list(frame.alpha_1) == heads["importance"] == heads["alpha_1"]
    assert list(frame["sink rate"]) == list(frame.sink_rate) == heads.sink_rate == heads["sink rate"]
    with pytest.raises(KeyError, match="the columns are layer, head, alpha_1"):
        _ = frame["no such"]


EDITED = {  # a way to name an edited model, and the edit that it makes
    "a method": (lambda s: s.swap_pos_embed(0, 4), si.SwapPositions(0, 4)),
    "words": (lambda s: s.swap_positions(src=0, dst=4), si.SwapPositions(0, 4)),
    "a word of edit": (lambda s: s.edit(normalization="sigmoid"), "sigmoid"),
    "softmax1": (lambda s: si.replace_softmax(s, "softmax_off_by_one"), si.interventions.AddSinkLogit()),
    "a function": (lambda s: s.replace_softmax(lambda x: x.sigmoid()), "sigmoid"),
    "hooks": (lambda s: s.hooks(fwd_hooks=[si.swap_positions(0, 4)]), si.SwapPositions(0, 4)),
    "edits": (lambda s: s.edit(si.edits.ablate_heads([(1, 0)])), si.Ablate(heads=[(1, 0)])),
}


@pytest.mark.parametrize("way", EDITED)
def test_an_edited_model_has_the_methods_of_the_model_and_answers_as_edited(subject, way):
    made, edit = EDITED[way]
    expected = si.sink_scores(subject, TEXTS, edits=edit)
    assert not expected.equal(si.sink_scores(subject, TEXTS))
    edited = made(subject)
    torch.testing.assert_close(edited.sink_scores(TEXTS), expected)
    torch.testing.assert_close(edited.measure(TEXTS).alpha().mean(0), expected.as_subclass(torch.Tensor))
    with made(subject) as model:
        torch.testing.assert_close(si.sink_scores(model, TEXTS), expected)


def test_hooks_by_their_names_are_seen_by_measurements_in_their_block(subject):
    hook = ("blocks.1.attn.hook_z", lambda z, hook: 0 * z)
    with subject.hooks([hook]):
        inside, logits = subject.sink_scores(TEXT), subject.run_with_cache(TEXT)[0]
    assert inside.equal(subject.sink_scores(TEXT, edits=[hook])) and not inside.equal(subject.sink_scores(TEXT))
    torch.testing.assert_close(logits, subject.run(TEXT, edits=[hook]).logits, atol=1e-4, rtol=1e-4)


def test_an_edited_model_that_nothing_uses_says_that_the_model_is_not_changed(subject, caplog):
    si.swap_positional_embeddings(subject, 0, 5)
    assert "model = si.edit(model, si.interventions.SwapPositions(0, 5))" in caplog.text


COMPARED = {  # what is compared, and the names of its rows; None: what changed
    "two models": (lambda s, t: si.compare(s, t, TEXTS), None),
    "two texts": (lambda s, t: si.compare(s, *TEXTS[:2]), None),
    "an edited model": (lambda s, t: si.compare(s, s.edit("sigmoid"), TEXTS), None),
    "names": (lambda s, t: si.compare([s, t], TEXTS, names=["a", "b"]), ["a", "b"]),
    "a mapping": (lambda s, t: si.compare({"a": s, "b": t}, TEXTS, eps=0.3), ["a", "b"]),
    "three": (lambda s, t: si.compare([s, t, t], TEXT), [NAME, *(f"sinkinterp/text-sigmoid {i}" for i in (2, 3))]),
}


@pytest.mark.parametrize("what", COMPARED)
def test_models_and_texts_are_compared(subject, what):
    call, names = COMPARED[what]
    table = call(subject, si.load("sinkinterp/text-sigmoid"))
    assert table.plot().data and (table["quantity"] if names is None else table["model"] == names)


def test_a_recipe_of_words_is_what_train_makes_of_them(subject, tmp_path):
    words = {"n_layer": 1, "batch_size": 4, "max_steps": 2}
    recipe = si.TrainConfig(attention="softmax", kv_bias=True, **words)
    assert recipe == si.train("kv_bias", cache=tmp_path, **words).recipe and recipe == si.TrainConfig(
        "kv_bias", **words
    )
    watch = si.callbacks.SinkRateCallback(subject.tokenizer, TEXTS, every_n_steps=2, most=1)
    assert [watch(subject.model, step) is not None for step in range(4)] == [True, False, True, False]
    assert watch.df["step"].tolist() == [0, 2] and "sigmoid" in si.list_variants() and si.variants["sigmoid"]


def test_a_method_of_a_subject_is_a_function_that_takes_the_model_first(subject):
    assert si.get_attention(NAME, TEXT).equal(subject.attention(TEXT))
    pattern = si.run_with_cache(NAME, TEXT)[1]["pattern", 0]
    torch.testing.assert_close(pattern, subject.attention([TEXT])[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("verb", ["get", "compute", "calculate", "calc", "measure", "run", "make", "do"])
def test_verbs_and_plurals_do_not_change_what_a_word_means(verb):
    assert getattr(si, f"{verb}_sink_rate") is si.sink_rate is getattr(si, f"{verb}_sink_rates")
    assert getattr(si, f"{verb}_zero_key_biases")() == si.interventions.ZeroKeyBias()
    assert si.draw_norms is si.show_norms is si.plot_norms


@pytest.mark.parametrize("name", [name for name in si.interventions.__all__ if len(re.findall("[A-Z]", name)) > 1])
def test_the_name_of_an_edit_in_small_letters_is_answered(name):
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    assert hasattr(si, word) or "si." in str(refused_name(word)), word


def refused_name(word):
    with pytest.raises(AttributeError) as error:
        getattr(si, word)
    return error.value


def test_words_for_arguments_are_not_words_for_commands():
    for word in {word for words in ARGUMENTS for word in words} - {*get_command(app).commands}:
        said = " ".join(CliRunner().invoke(app, [word]).output.split())
        assert command_of(word) != word or f"no such command '{word}'" in said, word


PLAIN = [word for words in guesses()["instead"] for word in words.split() if word.isidentifier() and "_" in word]


def test_a_word_that_says_more_than_one_of_the_table_is_answered_too():
    words = [f"my_{word}" if i % 2 else f"{word}_quickly" for i, word in enumerate(PLAIN)]
    lost = [word for word in words if not hasattr(si, word) and str(refused_name(word)).endswith(repr(word))]
    assert not lost and len(PLAIN) > 60


@pytest.mark.parametrize("word", ["swap_positions", "zero_key_bias", "remove_column"])
def test_an_edit_written_as_an_argument_is_answered_with_the_edit(word, subject):
    refused(lambda: si.measure(subject, TEXT, **{word: True}), f"edits='{word}'")
    assert (
        si.measure(subject, TEXT, edits="swap_positions(0, 2)")
        .alpha()
        .equal(si.measure(subject, TEXT, edits=si.SwapPositions(0, 2)).alpha())
    )
    assert si.measure(subject, TEXT, edits="sigmoid").protocol.edits == ("PatchNormalization(Sigmoid(1.0))",)


@pytest.mark.parametrize("name", ["gemma3-270m", NAME])
def test_the_name_of_a_model_is_no_text(subject, name):
    refused(lambda: si.measure(subject, name), name, "name of a model")
    said = CliRunner().invoke(app, ["measure", NAME, "--text", name])
    assert said.exit_code == 2 and "name of a model" in said.output


def test_weights_that_someone_holds_have_the_sink_rate_of_their_table(subject):
    cache = subject.run_with_cache(TEXT)[1]
    rate = si.sink_rate(cache, epsilon=0.4)
    assert rate == pytest.approx(si.sinks(cache, epsilon=0.4)[0]["Sink_1"])
    assert rate == pytest.approx(si.sink_rate(subject, TEXT, epsilon=0.4))
    stacked = si.attention(subject, TEXT)  # layer head query key
    torch.testing.assert_close(si.sink_scores(stacked), si.sink_scores(subject, TEXT).as_subclass(torch.Tensor))


def test_what_a_tokenizer_returned_text_by_text_is_read_as_the_texts(subject, report):
    encoded = [subject.tokenizer(text) for text in TEXTS]
    assert si.measure(subject, encoded).tokens.equal(report.tokens)


def test_a_model_that_transformer_lens_cannot_run_generates_by_itself():
    twin = si.load("sinkinterp/repeats-sigmoid")
    ids = twin.ids_of("a b a b")
    written = twin.model.generate(ids, max_new_tokens=3)[0]
    assert twin.generate("a b a b", max_new_tokens=3) == twin.tokenizer.decode(written, skip_special_tokens=True)
    assert twin.generate(input="a b a b", max_new_tokens=3) == twin.generate("a b a b", max_new_tokens=3)
    refused(lambda: twin.generate("a b a b", hide_the_sink=True), "hide_the_sink")
    refused(lambda: twin.generate(max_new_tokens=3), "text")
    twin.model.to("meta")
    refused(lambda: twin.generate("a b a b"), "not in memory")


def test_to_ask_for_an_attribute_looks_for_no_words(subject, report, monkeypatch):
    things = [subject, report, report.heads(), si.metrics]
    errors = []
    for thing in things:
        with pytest.raises(AttributeError) as error:
            _ = thing.sink_ratio_of_nobody
        errors.append(error.value)
    assert [str(pickle.loads(pickle.dumps(error))) for error in errors] == [*map(str, errors)]
    for name in ("fix_of", "nearest"):
        monkeypatch.setattr(si.guesses, name, None)
    assert not any(hasattr(thing, "sink_ratio_of_nobody") for thing in things)


def test_the_mean_of_a_frame_s_sink_rates_is_the_rate_of_its_rows(report):
    frame = report.to_dataframe()
    of_layers = (report.alpha() > 0.3).float().mean((0, 2)).tolist()
    assert frame.groupby("layer")["sink_rate"].mean().tolist() == pytest.approx(of_layers)
    assert frame["sink_rate"].mean() == pytest.approx(report.sink_rate()) and frame.sink_rate.count() < len(frame)


def test_a_column_is_an_attribute_of_its_table(report):
    heads = report.heads()
    assert heads.layer == heads["layer"] and copy.deepcopy(heads) == heads
    with pytest.raises(AttributeError, match="no_such"):
        _ = heads.no_such


FIXES = {word: fix for words, fix in guesses()["instead"].items() for word in words.split()}
GUESSES = {word: fix for word, fix in FIXES.items() if word[0] != "-" and ":-" not in word}


def answered(place, name, things):
    """What is said of a word: a command, an attribute of an object or of the package, or an argument; None of ours."""
    if place == "sinkinterp":
        return " ".join(CliRunner().invoke(app, [name]).output.split())
    is_argument, thing = bool(place) and place not in things, things.get(place, si)
    if not is_argument and hasattr(thing, name):
        return None
    owners = [si] if place in si.__all__ else [things["report"], things["subject"], si]
    function = is_argument and next(getattr(owner, place) for owner in owners if hasattr(owner, place))
    with pytest.raises((InputError, AttributeError)) as error:
        function(**{name: 1}) if is_argument else getattr(thing, name)
    return str(error.value)


def test_every_word_of_the_table_of_guesses_is_answered_at_its_place_in_one_line(subject, report, tmp_path):
    page = si.view(subject, TEXT, open_browser=False)
    things = {"subject": subject, "report": report, "table": report.heads(), "page": page}
    things |= {"figure": si.attention_map(subject, TEXT), "run": si.train(steps=2, batch=4, cache=tmp_path)}
    things |= {"plots": si.plots}
    of_values = ("heads:", "column:", "similarity:", "objective:", "degrees:", "cosine:", "data:", "settings:")
    of_values += ("view:tokens", "view:str_tokens", "recipe:")  # see SAID
    words = [word for word in GUESSES if word[-1] not in ":)" and not word.startswith(of_values)]
    said = {word: answered(*word.rpartition(":")[::2], things) for word in words}
    wrong = {word: line for word, line in said.items() if line and (GUESSES[word] not in line or "\n" in line)}
    assert not wrong and sum(line is not None for line in said.values()) > 180


def test_what_the_table_of_guesses_says_to_write_exists():
    for path in {path for fix in guesses()["instead"].values() for path in re.findall(r"\bsi((?:\.\w+)+)", fix)}:
        attrgetter(path[1:])(si)
    for words, meant in guesses()["same"].items():
        for word in [word for word in words.split() if ":" not in word]:
            assert getattr(si, word) is getattr(si, meant) if "." not in meant else hasattr(si, word)
    assert si.HookedTransformer.from_pretrained is si.load


TYPED = {  # what is tried first, and the line that its answer says to type
    "a trace": (lambda s: s.run(TEXT).attentions, "si.attention(model, text)"),
    "a function of a function": (lambda s: si.reproduce.list(), "si.list_experiments()"),
    "a function inside of ours": (lambda s: si.norm_ratio(s, TEXT), "si.hidden_norms(model, text)"),
    "a vector": (lambda s: si.massive_activations(torch.zeros(8)), "si.massive_activations(model, text)"),
    "a part of a rate": (lambda s: si.sink_rate(s, TEXT, reduce="none"), "si.sink_rate(model, text, by='layer')"),
    "channels of blocks": (
        lambda s: si.massive_activations(s, TEXT)["channel"],
        "si.massive_activations(model, text, top=10)",
    ),
    "received attention": (lambda s: si.attention_received(s, TEXT), "si.measure(model, text).importance"),
    "clipping": (
        lambda s: si.clip_activations(s, max=100.0),
        "si.interventions.ChangeResidual(lambda x: x.clamp(-100, 100))",
    ),
    "several positions": (lambda s: si.sink_rate(s, TEXT, positions=[0, 1]), "si.sink_positions(model, text)"),
    "a prefix": (lambda s: si.TrainConfig(objective="prefix"), "si.TrainConfig('prefix_5')"),
    "a bias": (lambda s: si.TrainConfig(kv_bias="x"), "si.TrainConfig('kv_bias')"),
    "a figure of the paper": (lambda s: si.figure02(), "si.reproduce"),
    "a loss": (lambda s: si.measure(s, TEXT).loss, "si.loss(model, text)"),
    "a page that is indexed": (lambda s: si.attention_patterns(s, TEXT)[0], "si.attention(model, text)"),
    "a report that is called": (lambda s: si.measure(s, TEXT)(), "report.sink_rate()"),
    "a report as a number": (lambda s: si.measure(s, TEXT) > 0.3, "report.sink_rate()"),
    "a subject that is indexed": (lambda s: s["blocks.0"], "si.measure(model, text)"),
    "edits that are added": (lambda s: si.SwapPositions(0, 4) + si.edits.RemoveColumn(), "si.edit(model"),
    "trainings in a sweep": (lambda s: si.sweep("lr", [0.01, 0.001], steps=2), "[si.train(lr=x, steps=10)"),
    "a task by name": (lambda s: si.TrainConfig(data="repeat_tokens"), "leave it out"),
    "settings by name": (lambda s: si.configs.list(), "si.list_variants()"),
    "scores taken apart": (lambda s: si.logit_decomposition(s, TEXT), "si.qk_cosines(model, text)"),
    "an edit as a word": (lambda s: s.attention(normalization="sigmoid"), "edits=\"PatchNormalization('sigmoid')\""),
    "a number of texts": (lambda s: si.sink_rate(s, 3), "sequences=3"),
    "a table as a block": (lambda s: si.sinks(s, TEXT).__enter__(), "si.edit(model, edits)"),
}


@pytest.mark.parametrize("what", TYPED)
def test_the_line_that_an_answer_says_to_type_works(what, subject, report):
    call, line = TYPED[what]
    with pytest.raises((InputError, AttributeError)) as error:
        call(subject)
    said, (word, _, _) = str(error.value), line.partition("(")
    assert word.replace("TrainConfig", "train") in said and "object has no" not in said
    whole = f"si.sink_rate(model, text, {line})" if line.startswith("edits=") else line
    whole = {
        "si.edit(model": "si.edit(model, si.SwapPositions(0, 4))",
        "[si.train(lr=x, steps=10)": "1",
        "leave it out": "1",
    }.get(line, whole)
    whole = f"si.sink_rate(model, {line})" if line.startswith("sequences=") else whole
    edits = si.measurement.patching.patch(si.interventions.ChangeKeys(), subject, TEXT)
    assert eval(whole, {"si": si, "model": subject, "text": TEXT, "edits": edits, "report": report}) is not None


def test_rows_columns_and_values_answer_as_those_of_pandas_do(subject, report):
    heads = report.heads()
    first = next(iter(heads))
    assert (first.layer, first.score, first["importance"]) == (heads[0]["layer"], *[heads[0]["alpha_1"]] * 2)
    assert heads["alpha_1"].max() == max(heads["alpha_1"]) and heads["layer"] == heads.column("layer")
    with pytest.raises(AttributeError, match="the columns are layer, head"):
        _ = first.nothing
    with pytest.raises(TypeError, match=r"table\['alpha_1'\]\[0\]"):
        float(heads)
    norms = si.kv_norms(subject, TEXTS)
    assert norms.plot().data and norms.df["value_norm"].tolist() == pytest.approx(norms.values.flatten().tolist())
    assert norms.to_df().groupby("layer")[["key_norm", "value_norm"]].mean().shape == (3, 2)
    assert norms.keys.to_numpy().shape == norms.keys.shape and si.sink_scores(subject, TEXT).heatmap().data
    assert subject.num_heads == subject.shape.n_heads and subject.vocab_size == subject.shape.vocab


def test_a_function_of_ours_is_copied_pickled_and_helped_as_a_function():
    assert pickle.loads(pickle.dumps(si.view)) is copy.deepcopy(si.view) is si.view is si.view.attention
    assert "open_browser" in pydoc.render_doc(si.view) and repr(si.view) == "<function view>"


def test_settings_name_parts_of_variants_and_a_trained_run_tells_its_steps(tmp_path):
    recipe = si.TrainConfig("sigmoid", pos_emb="ALiBi", wd=0.2, max_iters=2)
    assert recipe.model == si.TrainConfig("sigmoid", steps=2, position="alibi").model != si.TrainConfig("sigmoid").model
    assert recipe.model.position == si.VARIANTS["alibi"].position and recipe.weight_decay == 0.2
    told = [[], []]
    for steps in told:
        si.train("softmax", steps=2, batch=4, cache=tmp_path, on_step=lambda step, row, steps=steps: steps.append(step))
    assert told == [[1, 2], [0, 2]]


def test_edits_are_chosen_in_places_and_by_the_values_behind_their_names(subject):
    ways = (lambda s: s.edit("sigmoid", layers=[0]), lambda s: s.edit(si.edits.Sigmoid(), layers=0))
    expected = si.sink_scores(subject, TEXTS, edits=si.PatchNormalization("sigmoid", layers=[0]))
    assert all(way(subject).sink_scores(TEXTS).equal(expected) for way in ways)
    swapped = si.edit(subject, "swap_positions", 0, 4)
    assert repr(si.edit(subject, "swap_pos", i=0, j=4)) == repr(swapped)
    assert subject.activations(TEXT).keys() == si.activations(subject, TEXT).keys()
    assert si.view(subject, TEXT).to_html() == si.view(subject, TEXT).html
    assert swapped.sink_scores(TEXTS).equal(si.sink_scores(subject, TEXTS, edits=si.SwapPositions(0, 4)))
    with swapped as model:
        written = model.generate(TEXT, max_new_tokens=2)
    assert subject.generate(TEXT, max_tokens=2, edits=si.SwapPositions(0, 4)) == written
    assert subject.perplexity(TEXT) == pytest.approx(np.exp(subject.loss(TEXT)))


@pytest.mark.parametrize("kind", ["same", "argument", "instead", "option"])
def test_a_word_means_one_thing_in_each_table_of_guesses(kind):
    words = " ".join(guesses()[kind]).split()
    assert sorted({*words}) == sorted(words)


def test_a_text_is_the_same_tokens_wherever_a_model_reads_it(subject, tmp_path):
    logits, _ = subject.run_with_cache(TEXT)
    torch.testing.assert_close(subject.run(TEXT).logits, logits, atol=1e-3, rtol=1e-3)
    assert subject(TEXT).equal(logits) and subject.to_tokens(TEXT).equal(subject.tokens(TEXT).tokens)
    ByteBPE(300).make(TEXTS).save_pretrained(tmp_path)
    without_bos = si.load(subject.model, tokenizer=tmp_path)
    assert without_bos.to_tokens(TEXT).equal(without_bos.tokens(TEXT).tokens)
    assert without_bos(TEXT).shape == without_bos.run(TEXT).logits.shape


def test_all_are_chosen_by_a_word_and_the_newest_checkpoint_by_the_folder_of_its_run(subject, tmp_path):
    assert si.sink_scores(subject, TEXT, layers="all").equal(si.sink_scores(subject, TEXT))
    run = si.train("no_sink", steps=2, out=tmp_path / "run")
    assert si.load(tmp_path / "run").name.endswith(f"run/{run.folder.name}")
    usual = si.measure(subject, sequences=3, length=11).protocol
    assert (usual.sequences, usual.length, usual.source) == (3, 11, "embedded docstrings")
    held = si.sinks(subject.attention(TEXT))
    assert held.plot().data[0].z.shape == (3, subject.shape.n_heads)


def test_models_are_greedy_and_k_counts_from_one_and_the_word_for_a_site_is_no_text(subject, caplog):
    assert subject.generate(TEXT, max_new_tokens=9) == subject.generate(TEXT, max_new_tokens=9, do_sample=False)
    assert si.sink_rate(subject, TEXT, k=2) == si.sink_rate(subject, TEXT, position=1)
    refused(lambda: si.sink_rate(subject, TEXT, k=0), "counts from 1")
    refused(lambda: si.patch(subject, NAME, "k"), "site='k'")
    si.sink_rate(subject, [TEXT, "too short"], length=7)
    assert "texts left out: 1, which have fewer than 7 tokens" in caplog.text


def test_variants_join_in_any_order_and_twins_and_tables_have_files_of_their_own(subject, tmp_path):
    made = [si.TrainConfig("kv_bias", position="rope"), si.TrainConfig(position="rope", kv_bias=True)]
    assert made[0].model == made[1].model and made[0].model.attention.slots == si.VARIANTS["kv_bias"].attention.slots
    pair = si.train_twins(steps=2, out_dir=tmp_path)
    assert [run.folder.parent.name for run in pair] == ["softmax", "sigmoid"] and si.variants() == [*si.VARIANTS]
    heads = si.heads(subject, TEXT)
    for ending, begins in {"md": "\n# Importance", "tex": "\\begin{tabular}"}.items():
        for _ in range(2):  # over its own
            assert begins in heads.save(tmp_path / f"heads.{ending}").read_text()
    refused(lambda: heads.save(tmp_path / "heads.nope"), ".tex")
    refused(lambda: si.patch(subject, NAME, TEXT, site=["k", "v"]), "one a call")


SAME = {  # two lines that give the same
    "the residual behind a layer": (
        lambda s: str([abs(round(x, 4)) for x in si.patch(s, "a b", "c d", site="resid_post")["restored"]]),
        lambda s: str([abs(round(x, 4)) for x in si.patch(s, "a b", "c d", layers=[1, 2, 3])["restored"]]),
    ),
    "its numbers": (
        lambda s: [*si.patch(s, "a b", "c d", site="blocks.1.hook_resid_post")["layer"]],
        lambda s: [x - 1 for x in si.patch(s, "a b", "c d", layer=2)["layer"]],
    ),
    "a site by its hook": (
        lambda s: str(si.patch(s, "a b", "c d", hook="blocks.1.attn.hook_rot_k")["restored"]),
        lambda s: str(si.patch(s, "a b", "c d", site="k", layers=[1])["restored"]),
    ),
    "logits of a call": (lambda s: s(TEXT).logits.sum(), lambda s: s.run(TEXT).logits.sum()),
    "a metric by its function": (
        lambda s: str(si.patch(s, "a b", "c d", metric=si.loss).to_pandas()),
        lambda s: str(si.patch(s, "a b", "c d", metric="loss").to_pandas()),
    ),
    "an edit that is called": (
        lambda s: si.SwapPositions(0, 4)(s, TEXT).sink_rate(),
        lambda s: si.SwapPositions(0, 4)(s).sink_rate(TEXT),
    ),
    "a report that is read": (lambda s: si.read(s, TEXT).sink_rate(), lambda s: s.read(TEXT).sink_rate()),
    "weights by another name": (
        lambda s: s.attention_patterns(TEXT)[1].sum(),
        lambda s: si.attention(s, TEXT)[1].sum(),
    ),
    "edits by a list": (lambda s: si.edits.list(), lambda s: si.list_edits()),
    "variants by a list": (lambda s: si.variants.list(), lambda s: si.variants.available()),
    "several epsilons": (
        lambda s: si.sink_rate(s, TEXTS, eps=[0.1, 0.3])[1],
        lambda s: torch.tensor(si.sink_rate(s, TEXTS)),
    ),
    "several by layer": (
        lambda s: si.sink_rate(s, TEXTS, by="layer", eps=np.array([0.1, 0.3]))[1].sum(),
        lambda s: si.sink_rate(s, TEXTS, by="layer").sum(),
    ),
    "a loss": (lambda s: si.loss(s, TEXT).item(), lambda s: si.loss(s, TEXT).mean()),
    "figures of a model": (lambda s: s.plot.sink_rate(TEXT), lambda s: s.plot(TEXT, kind="sink_rate")),
    "figures of a report": (
        lambda s: si.plot(si.measure(s, TEXT), kind="norms").layout.title.text,
        lambda s: si.plot_norms(si.measure(s, TEXT)).layout.title.text,
    ),
    "tables of a report": (lambda s: si.heads(si.measure(s, TEXT)), lambda s: si.heads(s, TEXT)),
    "norms of a report": (lambda s: si.norms(si.measure(s, TEXT)).keys.sum(), lambda s: si.norms(s, TEXT).keys.sum()),
    "rates of a report": (
        lambda s: s.measure(TEXT).sink_rate(by="layer", eps=0.2).sum(),
        lambda s: s.sink_rate(TEXT, by="layer", eps=0.2).sum(),
    ),
    "a title": (lambda s: si.heads(s, TEXT).plot(title="x").layout.title.text, lambda s: "x"),
    "a matrix": (lambda s: si.sink_rate(s, TEXTS).matrix.sum(), lambda s: si.sink_rate(s, TEXTS).per_head.sum()),
    "a frame": (
        lambda s: si.sink_rate(s, TEXTS, as_df=True).sink_rate.sum(),
        lambda s: si.sink_rate(s, TEXTS).to_pandas().sink_rate.sum(),
    ),
    "a sorted series": (
        lambda s: si.sink_rate(s, TEXTS, by="layer").sort_values(ascending=False).iloc[0],
        lambda s: si.sink_rate(s, TEXTS, by="layer").sort_values("sink_rate").sink_rate.iloc[-1],
    ),
    "twins": (lambda s: len(si.patch_twins(s, TWIN, TEXT)), lambda s: len(si.activation_patching(s, TWIN, TEXT))),
    "a called module": (
        lambda s: len(si.patching(s, "The cat sat.", "The dog sat.")),
        lambda s: len(si.patch(s, "The cat sat.", "The dog sat.")),
    ),
    "pairs of norms": (lambda s: si.norms(s, TEXT)[0].sum(), lambda s: si.norms(s, TEXT)["keys"].sum()),
    "norms as a frame": (
        lambda s: si.norms(s, TEXT).position.max(),
        lambda s: si.norms(s, TEXT).groupby("layer").position.max().max(),
    ),
    "rows by a mask": (
        lambda s: len((t := si.heads(s, TEXT))[t["alpha_1"] > 0.3]),
        lambda s: int((si.heads(s, TEXT).alpha_1 > 0.3).sum()),
    ),
    "rows of a layer": (
        lambda s: len((t := si.heads(s, TEXT))[t.layer == 1]),
        lambda s: len(si.heads(s, TEXT, layer=1)),
    ),
    "a norm": (lambda s: si.TrainConfig(norm="postnorm"), lambda s: si.TrainConfig("post_norm")),
}


@pytest.mark.parametrize("what", SAME)
def test_two_lines_mean_the_same(what, subject):
    first, second = (line(subject) for line in SAME[what])
    assert first == second


def test_a_cache_goes_where_a_model_and_its_tokens_do_unless_hooks_made_it(subject):
    cache = si.activations(subject, TEXT)
    for read in (si.qk_angles, si.hidden_norms, si.value_norms):
        torch.testing.assert_close(
            read(cache, layer=1).to_numpy(), read(subject, TEXT, layer=1).to_numpy(), rtol=1e-3, atol=1e-3
        )
    assert si.heads(cache)["alpha_1"].max() == pytest.approx(si.sink_scores(subject, TEXT).max().item(), abs=1e-4)
    cache.cache_dict["unembed.hook_in"] = cache["unembed.hook_in"] + 1
    refused(lambda: si.massive_activations(cache), "give the model, its tokens and edits")
    del cache.cache_dict["embed.hook_in"]
    refused(lambda: si.massive_activations(cache), "lacks its tokens")


def test_pictures_show_what_was_asked_for(subject, report, tmp_path):
    assert si.heatmap(si.sink_rate(subject, TEXTS)).data[0].z.shape == (3, subject.shape.n_heads)
    assert si.heatmap(report, title="x").layout.title.text == "x" and si.heatmap(report.heads()).data
    words = subject.to_str_tokens(TEXT)
    assert si.heatmap(si.attention(subject, TEXT)[1, 0], tokens=words).data
    of_one = si.plot_massive_activations(subject, TEXT, layer=2)
    assert "block 2" in of_one.layout.title.text and len(of_one.data[0].x) == 5
    assert (
        len(si.plot_norms(subject, TEXT, layer=1).data[0].y)
        == len(words)
        == len(si.plot_key_norms(subject, TEXT, layer=1, head=0).data[0].y)
    )
    assert report.to_html().startswith("<!doctype") and si.report(subject, TEXT).to_html(tmp_path / "a.html").is_file()
    run = si.train(steps=2, batch=4, out=tmp_path / "run")
    assert si.plot_loss(run).data[0].x == si.plot_sink_emergence(run.folder).data[0].x == (0, 2)
    assert si.compare(run, run)["after"][0] == si.sink_rate(run)  # on its own task
    refused(lambda: run.sink_rate(TEXT), "or no text")
    refused(lambda: si.heads(report, TEXT), "leave its text and edits out")
    refused(lambda: report.heads().plot(kind="bar"), "table.plot(x='layer'")


def test_columns_are_lists_beside_lists(report):
    column = report.heads()["layer"]
    assert operator.add([9], column) == [9, *column] and operator.add(column, [9]) == [*column, 9]
    assert (column == [*column]) is True and ((column + 1) > column).all() and (column == column[0]).any()
    assert (
        column.to_pandas().tolist() == column and (-column).tolist() == [-x for x in column] and round(column, 1).size
    )
