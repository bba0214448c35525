"""Sites as values, and which answers of edits may take the place of what is there."""

import pickle
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from backends.zoo import ShiftPositions
from refusals import WRONG, refused

from sinkinterp import interventions as iv
from sinkinterp.attention import description, sites
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.attention.sites import HeadWeights, LazyWeights, Read
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.interventions.changes import ReplacePosition

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")

SITES = {name: value for name, value in vars(sites).items() if isinstance(value, sites.Site) and not value.part}
EDITS = {  # one that changes each site, and nothing else
    sites.TOKEN_EMBEDDING: iv.Change(sites.TOKEN_EMBEDDING, iv.Zero()),
    sites.POSITION_IDS: ShiftPositions(1),
    sites.POSITION_EMBEDDING: iv.Change(sites.POSITION_EMBEDDING, iv.Zero()),
    sites.RESIDUAL: iv.ChangeResidual(iv.Zero()),
    sites.QUERY_WEIGHTS: iv.ZeroQueryBias(),
    sites.KEY_WEIGHTS: BlindKeys([3]),
    sites.VALUE_WEIGHTS: iv.ZeroValueBias(),
    sites.CALL: iv.ChangeKeys(iv.Zero()),
    sites.OUTPUT: iv.ChangeOutputs(iv.Zero()),
    sites.ATTENTION_INPUT: iv.Change(sites.ATTENTION_INPUT, iv.Zero()),
    sites.NEURONS: iv.Change(sites.NEURONS, iv.Zero()),
    sites.MLP: iv.ChangeMLP(iv.Zero()),
}


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_site_is_touched_by_the_edits_that_override_its_method(site):
    assert [other for other, changes in EDITS.items() if changes.touches(site)] == [site]
    assert not iv.Edit().touches(site)
    assert pickle.loads(pickle.dumps(site)) == site


@pytest.mark.parametrize("site", [sites.QUERIES, sites.KEYS, sites.VALUES, sites.PATTERN], ids=repr)
def test_a_part_of_a_call_is_read_and_changed_there(site, make_call):
    call, change = make_call(), iv.Change(site, iv.Zero())
    assert [other for other in SITES.values() if change.touches(other)] == [sites.CALL]
    assert site.read(len).site is sites.CALL and pickle.loads(pickle.dumps(site)) == site
    assert site.read(lambda x: x).function(change.call(call)).eq(0).all() and site.tensor_of(call).ne(0).any()


def test_a_site_applies_the_method_that_an_edit_overrides():
    @dataclass(frozen=True)
    class Doubled(iv.Edit):
        def mlp(self, block, x):
            return 2 * x + block

    x = torch.ones(1, 2, 3)
    assert sites.MLP.edited(x, [Doubled(), Doubled()], 5).eq(19).all()
    assert sites.RESIDUAL.edited(x, [Doubled()], 5) is x


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_a_read_holds_its_site_or_names_the_site_to_read(site):
    if site.instead:
        refused(lambda: site.read(len), "read")
    else:
        assert site.read(len) == Read(site, len)


def test_a_plain_function_reads_calls_and_an_edit_has_a_method_for_every_site():
    read = sites.RESIDUAL.read(len)
    assert sites.reads_of({"x": read, "call": len}) == {"x": read, "call": Read(sites.CALL, len)}
    for wrong in ([read], {"x": 3}, {"x": read, "y": None}, len):
        refused(partial(sites.reads_of, wrong), "reads")
    assert set(sites.CHANGES) == {site.method.__name__ for site in SITES.values()}


def test_sites_know_the_layers_of_a_model():
    shape = ModelShape(5, (1, 3), 2, 2, 3, 6, 97, mlp_layers=(0, 2, 4))
    layers = {site: tuple(site.layers(shape)) for site in SITES.values()}
    assert layers[sites.RESIDUAL] == (0, 1, 2, 3, 4, 5) and layers[sites.MLP] == (0, 2, 4)
    assert {layers[site] for site in (sites.CALL, sites.OUTPUT, sites.KEY_WEIGHTS)} == {(1, 3)}
    assert layers[sites.TOKEN_EMBEDDING] == layers[sites.POSITION_EMBEDDING] == layers[sites.POSITION_IDS] == (0,)
    assert layers[sites.NEURONS] == (0, 1, 2, 3, 4)


@pytest.fixture
def at(make_call):
    """What is at a site, behind the other arguments of its edits."""

    def there(site):
        call = make_call(softcap=2.0)
        if site in sites.WEIGHT_SITES:
            return 1, LazyWeights(lambda: torch.ones(3, 5, 7), torch.ones(3, 5))
        if site in (sites.TOKEN_EMBEDDING, sites.POSITION_EMBEDDING):
            return (torch.ones(2, 5, 7),)
        whole = {sites.POSITION_IDS: (torch.arange(7),), sites.CALL: (call,), sites.OUTPUT: (call, call.q)}
        return whole.get(site, (1, torch.ones(2, 5, 7)))

    return there


