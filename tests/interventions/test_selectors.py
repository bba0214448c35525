"""Selectors, and the controls that are drawn of what they leave out."""

from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import SOFTMAX
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.interventions.attention_layers import AttendSelfOnly, BlindKeys, Evict
from sinkinterp.interventions.changes import RemovePosition, ReplacePosition
from sinkinterp.interventions.selectors import check_chosen, named_heads
from sinkinterp.measurement.quantities import chosen_heads
from sinkinterp.table import Table

# blocks 1, 2, 4, 6 and 8 of 11 attend, 7 query heads over 7 key heads of 13; feed-forward layers all but block 10
SHAPE = ModelShape(11, (1, 2, 4, 6, 8), 7, 7, 13, 91, 97, mlp_layers=tuple(range(10)))
LENGTH = 17
ON_HEADS = (
    iv.ZeroQueryBias, iv.AddSinkLogit, iv.ZeroKeySlot, iv.RemoveColumn,
    lambda **on: iv.PatchNormalization(SOFTMAX, **on), lambda **on: iv.Temperature(2.0, **on),
    lambda **on: iv.BiasColumn(1.0, **on), lambda **on: AttendSelfOnly(**{"positions": [1]} | on),
    lambda **on: iv.Change(sites.QUERIES, iv.Zero(), **on), lambda **on: iv.ChangeOutputs(iv.Zero(), **on),
    lambda **on: iv.Change(sites.PATTERN, iv.Zero(), **on),
)  # fmt: skip
ON_KV_HEADS = (
    iv.ZeroKeyBias, iv.ZeroValueBias,
    lambda **on: iv.ChangeKeys(iv.Zero(), **on), lambda **on: iv.ChangeValues(iv.Zero(), **on),
)  # fmt: skip
IN_LAYERS = (
    *ON_HEADS, *ON_KV_HEADS, iv.RemoveKeySlot, lambda **on: BlindKeys([3], **on),
    lambda **on: iv.ChangeResidual(iv.Zero(), **on), lambda **on: iv.ChangeMLP(iv.Zero(), **on),
)  # fmt: skip
SITES = (
    sites.TOKEN_EMBEDDING, sites.POSITION_EMBEDDING, sites.RESIDUAL, sites.MLP, sites.QUERIES, sites.KEYS, sites.VALUES,
    sites.OUTPUT, sites.PATTERN,
)  # fmt: skip
COLUMNS = (iv.RemoveColumn, lambda **on: iv.BiasColumn(1.0, **on), AttendSelfOnly)


def unfit(edit, *words):
    """What the edit names is not there, and the refusal says which."""
    refused(lambda: edit.check(SHAPE, LENGTH), *words)


@pytest.mark.parametrize("make", IN_LAYERS)
def test_layers_must_be_named_once_and_exist(make):
    for layers in ([], [1, 1]):
        refused(partial(make, layers=layers), "layers")
    make(layers=[1, 8]).check(SHAPE, LENGTH)
    unfit(make(layers=[1, 12]), "12")
    unfit(make(layers=[-1]), "-1")


def test_each_site_counts_its_own_layers():
    iv.ChangeResidual(iv.Zero(), layers=[0, 11]).check(SHAPE, LENGTH)  # the output of the last block is the eleventh
    iv.ChangeMLP(iv.Zero(), layers=[0, 9]).check(SHAPE, LENGTH)
    unfit(iv.ChangeMLP(iv.Zero(), layers=[10]), "that this edit changes 10", "0 to 9")
    unfit(iv.ChangeKeys(iv.Zero(), layers=[3]), "that this edit changes 3", "1, 2, 4, 6, 8")
    for site in (sites.TOKEN_EMBEDDING, sites.POSITION_EMBEDDING):
        iv.Change(site, iv.Zero(), layers=[0]).check(SHAPE, LENGTH)
        unfit(iv.Change(site, iv.Zero(), layers=[1]), "that this edit changes 1")
    refused(lambda: iv.ChangeMLP(iv.Zero()).check(ModelShape(3, (0, 1, 2), 4, 4, 5, 20, 97), LENGTH), "Change")


CHOICES = (((), "none"), ((4,), "4"), ((1, 2), "1 to 2"), ((1, 2, 3), "1 to 3"), ((1, 3), "1, 3"))


@pytest.mark.parametrize(("choices", "said"), CHOICES)
def test_what_is_absent_is_refused_with_what_there_is(choices, said):
    check_chosen(choices, choices, "layer")
    assert refused(lambda: check_chosen((9,), choices, "layer"), "layer 9").partition(" have ")[2].startswith(said)


