"""Sites as values, and edits as text."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.attention.sites import CALL, Read
from sinkinterp.interventions.edit import description, edits_of

SITES = {name: value for name, value in vars(sites).items() if isinstance(value, sites.Site)}
EDITS = {  # one that changes each site, and nothing else
    sites.TOKEN_EMBEDDING: iv.ChangeTokenEmbedding(iv.Zero()),
    sites.POSITION_EMBEDDING: iv.ChangePositionEmbedding(iv.Zero()),
    sites.RESIDUAL: iv.ChangeResidual(iv.Zero()),
    sites.QUERY_WEIGHTS: iv.ZeroQueryBias(),
    sites.KEY_WEIGHTS: iv.BlindKeys([3]),
    sites.VALUE_WEIGHTS: iv.ZeroValueBias(),
    sites.CALL: iv.ChangeKeys(iv.Zero()),
    sites.OUTPUT: iv.ChangeOutputs(iv.Zero()),
    sites.ATTENTION_INPUT: iv.ChangeAttentionInput(iv.Zero()),
    sites.NEURONS: iv.ChangeNeurons(iv.Zero()),
    sites.MLP: iv.ChangeMLP(iv.Zero()),
}


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_site_is_touched_by_the_edits_that_override_its_method(site):
    assert [other for other, changes in EDITS.items() if site.touched_by(changes)] == [site]
    assert not site.touched_by(iv.Edit()) and not site.touched_by(iv.SwapPositions(0, 1))


def test_a_site_applies_the_method_that_an_edit_overrides():
    @dataclass(frozen=True)
    class Doubled(iv.Edit):
        def mlp(self, block, x):
            return 2 * x + block

    x = torch.ones(1, 2, 3)
    assert sites.MLP.apply(Doubled(), 5, x).eq(7).all()
    assert sites.RESIDUAL.apply(Doubled(), 5, x) is x


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_read_holds_its_site_or_names_the_site_to_read(site):
    if site.instead:
        refused(lambda: site.read(len), "read")
    else:
        assert site.read(len) == Read(site, len)


def test_sites_know_the_layers_of_a_model():
    shape = ModelShape(5, (1, 3), 2, 2, 3, 6, 97, mlp_layers=(0, 2, 4))
    layers = {site: tuple(site.layers(shape)) for site in SITES.values()}
    assert layers[sites.RESIDUAL] == (0, 1, 2, 3, 4, 5) and layers[sites.MLP] == (0, 2, 4)
    assert {layers[site] for site in (sites.CALL, sites.OUTPUT, sites.KEY_WEIGHTS)} == {(1, 3)}
    assert layers[sites.TOKEN_EMBEDDING] == layers[sites.POSITION_EMBEDDING] == (0,)


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
        ("swap", "'swap'"),
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
