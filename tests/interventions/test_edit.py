"""Sites as values, and edits as text."""

import inspect
from dataclasses import dataclass

import pytest
import torch

from sinkinterp.attention.model_shape import ModelShape
from sinkinterp.backends.subject import Subject, Trace
from sinkinterp.errors import InputError
from sinkinterp.interventions import (
    BlindKeys,
    ChangeKeys,
    ChangeMLP,
    ChangeOutputs,
    ChangePositionEmbedding,
    ChangeResidual,
    ChangeTokenEmbedding,
    Edit,
    Put,
    ShiftPositions,
    SwapPositions,
    Zero,
    ZeroQueryBias,
    ZeroValueBias,
    edit,
)
from sinkinterp.interventions.description import description
from sinkinterp.interventions.edit import edits_of

SITES = {name: value for name, value in vars(edit).items() if isinstance(value, edit.Site)}
EDITS = {  # one that changes each site, and nothing else
    edit.TOKEN_EMBEDDING: ChangeTokenEmbedding(Zero()),
    edit.POSITION_EMBEDDING: ChangePositionEmbedding(Zero()),
    edit.RESIDUAL: ChangeResidual(Zero()),
    edit.QUERY_WEIGHTS: ZeroQueryBias(),
    edit.KEY_WEIGHTS: BlindKeys([3]),
    edit.VALUE_WEIGHTS: ZeroValueBias(),
    edit.CALL: ChangeKeys(Zero()),
    edit.OUTPUT: ChangeOutputs(Zero()),
    edit.MLP: ChangeMLP(Zero()),
}


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_site_is_touched_by_the_edits_that_override_its_method(site):
    assert [other for other, changes in EDITS.items() if site.touched_by(changes)] == [site]
    assert not site.touched_by(Edit()) and not site.touched_by(SwapPositions(0, 1))


def test_a_site_applies_the_method_that_an_edit_overrides():
    @dataclass(frozen=True)
    class Doubled(Edit):
        def mlp(self, block, x):
            return 2 * x + block

    x = torch.ones(1, 2, 3)
    assert edit.MLP.apply(Doubled(), 5, x).eq(7).all()
    assert edit.RESIDUAL.apply(Doubled(), 5, x) is x


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_reads_are_keywords_of_a_run_and_fields_of_its_trace(site):
    if site.reads is None:
        return
    ((keyword, reads),) = site.reads("name", len).items()
    assert reads == {"name": len}
    assert keyword in inspect.signature(Subject.run).parameters and keyword in inspect.signature(Trace).parameters


def test_sites_know_the_layers_of_a_model():
    shape = ModelShape(5, (1, 3), 2, 2, 3, 6, 97, mlp_layers=(0, 2, 4))
    layers = {site: tuple(site.layers(shape)) for site in SITES.values()}
    assert layers[edit.RESIDUAL] == (0, 1, 2, 3, 4, 5) and layers[edit.MLP] == (0, 2, 4)
    assert {layers[site] for site in (edit.CALL, edit.OUTPUT, edit.KEY_WEIGHTS)} == {(1, 3)}
    assert layers[edit.TOKEN_EMBEDDING] == layers[edit.POSITION_EMBEDDING] == (0,)


def test_an_edit_is_described_as_code_without_defaults():
    assert description(SwapPositions(0, 4)) == "SwapPositions(0, 4)"
    assert description(ChangeKeys(Zero(), heads=[(1, 2)])) == "ChangeKeys(Zero(), heads=[[1, 2]])"
    put = ChangeResidual(Put({3: torch.zeros(2, 5, 7)}), layers=[3])
    assert description(put) == "ChangeResidual(Put({3: tensor(2, 5, 7)}), layers=[3])"


def test_edits_are_one_edit_or_several_in_their_order():
    swap, shift = SwapPositions(0, 4), ShiftPositions(2)
    assert edits_of(swap) == (swap,) and edits_of([shift, swap]) == (shift, swap) and edits_of(()) == ()
    for given, name in (([swap, 3], "int"), (SwapPositions, "SwapPositions"), ("swap", "str"), ({0: swap}, "dict")):
        with pytest.raises(InputError, match=f"^{name} is no edit"):
            edits_of(given)
