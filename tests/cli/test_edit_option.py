"""An edit on the command line is a call of a public edit with literals; anything else is refused."""

import pytest
from refusals import refused

import sinkinterp as si
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.cli.options import edit_of
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


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("SwapPositions(0, 4)", SwapPositions(0, 4)),
        (" SwapPositions(first=0, second=4) ", SwapPositions(0, 4)),
        ("ZeroKeyBias()", ZeroKeyBias()),
        ("RemoveColumn(SpreadEvenly())", RemoveColumn(SpreadEvenly())),
        ("PatchNormalization(Sigmoid())", PatchNormalization(Sigmoid())),
        ("ChangeOutputs(SetTo(0.0), heads=[(1, 0)])", ChangeOutputs(SetTo(0.0), heads=[(1, 0)])),
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
        ("si.SwapPositions(0, 4)", "--edit takes SwapPositions alone"),
        ("Change(sites.RESIDUAL, Scale(2))", "--edit takes RESIDUAL alone"),
        ("(lambda: 0)()", "is not a call with values"),
        ("", "write a public edit with its values"),
        ("SwapPositions(0,", "(--edit, line 1)"),
        ("ZeroKeyBias", "needs brackets, ZeroKeyBias()"),
        ("ChangeResidual(Zero, layers=[1])", "needs brackets, Zero()"),
        ("ZeroKeyBia", "did you mean 'ZeroKeyBias'?"),
        ("SwapPositons(0, 4)", "did you mean 'SwapPositions'?"),
        ("RemoveColumn(SpreadEvnly())", "did you mean 'SpreadEvenly'?"),
    ],
)
def test_a_refusal_says_what_to_write(text, words):
    assert words in refused(lambda: edit_of(text)) and "object at" not in refused(lambda: edit_of(text))


def test_edits_are_applied_in_their_order(call):
    edits = "--edit", "SwapPositions(0, 4)", "--edit", "RemoveColumn()"
    words = ("sinkinterp/demo-softmax", "--first-only", "--sequences", 3, *edits, "--save", "a.json")
    assert call("measure", *words)[0] == 0
    first, second = si.Report.load("a.json").protocol.edits
    assert first.startswith("SwapPositions(0, 4)") and second.startswith("RemoveColumn")