@pytest.mark.parametrize("make", ON_HEADS)
def test_heads_must_be_named_once_and_exist_and_bring_their_layers(make):
    for heads in ([], [(1, 2), (1, 2)]):
        refused(partial(make, heads=heads), "heads")
    refused(lambda: make(heads=[(1, 2)], layers=[1]), "heads")
    make(heads=[(1, 0), (8, 6)]).check(SHAPE, LENGTH)
    for heads in ([(1, 7)], [(3, 0)], [(1, -1)]):
        unfit(make(heads=heads), f"head {heads[0][1]} of layer {heads[0][0]}", "0 to 6", "1, 2, 4, 6, 8")


@pytest.mark.parametrize("site", SITES, ids=repr)
def test_positions_and_dimensions_must_be_named_once_and_exist(site):
    width = {sites.PATTERN: LENGTH}.get(site, 91 if site in SITES[:4] else 13)
    made = partial(iv.Change, site)
    made(iv.Zero(), positions=[0, LENGTH - 1], dims=[0, width - 1]).check(SHAPE, LENGTH)
    for selector, absent in (("positions", LENGTH), ("positions", -1), ("dims", width)):
        for chosen in ([], [3, 3]):
            refused(partial(made, iv.Zero(), **{selector: chosen}), selector)
        unfit(made(iv.Zero(), **{selector: [absent]}), str(absent))
    unfit(made(iv.SwapWith(0, LENGTH)), "position 17", "0 to 16")


def test_columns_positions_and_read_dimensions_must_exist():
    for make in COLUMNS:
        unfit(make(positions=[LENGTH]), "position 17")
        refused(partial(make, positions=[]), "positions")
    unfit(RemovePosition([LENGTH]), "position 17")
    unfit(BlindKeys([91]), "dimension 91", "0 to 90")
    refused(lambda: BlindKeys([]))


@pytest.mark.parametrize(("make", "given"), [
    (iv.RemoveColumn, ()), (iv.ZeroKeyBias, ()), (iv.RemoveKeySlot, ()), (iv.AddSinkLogit, (1.0,)),
    (iv.Temperature, (2.0,)), (BlindKeys, ([3],)), (iv.BiasColumn, (1.0,)), (AttendSelfOnly, ()),
    *((partial(iv.Change, site), (iv.Zero(),)) for site in SITES),
])  # fmt: skip
def test_places_are_named_and_never_given_by_their_order(make, given):
    refused(partial(make, *given, [1]))


def test_any_iterable_names_what_a_tuple_does():
    edit = iv.ChangeResidual(iv.Zero(), layers=range(2, 5), dims=iter([7, 3]), positions={1})
    assert (edit.layers, edit.dims, edit.positions) == ((2, 3, 4), (7, 3), (1,))
    assert iv.ChangeKeys(iv.Zero(), kv_heads=iter([(1, 2), (4, 0)])).kv_heads == ((1, 2), (4, 0))
    assert hash(iv.ChangeKeys(iv.Zero(), dims=[1, 2])) == hash(iv.ChangeKeys(iv.Zero(), dims=(1, 2)))


CONTROLS = [  # an edit, and the narrowest of its selectors
    *((make(layers=[2, 8]), "layers") for make in (*ON_HEADS[:3], ON_HEADS[4], *ON_KV_HEADS[:3], *IN_LAYERS[-2:])),
    *((make(heads=[(1, 2), (1, 3), (8, 6)]), "heads") for make in ON_HEADS[:3] + ON_HEADS[4:6] + ON_HEADS[-3:]),
    *((make(kv_heads=[(1, 2), (1, 3), (8, 6)]), "kv_heads") for make in ON_KV_HEADS),
    *((iv.Change(site, iv.Zero(), positions=[0, 4], layers=[2] if site not in SITES[:2] else None),
        "positions") for site in SITES),
    *((iv.Change(site, iv.Zero(), positions=[0, 4], dims=[3]), "dims") for site in SITES),
    *((iv.Change(site, iv.Zero(), positions=[0], **{site.selector: [(4, 2)]}), "positions") for site in SITES[4:]),
    *((iv.Change(site, iv.Zero(), positions=[0], dims=[5, 6], **{site.selector: [(4, 2)]}), "dims")
        for site in SITES[4:]),
    *((make(positions=[0, 3], heads=[(4, 2)]), "positions") for make in COLUMNS),
    (iv.RemoveColumn(), "positions"), (RemovePosition([0, 5]), "positions"),
    (BlindKeys([3, 4], layers=[2]), "dims"),
    (iv.ChangeResidual(iv.Zero(), layers=[0, 11]), "layers"), (iv.ChangeMLP(iv.Zero(), layers=[9]), "layers"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "selector"), CONTROLS, ids=lambda value: str(value)[:60])
