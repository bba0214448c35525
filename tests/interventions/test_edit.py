"""Edits as text, and as users of other libraries write them."""

import traceback
from dataclasses import replace
from functools import partial

import pytest
import torch
from backends.zoo import subject_of, tokens_of
from IPython.lib.pretty import pretty
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import description, sites
from sinkinterp.attention.sites import CALL
from sinkinterp.backends.load import BACKENDS
from sinkinterp.interventions.changes import edits_of


def test_edits_are_one_edit_or_several_in_their_order():
    swap, other = iv.SwapPositions(0, 4), iv.ZeroKeyBias()
    assert edits_of(swap) == (swap,) and edits_of([other, swap]) == (other, swap) and edits_of(()) == ()
    for given, name in (
        ([swap, 3], "int"),
        (iv.SwapPositions, "SwapPositions"),
        ("SwapPositions", "'SwapPositions'"),
        ({0: swap}, "dict"),
    ):
        refused(partial(edits_of, given), f"{name} is not an edit")


def test_a_function_of_the_call_is_an_edit_and_says_what_it_should_return(make_call):
    def flat(call):
        return replace(call, scale=0.0)

    (edit,) = edits_of(flat)
    call = make_call()
    assert edit.call(call).scale == 0 and edit.touches(CALL) and description(edit) == "CallFunction(flat)"
    refused(lambda: edits_of([lambda call: call.q])[0].call(call))


TOKENS = tokens_of()


def test_a_change_is_at_a_site_of_activations_and_has_an_operation():
    for site in (sites.CALL, sites.POSITION_IDS, sites.KEY_WEIGHTS, "mlp", None):
        refused(lambda site=site: iv.Change(site, iv.Zero()), "change")
    for operation in (3, "zero", iv.Zero, iv.SwapPositions(0, 4)):
        refused(lambda operation=operation: iv.ChangeMLP(operation), "operation")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_subject_is_patched_as_its_model_is(backend):
    subject, edit = subject_of("gpt2", backend), iv.ChangeOutputs(iv.Zero(), heads=[(1, 2)])
    with si.patched(subject, edit):
        patched = subject.lens()(TOKENS) if backend == "transformer_lens" else subject.model(TOKENS).logits
    assert torch.allclose(patched, subject.run(TOKENS, edits=edit).logits, atol=2e-5)


@pytest.mark.parametrize(
    "edit",
    [
        iv.ChangeResidual(iv.Zero(), layers=[3], dims=[507]), iv.Change(sites.QUERIES, iv.Scale(0.5), heads=[(1, 2)]),
        iv.ZeroKeyBias(), iv.AddSinkLogit(2.0, layers=[1]), iv.SwapPositions(0, 4),
    ],
)  # fmt: skip
def test_an_edit_is_shown_as_the_code_that_makes_it_and_the_name_of_the_paper(edit):
    code, _, in_paper = repr(edit).partition(" (p")
    assert eval(code, {**vars(iv), "sites": sites}) == edit and in_paper == ("1 <-> p5)" if code[:4] == "Swap" else "")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (iv.ChangeResidual(iv.Zero(), dims=[507]), "dimension 507 of the residual set to zero ["),
        (iv.ChangeMLP(iv.Scale(0.5), layers=range(3, 9)), "the feed-forward update in layers 3 to 8 times 0.5 ["),
        (iv.ChangeOutputs(iv.SetTo(2), heads=[(1, 2)]), "head 1.2 of the attention output set to 2 ["),
        (iv.ChangeMLP(torch.relu), "Change("),
        (iv.SwapPositions(0, 4), "SwapPositions(0, 4) (p1 <-> p5)"),
    ],
)
def test_notes_and_tables_say_what_an_edit_does_and_its_code(edit, words):
    assert edit.in_words.startswith(words) and repr(edit) in edit.in_words
    assert pretty(edit) == edit.in_words  # in a notebook


def test_the_protocol_of_a_measurement_says_what_its_edits_do():
    edit = iv.ChangeResidual(iv.Zero(), dims=[3])
    assert si.measure(subject_of("gpt2"), TOKENS, edits=edit).protocol.edits == (edit.in_words,)


def test_an_operation_is_no_edit_a_function_takes_x_and_a_vector_fits_or_its_length_is_said():
    subject = subject_of("gpt2")
    refused(lambda: edits_of(iv.SetTo(0)), "edits=Change(si.sites.RESIDUAL, SetTo(0.0))")
    refused(lambda: subject.run(TOKENS, edits=iv.ChangeMLP(lambda x, hook: x)), "f(x)")
    refused(lambda: subject.run(TOKENS, edits=iv.ChangeMLP(iv.Add(torch.ones(5)))), "vector")


class Raises(iv.Edit):
    def mlp(self, block, x):
        return x @ torch.zeros(3, 3)


@pytest.mark.parametrize("edit", [Raises(), iv.ChangeMLP(lambda x: x @ torch.zeros(3, 3))])
def test_an_edit_that_raises_shows_the_users_frame_last_and_few_others(edit):
    for run in (si.measure, subject_of("gpt2").run):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            run(*([subject_of("gpt2")] if run is si.measure else []), TOKENS, edits=edit)
        frames = traceback.extract_tb(caught.tb)
        assert frames[-1].filename == __file__ and len(frames) < 8