PARTS = {sites.CALL: ("q", "k", "v")} | dict.fromkeys(sites.WEIGHT_SITES, ("weight", "bias"))  # of no single tensor
PLACES = [(site, part) for site in SITES.values() for part in PARTS.get(site, (None,))]


def answered(site, there, answer, part=None):
    """What is at a site after an edit that returns `answer` of it, or of a part of it."""
    *place, before = there

    def edited(edit, *given):
        return answer(given[-1]) if part is None else replace(given[-1], **{part: answer(getattr(given[-1], part))})

    return site.edited(before, [type("Edited", (iv.Edit,), {site.method.__name__: edited})()], *place)


@pytest.mark.parametrize(("site", "part"), PLACES, ids=lambda each: getattr(each, "label", each))
def test_an_answer_takes_the_place_of_a_tensor_that_it_fits_and_is_refused_for_any_other(site, part, at):
    def of(value):
        return value if part is None else getattr(value, part)

    there = at(site)
    assert of(answered(site, there, lambda x: 2 * x, part)).equal(2 * of(there[-1]))
    assert answered(site, there, lambda x: x) is there[-1]
    for wrong in WRONG.values():
        refused(partial(answered, site, at(site), wrong, part), f"Edited.{site.method.__name__}")
    if part is None:
        refused(partial(answered, site, there, lambda x: None), "returned None")


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
@pytest.mark.parametrize("answer", [None, 3, torch.zeros(3)])
def test_an_answer_of_another_kind_than_what_is_there_is_refused(site, answer, at):
    refused(lambda: answered(site, at(site), lambda given: answer), f"Edited.{site.method.__name__}")


def test_positions_count_from_zero(at):
    there = at(sites.POSITION_IDS)
    assert answered(sites.POSITION_IDS, there, lambda ids: 0 * ids).eq(0).all()
    refused(lambda: answered(sites.POSITION_IDS, there, lambda ids: ids - 1), "-1")


@pytest.mark.parametrize(("bias", "other", "word"), [(None, torch.ones(3, 5), "no"), (torch.ones(3, 5), None, "a")])
def test_weights_keep_a_bias_where_they_have_one(bias, other, word):
    there = 1, HeadWeights(torch.ones(3, 5, 7), bias)
    assert answered(sites.KEY_WEIGHTS, there, lambda weights: weights.with_bias(bias)).bias is bias
    refused(lambda: answered(sites.KEY_WEIGHTS, there, lambda weights: weights.with_bias(other)), f"{word} bias")


MASK = torch.ones(1, 1, 11, 11)


@pytest.mark.parametrize("change", [{"softcap": None}, {"scale": 0.0}, {"mask": MASK.bool()}])
def test_a_call_may_lose_its_softcap_and_take_another_scale_and_mask(at, change):
    ((name, value),) = change.items()
    assert getattr(answered(sites.CALL, at(sites.CALL), lambda call: replace(call, **change)), name) is value


@pytest.mark.parametrize(
    "change", [{"scale": torch.nan}, {"softcap": torch.inf}, {"layer": 4}, {"layer": 2}, {"mask": MASK}]
)
def test_a_call_is_of_its_layer_and_of_finite_numbers_and_its_mask_is_boolean(at, change):
    refused(lambda: answered(sites.CALL, at(sites.CALL), lambda call: replace(call, **change)), "Edited.call")


@pytest.mark.parametrize("part", "qkv")
def test_what_an_edit_makes_is_finite_and_what_a_model_computes_itself_is_not_asked(at, part):
    (call,) = at(sites.CALL)
    refused(lambda: answered(sites.CALL, (call,), lambda x: x * torch.inf, part), "finite")
    its_own = replace(call, scale=torch.inf, **{part: getattr(call, part) * torch.inf})
    assert answered(sites.CALL, (its_own,), lambda call: replace(call, mask=MASK.bool())).mask.all()


def test_an_edit_is_described_as_code_without_defaults():
    assert description(iv.SwapPositions(0, 4)) == "SwapPositions(0, 4) (p1 <-> p5)"
    assert description(iv.RemoveColumn(positions=(0,))) == description(iv.RemoveColumn())
    assert description(iv.RemoveColumn()) == "RemoveColumn(Renormalised())"
    assert description(iv.RemoveColumn(positions=(2,))) == "RemoveColumn(Renormalised(), positions=[2])"
    assert description(ReplacePosition(4, 0)) == "ReplacePosition(4, 0) (p5 <- p1)"
    assert description(iv.ChangeKeys(iv.Zero(), kv_heads=[(1, 2)])) == "Change(sites.KEYS, Zero(), kv_heads=[[1, 2]])"
    put = iv.ChangeResidual(iv.Put({3: torch.zeros(2, 5, 7)}), layers=[3])
    assert description(put) == "Change(sites.RESIDUAL, Put({3: tensor(2, 5, 7)}), layers=[3])"