def test_a_control_is_as_many_others_of_the_narrowest_selector(edit, selector):
    drawn = [edit.control(SHAPE, LENGTH, torch.Generator().manual_seed(seed)) for seed in range(30)]
    chosen = getattr(edit, selector)
    for control in drawn:
        others = getattr(control, selector)
        control.check(SHAPE, LENGTH)
        assert len(others) == len(set(others)) == len(chosen) and not set(others) & set(chosen)
        same = set(vars(edit)) - {selector}
        assert type(control) is type(edit) and all(getattr(control, name) == getattr(edit, name) for name in same)
    assert edit.control(SHAPE, LENGTH, torch.Generator().manual_seed(7)) == drawn[7]
    assert len({getattr(control, selector) for control in drawn}) > 1


def test_every_other_choice_is_drawn_sooner_or_later():
    generator = torch.Generator().manual_seed(0)
    draw = {iv.RemoveColumn().control(SHAPE, 5, generator).positions for _ in range(100)}
    assert draw == {(1,), (2,), (3,), (4,)}
    heads = {iv.ZeroKeyBias(kv_heads=[(1, 2)]).control(SHAPE, 5, generator).kv_heads[0] for _ in range(600)}
    assert heads == {(layer, head) for layer in SHAPE.attention_layers for head in range(7)} - {(1, 2)}
    assert iv.RemoveColumn(positions=[0, 2, 5]).control(SHAPE, 6, generator).positions == (1, 3, 4)


@pytest.mark.parametrize("pair", [iv.SwapPositions(0, 4), ReplacePosition(0, 4)], ids=str)
def test_a_control_of_two_positions_is_two_others(pair):
    generator = torch.Generator().manual_seed(0)
    drawn = {(c.first, c.second) for c in (pair.control(SHAPE, 6, generator) for _ in range(300))}
    assert drawn == {(i, j) for i in (1, 2, 3, 5) for j in (1, 2, 3, 5) if i != j}
    refused(lambda: type(pair)(0, 1).control(SHAPE, 3, generator), "3")


def test_edits_that_choose_nothing_and_choices_without_others_have_no_control():
    generator = torch.Generator().manual_seed(0)
    of_all = (Evict(4, 1), iv.ZeroKeyBias(), iv.ChangeValues(iv.Zero()), RemovePosition(), iv.AddSinkLogit())
    for edit in (*of_all, iv.AddSinkLogit(layers=[1, 2, 4]), iv.RemoveColumn(positions=range(9))):
        refused(partial(edit.control, SHAPE, LENGTH, generator), type(edit).__name__)


NO_PAIRS = (
    ["12"], [3], [(1, 2, 3)], [(1,)], ["5.3"], [""], (2, 3), torch.tensor([2, 3]), np.array([2, 3]), {2, 3},
)  # fmt: skip


@pytest.mark.parametrize("given", NO_PAIRS, ids=str)
def test_a_head_is_a_pair(given):
    for names_pairs in (
        lambda: iv.ChangeOutputs(iv.Zero(), heads=given), lambda: iv.ChangeKeys(iv.Zero(), kv_heads=given),
        lambda: named_heads(given, "heads", range(6), 4), lambda: chosen_heads({1: 5, 4: 5}, None, given),
    ):  # fmt: skip
        refused(names_pairs, "heads", "pairs (layer, head)")


@pytest.mark.parametrize("layers", ["12", b"12", 1.5, object()])
def test_a_selector_is_a_list_or_a_number(layers, as_users_run_it):
    refused(lambda: iv.ChangeKeys(iv.Zero(), layers=layers), "layers of Change")
    assert iv.ChangeKeys(iv.Zero(), layers=3).layers == (3,)


@pytest.mark.parametrize("pair", [((5, 3),), [(5, 3)], [[5, 3]], torch.tensor([[5, 3]])])
def test_heads_are_a_list_of_pairs(pair):
    edits = (iv.ChangeOutputs(iv.Zero(), heads=pair).heads, iv.ChangeKeys(iv.Zero(), kv_heads=pair).kv_heads)
    assert edits == (((5, 3),), ((5, 3),))
    assert named_heads(pair, "head", range(6), 4) == [(5, 3)]
    assert chosen_heads(dict.fromkeys(range(6), 4), None, pair) == [(5, 3)]


def test_heads_may_be_a_table_with_a_row_for_each():
    table = Table.of("t", "", [{"layer": 5, "head": 3, "alpha_1": 0.5}, {"layer": 2, "head": 0, "alpha_1": 0.25}])
    assert iv.ChangeOutputs(iv.Zero(), heads=table).heads == ((5, 3), (2, 0))
    refused(lambda: iv.ChangeKeys(iv.Zero(), kv_heads=table), "kv_head")


def test_as_many_choices_as_the_limit_are_stored_and_one_more_is_refused(monkeypatch):
    monkeypatch.setattr("sinkinterp.interventions.selectors.MOST", 5)
    assert iv.ChangeKeys(iv.Zero(), positions=range(5)).positions == (0, 1, 2, 3, 4)
    for choices in (range(6), range(7), count()):
        refused(partial(iv.ChangeKeys, iv.Zero(), positions=choices))
