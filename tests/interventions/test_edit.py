"""Edits as text, and as users of other libraries write them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention.kernels import Exp, Sigmoid
from sinkinterp.attention.sites import CALL
from sinkinterp.backends.bridge import bridge_of
from sinkinterp.backends.load import BACKENDS
from sinkinterp.interventions.edit import _HOOKS, description, edits_of, site_of


def test_an_edit_is_described_as_code_without_defaults():
    assert description(iv.SwapPositions(0, 4)) == "SwapPositions(0, 4)"
    assert description(iv.ChangeKeys(iv.Zero(), kv_heads=[(1, 2)])) == "ChangeKeys(Zero(), kv_heads=[[1, 2]])"
    put = iv.ChangeResidual(iv.Put({3: torch.zeros(2, 5, 7)}), layers=[3])
    assert description(put) == "ChangeResidual(Put({3: tensor(2, 5, 7)}), layers=[3])"


def test_edits_are_one_edit_or_several_in_their_order():
    swap, shift = iv.SwapPositions(0, 4), iv.ShiftPositions(2)
    assert edits_of(swap) == (swap,) and edits_of([shift, swap]) == (shift, swap) and edits_of(()) == ()
    for given, name in (
        ([swap, 3], "int"),
        (iv.SwapPositions, "SwapPositions"),
        ("SwapPositions", "str"),
        ({0: swap}, "dict"),
    ):
        refused(partial(edits_of, given), f"{name} is not an edit")


def test_a_function_of_the_call_is_an_edit_and_says_what_it_should_return(make_call):
    def flat(call):
        return replace(call, scale=0.0)

    (edit,) = edits_of(flat)
    call = make_call()
    assert edit.call(call).scale == 0 and CALL.touched_by(edit) and description(edit) == "CallFunction(flat)"
    refused(lambda: edits_of([lambda call: call.q])[0].call(call))


TOKENS = tokens_of()
FAMILIES = ("gpt2", "llama with grouped queries")
BY_HEAD = ("hook_rot_q", "hook_rot_k", "hook_v", "hook_z")


def halving(point):
    """A hook that halves position 3 in place, of head 1 where there are heads. Bridges have other names for a place."""
    where = (slice(None), 3, 1) if point.endswith(BY_HEAD) else (slice(None), 3)
    where = (slice(None), 1, 3) if point.endswith("hook_pattern") else where

    def hook(x, hook):
        x[where] *= 0.5
        return x

    return hook


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("point", _HOOKS)
def test_a_hook_of_transformer_lens_does_what_it_does_there_on_every_backend(family, point):
    name, halved_in_place = f"blocks.1.{point}", halving(point)
    bridge = bridge_of(model_of(family))
    if name not in bridge.hook_dict and name.replace("rot_", "") in bridge.hook_dict and family == "gpt2":
        there = name.replace("rot_", "")  # without a rotation both are one
    else:
        there = name
    if there not in bridge.hook_dict:
        pytest.skip(f"this bridge has no {there}")
    with torch.no_grad():
        theirs = bridge.run_with_hooks(TOKENS, return_type="logits", fwd_hooks=[(there, halved_in_place)])
        plain = bridge(TOKENS, return_type="logits")
    assert not torch.allclose(theirs, plain, atol=1e-4)
    for backend in BACKENDS:
        ours = subject_of(family, backend).run(TOKENS, edits=[(name, halved_in_place)]).logits
        assert torch.allclose(ours, theirs, atol=2e-4), (backend, (ours - theirs).abs().max())


def test_a_hook_that_returns_nothing_changes_nothing_and_knows_where_it_is():
    seen = []
    edit = ("blocks.2.attn.hook_z", lambda x, hook: seen.append((hook.name, hook.layer(), tuple(x.shape))))
    subject = subject_of("gpt2", "huggingface")
    assert torch.equal(subject.run(TOKENS, edits=edit).logits, subject.run(TOKENS).logits)
    assert seen == [("blocks.2.attn.hook_z", 2, (*TOKENS.shape, 4, 12))]


@pytest.mark.parametrize("name", ["blocks.0.hook_nothing", "x"])
def test_a_name_without_a_site_names_what_to_write(name):
    refused(lambda: edits_of((name, lambda x, hook: x)))


@pytest.mark.parametrize(("words", "edit"), [
    ({"heads": [(1, 3)]}, iv.ChangeOutputs(iv.Zero(), heads=[(1, 3)])),
    ({"heads": (1, 3), "by": "mean"}, iv.ChangeOutputs(iv.MeanOfOthers(), heads=[(1, 3)])),
    ({"positions": [0]}, iv.ChangeResidual(iv.Zero(), positions=[0])),
    ({"layers": [1], "site": si.sites.MLP}, iv.ChangeMLP(iv.Zero(), layers=[1])),
    ({"dims": [4], "layers": 2, "site": si.sites.NEURONS}, iv.ChangeNeurons(iv.Zero(), layers=[2], dims=[4])),
])  # fmt: skip
def test_an_ablation_is_a_change_that_is_there(words, edit):
    assert iv.Ablate(**words) == edit


@pytest.mark.parametrize(("given", "change"), [
    (None, iv.ChangeResidual()), ("resid_pre", iv.ChangeResidual()), (("resid_pre", 2), iv.ChangeResidual(layers=[2])),
    (("resid_post", 2), iv.ChangeResidual(layers=[3])), (("mlp", 3), iv.ChangeMLP(layers=[3])),
    ("hook_q", iv.ChangeQueries()), (iv.ChangeKeys(layers=[1]), iv.ChangeKeys(layers=[1])),
])  # fmt: skip
def test_a_word_for_a_site_is_a_change_without_an_operation_and_behind_a_block_is_before_the_next(given, change):
    assert site_of(given) == change
    assert site_of("resid_post", layers=[0, 4], positions=[5]) == iv.ChangeResidual(layers=[1, 5], positions=[5])
    assert site_of(None, heads=[(1, 2)]) == iv.ChangeOutputs(heads=[(1, 2)])
    for wrong in ("nonsense", 3, iv.SwapPositions(0, 4)):
        refused(partial(site_of, wrong), "site")


@pytest.mark.parametrize("words", [
    {}, {"heads": [(0, 1)], "site": si.sites.MLP}, {"layers": [0], "by": "zeros"}, {"where": 3},
    {"site": si.sites.CALL, "layers": [0]},
    {"site": si.sites.MLP}, {"layers": [0], "by": 3},
])  # fmt: skip
def test_an_ablation_of_nothing_or_of_what_is_not_there_is_refused(words):
    refused(lambda: iv.Ablate(**words))
    refused(lambda: iv.ZeroMassive(where=3), "where")


def test_a_kernel_is_read_by_its_name():
    assert iv.PatchNormalization("sigmoid") == iv.PatchNormalization(Sigmoid())
    assert iv.PatchNormalization("softmax") == iv.PatchNormalization(Exp())
    refused(lambda: iv.PatchNormalization("sigmoyd"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_subject_is_patched_as_its_model_is(backend):
    subject, edit = subject_of("gpt2", backend), iv.Ablate(heads=[(1, 2)])
    with si.patched(subject, edit):
        patched = subject.lens()(TOKENS) if backend == "transformer_lens" else subject.model(TOKENS).logits
    assert torch.allclose(patched, subject.run(TOKENS, edits=edit).logits, atol=2e-5)
