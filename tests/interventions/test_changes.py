"""Which entries of an activation a site changes, and which positions tokens are given, by hand."""

from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.attention.sites import Edit
from sinkinterp.attention.slots import SinkLogit
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.interventions.changes import Apply, RemovePosition, ReplacePosition

LAYER = 3  # of `make_call`, with 6 query heads over 3 key heads
STREAMS = {
    sites.TOKEN_EMBEDDING: lambda edit, x: edit.token_embedding(x),
    sites.POSITION_EMBEDDING: lambda edit, x: edit.position_embedding(x),
    sites.RESIDUAL: lambda edit, x: edit.residual(0, x),
    sites.MLP: lambda edit, x: edit.mlp(0, x),
}
IN_CALL = {sites.QUERIES: "q", sites.KEYS: "k", sites.VALUES: "v"}


@pytest.mark.parametrize("site", STREAMS, ids=repr)
def test_a_stream_is_changed_where_positions_and_dimensions_meet(site):
    x = torch.randn(2, 7, 11)
    by_hand = x.clone()
    for position in (0, 4):
        for dim in (3, 5, 10):
            by_hand[:, position, dim] = 0
    assert STREAMS[site](iv.Change(site, iv.Zero(), positions=[0, 4], dims=[3, 5, 10]), x).equal(by_hand)
    assert STREAMS[site](iv.Change(site, iv.Zero()), x).eq(0).all()
    assert STREAMS[site](iv.Change(site, Apply(lambda x: x), positions=[2]), x) is x


@pytest.mark.parametrize("site", [iv.ChangeResidual, iv.ChangeMLP])
def test_a_block_that_is_not_named_keeps_its_very_object(site):
    x = torch.randn(2, 7, 11)
    edit = site(iv.Zero(), layers=[1])
    method = edit.residual if site is iv.ChangeResidual else edit.mlp
    assert method(0, x) is x and method(1, x).eq(0).all() and method(2, x) is x


@pytest.mark.parametrize("site", IN_CALL, ids=repr)
def test_heads_positions_and_dimensions_of_a_call_by_hand(site, make_call):
    call, name = make_call(n_kv_heads=6), IN_CALL[site]
    by_hand = getattr(call, name).clone()
    by_hand[:, 4, 2, 3] = 7
    made = partial(iv.Change, site)
    edited = made(iv.SetTo(7.0), positions=[2], dims=[3], **{site.selector: [(LAYER, 4), (1, 5)]}).call(call)
    assert getattr(edited, name).equal(by_hand)
    assert all(getattr(edited, other) is getattr(call, other) for other in "qkv" if other != name)
    assert made(iv.Zero(), **{site.selector: [(1, 5)]}).call(call) is call
    assert made(iv.Zero(), layers=[1]).call(call) is call
    assert made(Apply(lambda x: x), positions=[1]).call(call) is call


@pytest.mark.parametrize("site", [sites.KEYS, sites.VALUES], ids=repr)
@pytest.mark.parametrize("head", range(3))
def test_keys_and_values_are_changed_by_kv_head(site, head, make_call):
    call, name = make_call(), IN_CALL[site]
    changed = getattr(iv.Change(site, iv.Zero(), kv_heads=[(LAYER, head)]).call(call), name).ne(getattr(call, name))
    assert changed.flatten(2).any(-1)[0].nonzero().flatten().tolist() == [head]


def test_outputs_are_changed_by_query_head(make_call):
    call, z = make_call(), torch.randn(2, 6, 11, 5)
    by_hand = z.clone()
    by_hand[:, [1, 4], 10] = 0
    edit = iv.ChangeOutputs(iv.Zero(), heads=[(LAYER, 1), (LAYER, 4)], positions=[10])
    assert edit.output(call, z).equal(by_hand)
    assert iv.ChangeOutputs(iv.Zero(), layers=[1]).output(call, z) is z


def test_patterns_are_changed_by_query_and_key_and_multiply_the_values(make_call):
    call = make_call()
    by_hand = call.pattern()
    by_hand[:, 2, 5, [0, 3]] = 0
    edited = iv.Change(sites.PATTERN, iv.Zero(), heads=[(LAYER, 2)], positions=[5], dims=[0, 3]).call(call)
    assert edited.pattern().equal(by_hand)
    assert edited.output().equal(call.mix(by_hand))


