"""Every option of every command runs, or is refused; what a command does not have is refused by typer."""

import json
import shlex
from functools import partial
from typing import Literal, get_args, get_origin

import pytest
from backends.encoder_decoders import save_bart
from cli.lines import COMMANDS, REFUSED, RUNS, TEXTUAL, given_in, options_of
from refusals import refused

import sinkinterp as si
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.cli.main import GROUPS, in_options
from sinkinterp.cli.measuring import measure
from sinkinterp.cli.options import edit_of, in_groups
from sinkinterp.interventions import (
    Change,
    ChangeOutputs,
    PatchNormalization,
    RemoveColumn,
    Scale,
    SetTo,
    SwapPositions,
    ZeroKeyBias,
)
from sinkinterp.interventions.attention_layers import SpreadEvenly
from sinkinterp.interventions.changes import ClampNorm
from sinkinterp.measurement.measure import PRESETS
from sinkinterp.pages import demo
from sinkinterp.report.report import NAMED
from sinkinterp.runs.workers import Here

TEXTS = ["Return the number of items in the list.", "The first token of a text is its sink.", "Read a line of text."]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of a model with an encoder, and of one whose context can be passed."""
    folder = tmp_path_factory.mktemp("models")
    save_bart(folder / "bart")
    subject = load(TEXTUAL)
    subject.model.to_llama().save_pretrained(folder / "llama")
    subject.tokenizer.save_pretrained(folder / "llama")
    return folder


@pytest.fixture
def call(call, models, tmp_path, monkeypatch):
    """Runs a line in a folder with inputs and models; returns exit code and output."""
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        demo, "demo", partial(demo.demo, workers=Here(), steps=2)
    )  # three twins of a new seed take a minute
    here = tmp_path / "here"
    for model in models.iterdir():
        (here / model.name).symlink_to(model)
    (here / "rows.jsonl").write_text(
        "".join(json.dumps({"said": f"{i} {text}", "domain": i % 2}) + "\n" for i, text in enumerate(TEXTS * 3))
    )
    (here / "paragraphs.txt").write_text("\n\n".join(f"{i} cats sat on {i * i} mats" for i in range(300)))
    (here / "ids.json").write_text(json.dumps([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2], [1, 6, 1, 8, 0]]))
    return lambda line: call(*shlex.split(line))


@pytest.mark.parametrize("line", [line for lines in RUNS.values() for line in lines if not line.startswith("serve")])
def test_a_line_of_every_option_runs(call, line):
    code, output = call(line)
    assert code == 0, output


@pytest.mark.parametrize("line", RUNS["serve"])
def test_the_live_page_is_served_with_every_option(call, answers_of_live_pages, line):
    code, output = call(line)
    assert code == 0 and "the live page is at http://127.0.0.1:" in output and len(answers_of_live_pages) == 1


@pytest.mark.parametrize("line", REFUSED)
def test_an_option_without_effect_is_refused(call, line):
    code, output = call(line)
    assert code == 2 and REFUSED[line] in output.lower(), output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_tried(command):
    refused = [line for line in REFUSED if line.startswith(f"{command} ")]
    assert options_of(command) - {"--open"} == set().union(*map(given_in, (*RUNS[command], *refused))) - {"--open"}


def test_fourteen_commands_have_an_example_and_a_help_of_at_most_60_lines(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(COMMANDS) == 14 and [*COMMANDS] == [name for group in GROUPS.values() for name in group]
    for name, command in COMMANDS.items():
        help = command.get_help(command.make_context(name, [], resilient_parsing=True))
        assert f"Example: sinkinterp {name}" in help and len(help.splitlines()) <= 60
        assert all(param.help for param in command.params)


def test_the_names_in_the_help_are_those_that_there_are():
    names = {"table": {*NAMED} - {"attention"}, "preset": {*PRESETS}, "backend": {*BACKENDS}}
    for name, annotation in in_groups(measure).__annotations__.items():
        if name in names:
            kind = get_args(annotation)[0]
            chosen = kind if get_origin(kind) is Literal else get_args(kind)[0]
            assert {*(get_args(chosen) or chosen)} == names[name]


def test_arguments_in_messages_become_options_of_the_command():
    options = {"length": "--length", "bos": "--bos", "device_map": "--device-map"}
    for message, expected in {
        "use length=64 or less": "use --length 64 or less",
        'a; use bos="never" or a smaller length=...': "a; use --bos never or a smaller --length",
        'it is too large; use device_map="auto"': "it is too large; use --device-map auto",
        "https://x.y/?length=3 and model.length=4, x=2": "https://x.y/?length=3 and model.length=4, x=2",
        "'Edit(length=3)' is no edit; use length=4": "'Edit(length=3)' is no edit; use --length 4",
    }.items():
        assert in_options(message, options) == expected


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("SwapPositions(0, 4)", SwapPositions(0, 4)),
        (" SwapPositions(first=0, second=4) ", SwapPositions(0, 4)),
        ("ZeroKeyBias()", ZeroKeyBias()),
        ("RemoveColumn(SpreadEvenly())", RemoveColumn(SpreadEvenly())),
        ("PatchNormalization(Sigmoid())", PatchNormalization(Sigmoid())),
        ("ChangeOutputs(SetTo(0.0), heads=[(1, 0)])", ChangeOutputs(SetTo(0.0), heads=[(1, 0)])),
        ("ChangeOutputs(ClampNorm(2.0))", ChangeOutputs(ClampNorm(2.0))),
        ("Change(QUERIES, Scale(0.5), heads=[(1, 0)])", Change(sites.QUERIES, Scale(0.5), heads=[(1, 0)])),
    ],
)
def test_a_call_with_literals_is_the_edit_that_python_makes(text, edit):
    assert edit_of(text) == edit


@pytest.mark.parametrize(
    "text",
    [
        *("", "ZeroKeyBias", "zero_key_bias", "zero_key_bias()", "swap_positions(0, 4)", "mean_ablate_key_bias"),
        *("no_remove_column", "SwapPositions(0)", "SwapPositions(0, 3, second=4)", "SwapPositions(0, x)", "sigmoid"),
        *(
            "SetTo(0)", "Sigmoid()", "[ZeroKeyBias()]", "__import__('os')", "SwapPositions(0, 4).layer",
            "si.SwapPositions(0, 4)",
        ),
        *("(lambda: 0)()", "SwapPositions(*[0, 4])", "SwapPositions(**{'first': 0})", "SwapPositions(0, 4); 1"),
        *("PatchNormalization('sigmoid')", "ZeroKeyBias() or 1", "(" * 300, "SwapPositions(3, 3)"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    refused(lambda: edit_of(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Change(sites.RESIDUAL, Scale(2))", "--edit takes RESIDUAL alone"),
        ("(lambda: 0)()", "is not a call with values"),
        ("__import__('os').system('x')", "is not a call with values"),
        ("SwapPositions(0,", "(--edit, line 1)"),
        ("ChangeResidual(Zero, layers=[1])", "needs brackets, Zero()"),
        ("ZeroKeyBia", "did you mean 'ZeroKeyBias'?"),
        ("RemoveColumn(SpreadEvnly())", "did you mean 'SpreadEvenly'?"),
    ],
)
def test_a_refusal_says_what_to_write(text, words):
    assert words in refused(lambda: edit_of(text)) and "object at" not in refused(lambda: edit_of(text))


def test_edits_are_applied_in_their_order(call):
    edits = "--edit 'SwapPositions(0, 4)' --edit 'RemoveColumn()'"
    assert call(f"measure sinkinterp/demo-softmax --first-only --sequences 3 {edits} --save a.json")[0] == 0
    first, second = si.Report.load("a.json").protocol.edits
    assert first.startswith("SwapPositions(0, 4)") and second.startswith("RemoveColumn")