def test_keys_of_a_pattern_are_counted_behind_the_slot(make_call):
    call = make_call(slot=SinkLogit(torch.randn(6)))
    by_hand = call.pattern()
    by_hand[..., [1, 11]] = 0
    assert iv.Change(sites.PATTERN, iv.Zero(), dims=[0, 10]).call(call).pattern().equal(by_hand)
    assert iv.Change(sites.PATTERN, iv.Zero()).call(call).pattern().eq(0).all()


def test_positions_count_from_the_start_when_a_cache_holds_the_first_keys(make_call):
    call = make_call(queries=3, keys=11)
    queries = iv.Change(sites.QUERIES, iv.Zero(), positions=[0, 9]).call(call).q
    assert queries[:, :, 1].eq(0).all() and queries[:, :, [0, 2]].equal(call.q[:, :, [0, 2]])
    pattern = iv.Change(sites.PATTERN, iv.Zero(), positions=[0, 9]).call(call).pattern()
    assert pattern[:, :, 1].eq(0).all() and pattern[:, :, [0, 2]].equal(call.pattern()[:, :, [0, 2]])
    values = iv.ChangeValues(iv.Zero(), positions=[0, 9]).call(call).v
    assert values[:, :, [0, 9]].eq(0).all() and values.ne(0).flatten(3).all(-1).sum() == 2 * 3 * 9


@pytest.mark.parametrize("site", [*IN_CALL, sites.PATTERN], ids=repr)
def test_activations_put_back_leave_the_call_as_it_was(site, make_call):
    call = make_call(slot=SinkLogit(torch.randn(6)))
    taken = site.tensor_of(call)
    again = iv.Change(site, iv.Put({LAYER: taken})).call(call)
    assert site.tensor_of(again).equal(taken)
    torch.testing.assert_close(again.output(), call.output(), rtol=0, atol=1e-6)


def test_scores_behind_a_pattern_that_was_set_are_not_changed_in_vain(make_call):
    call = iv.RemoveColumn().call(make_call())
    assert call.set_pattern is not None
    zeroed = (iv.Change(sites.QUERIES, iv.Zero()), iv.ChangeKeys(iv.Zero(), positions=[1]))
    for edit in (*zeroed, iv.Temperature(2.0), Evict(5, 1)):
        refused(partial(edit.call, call), "edit")
    values = iv.ChangeValues(iv.Zero(), positions=[2]).call(call)
    assert values.pattern().equal(call.pattern()) and not values.output().equal(call.output())


@pytest.mark.parametrize("site", [sites.TOKEN_EMBEDDING, sites.POSITION_EMBEDDING], ids=repr)
def test_tables_are_layer_0_to_the_activations_that_are_put(site):
    x, given = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    assert STREAMS[site](iv.Change(site, iv.Put({0: given})), x).equal(given)


IDS = torch.arange(7)
SHAPE = ModelShape(3, (0, 1, 2), 5, 5, 2, 11, 97)


@pytest.mark.parametrize(("edit", "rows"), [
    (iv.SwapPositions(0, 4), [4, 1, 2, 3, 0, 5, 6]), (ReplacePosition(0, 4), [4, 1, 2, 3, 4, 5, 6]),
    (Edit(), [0, 1, 2, 3, 4, 5, 6]),
], ids=str)  # fmt: skip
def test_other_positions_by_hand(edit, rows):
    assert edit.position_ids(IDS).tolist() == rows and IDS.equal(torch.arange(7))


def test_a_removed_position_adds_nothing_and_the_others_what_they_did():
    x = torch.randn(1, 7, 3)
    before = x.clone()
    removed = RemovePosition([2, 5]).position_embedding(x)
    assert removed[:, [2, 5]].eq(0).all() and removed[:, [0, 1, 3, 4, 6]].equal(x[:, [0, 1, 3, 4, 6]])
    assert RemovePosition().position_embedding(x).eq(0).all() and x.equal(before)


@pytest.mark.parametrize("edit", [iv.SwapPositions, ReplacePosition])
def test_positions_that_change_nothing_or_do_not_exist_are_refused(edit):
    refused(lambda: edit(3, 3))
    for first, second, absent in ((-1, 3, -1), (0, 7, 7)):
        refused(partial(edit(first, second).check, SHAPE, 7), f"position {absent}")
    edit(0, 6).check(SHAPE, 7)
