"""What becomes of a sink's column, on calls small enough to work by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from attention.layouts import layouts
from backends.zoo import subject_of, tokens_of
from refusals import refused

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.interventions import (
    AddSinkLogit,
    BiasColumn,
    PatchNormalization,
    RemoveColumn,
    RemoveKeySlot,
    Temperature,
    ZeroKeySlot,
)
from sinkinterp.interventions.attention_layers import (
    AttendSelfOnly,
    Dropped,
    Evict,
    First,
    KeepHeaviest,
    Renormalised,
    SpreadEvenly,
)

LAYOUTS = layouts(11, 5)
LAYOUTS["bias"] |= LAYOUTS.pop("softcap")
every_layout = pytest.mark.parametrize("fields", LAYOUTS.values(), ids=LAYOUTS)
SHARES = (Renormalised(), Dropped(), SpreadEvenly())


def of_scores(scores: list[list[float]], **fields) -> AttentionCall:
    """A call of one head whose weights are in proportion to the numbers given, on allowed pairs."""
    logs = torch.tensor(scores).log()[None, None]
    n = logs.shape[-1]
    return AttentionCall(3, torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2), torch.randn(1, 1, n, 2), 1.0,
                         bias=logs, **fields)  # fmt: skip


ROWS = [[1.0, 1, 1, 1], [3, 1, 1, 1], [2, 1, 1, 1], [4, 2, 1, 3]]  # pattern: 1 | 3/4 1/4 | 1/2 1/4 1/4 | .4 .2 .1 .3
BY_HAND = {
    Renormalised(): [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1 / 2, 1 / 2, 0], [0, 1 / 3, 1 / 6, 1 / 2]],
    Dropped(): [[1, 0, 0, 0], [0, 1 / 4, 0, 0], [0, 1 / 4, 1 / 4, 0], [0, 0.2, 0.1, 0.3]],
    SpreadEvenly(): [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1 / 2, 1 / 2, 0], [0, 1 / 3, 0.1 + 0.4 / 3, 0.3 + 0.4 / 3]],
}


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_a_removed_column_is_shared_out_as_worked_by_hand(share):
    edited = RemoveColumn(share).call(of_scores(ROWS))
    by_hand = torch.tensor(BY_HAND[share])[None, None]
    torch.testing.assert_close(edited.pattern(), by_hand)
    torch.testing.assert_close(edited.output(), by_hand @ edited.v)


def test_positions_that_are_all_there_is_to_see_are_refused():
    refused(lambda: RemoveColumn(positions=range(4)).call(of_scores(ROWS)))
    with_slot = RemoveColumn(positions=range(4)).call(of_scores(ROWS, slot=SinkLogit(torch.zeros(1))))
    torch.testing.assert_close(with_slot.pattern()[..., 0], torch.ones(1, 1, 4))


def test_with_a_slot_every_query_has_something_left_to_look_at():
    call = of_scores(ROWS, slot=SinkLogit(torch.zeros(1)))  # the slot has weight 1 beside those of ROWS
    rows = {
        Renormalised(): [[1, 0, 0, 0, 0], [1 / 2, 0, 1 / 2, 0, 0]],
        Dropped(): [[1 / 2, 0, 0, 0, 0], [1 / 5, 0, 1 / 5, 0, 0]],
        SpreadEvenly(): [[1, 0, 0, 0, 0], [1 / 2, 0, 1 / 2, 0, 0]],
    }
    for share, by_hand in rows.items():
        torch.testing.assert_close(RemoveColumn(share).call(call).pattern()[0, 0, :2], torch.tensor(by_hand))


@pytest.mark.parametrize("edit", [partial(BiasColumn, 2.0), AttendSelfOnly], ids=["bias", "mask"])
def test_edits_of_scores_of_some_heads_set_no_pattern_and_go_in_any_order(edit):
    call = replace(of_scores(ROWS), **{x: torch.randn(2, 3, 4, 2) for x in "qkv"}, layer=0)
    some, others = edit(positions=[1], heads=[(0, 0), (0, 2)]), edit(positions=[2], heads=[(0, 0), (0, 1)])
    one, other = others.call(some.call(call)), some.call(others.call(call))
    assert one.set_pattern is None
    torch.testing.assert_close(one.pattern(), other.pattern())
    alone = [edit(positions=places).call(call).pattern() for places in ([1], [2], [1, 2])]
    for head, i in enumerate((2, 1, 0)):  # head 0 has both, head 1 the second, head 2 the first
        torch.testing.assert_close(one.pattern()[:, head], alone[i][:, head])


def test_sink_logits_of_different_heads_are_one_slot():
    call = replace(of_scores(ROWS), **{x: torch.randn(2, 3, 4, 2) for x in "qkv"}, layer=0)
    edited = AddSinkLogit(2.0, heads=[(0, 2)]).call(AddSinkLogit(1.0, heads=[(0, 0)]).call(call))
    assert edited.slot.logit.tolist() == [1.0, -torch.inf, 2.0]
    refused(lambda: AddSinkLogit(1.0, heads=[(0, 1), (0, 2)]).call(edited))


@every_layout
def test_rows_keep_their_sum_unless_the_share_is_dropped(fields, make_call):
    call = make_call(**fields)
    before, first = call.pattern(), int(call.slot is not None)
    columns = [first, first + 3]
    kept = torch.where(torch.arange(11) == 0, before[..., columns].sum(-1), 0)  # of query 0, who sees but one token
    kept = kept * (first == 0)
    for share in SHARES:
        after = RemoveColumn(share, positions=[0, 3]).call(call).pattern()
        total = torch.ones(2, 6, 11) if share != Dropped() else 1 - before[..., columns].sum(-1) + kept
        torch.testing.assert_close(after.sum(-1), total)
        assert after[:, :, 1:][..., columns].eq(0).all()
        assert after[before == 0].eq(0).all()


@pytest.mark.parametrize("sink", [50.0, 200.0, 1e4])
@every_layout
def test_beside_a_very_strong_column_the_others_keep_what_masked_scores_give(fields, sink, make_call):
    call = make_call(**fields)
    peaked = BiasColumn(sink).call(call)
    kept = torch.ones(11, 11).tril().bool()
    kept[1:, 0] = False  # the first query sees nothing else, unless there is a slot
    kept[0, 0] = call.slot is None
    masked = replace(call, mask=torch.logical_and(call.allowed(), kept))
    after = RemoveColumn().call(peaked).pattern()
    rows = slice(None) if call.slot is not None else slice(1, None)
    torch.testing.assert_close(after[:, :, rows], masked.pattern()[:, :, rows], rtol=1e-4, atol=1e-6)


def test_a_pattern_that_was_set_has_its_column_taken_from_the_weights():
    call = of_scores(ROWS)
    after = RemoveColumn().call(call.with_pattern(call.pattern()))
    torch.testing.assert_close(after.pattern(), torch.tensor(BY_HAND[Renormalised()])[None, None])


@every_layout
def test_a_bias_multiplies_the_odds_of_its_columns(fields, make_call):
    call = make_call(**fields)
    before, first = call.pattern(), int(call.slot is not None)
    factor = torch.ones(before.shape[-1])
    factor[[first, first + 5]] = 3
    by_hand = before * factor / (before * factor).sum(-1, keepdim=True)
    after = BiasColumn(torch.tensor(3.0).log().item(), positions=[0, 5]).call(call)
    torch.testing.assert_close(after.pattern(), by_hand, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after.column_mass(), by_hand[..., first:].sum(2), rtol=1e-4, atol=1e-6)


@every_layout
def test_positions_that_attend_to_themselves_see_what_a_first_token_would(fields, make_call):
    call = make_call(**fields)
    first = int(call.slot is not None)
    after = AttendSelfOnly(positions=[2, 7]).call(call).pattern()
    others = [i for i in range(11) if i not in (2, 7)]
    assert after[:, :, others].equal(call.pattern()[:, :, others])
    for i in (2, 7):
        seen = after[:, :, i].ne(0).any(0).any(0).nonzero().flatten().tolist()
        assert seen == [*range(first), first + i]
        if not first:
            assert after[:, :, i, i].eq(1).all()


@pytest.mark.parametrize("edit", [
    RemoveColumn(), RemoveColumn(SpreadEvenly()), BiasColumn(-2.0), AttendSelfOnly(positions=[4]),
    PatchNormalization(Sigmoid()), Temperature(3.0),
], ids=str)  # fmt: skip
@every_layout
def test_only_the_named_heads_are_changed(edit, fields, make_call):
    call = make_call(**fields)
    whole, some = edit.call(call), replace(edit, heads=[(3, 1), (3, 4), (0, 2)]).call(call)
    assert (whole.pattern() - call.pattern()).abs().amax((0, 2, 3)).min() > 1e-3
    assert some.pattern()[:, [1, 4]].equal(whole.pattern()[:, [1, 4]])
    assert some.pattern()[:, [0, 2, 3, 5]].equal(call.pattern()[:, [0, 2, 3, 5]])
    assert replace(edit, heads=[(0, 2)]).call(call) is call and replace(edit, layers=[2]).call(call) is call


def test_columns_count_from_the_start_when_a_cache_holds_them(make_call):
    whole = make_call()
    tail = AttentionCall(3, whole.q[:, :, 9:], whole.k, whole.v, whole.scale)
    for edit in (RemoveColumn(), BiasColumn(-1.0, positions=[3]), AttendSelfOnly(positions=[4, 9])):
        torch.testing.assert_close(edit.call(tail).pattern(), edit.call(whole).pattern()[:, :, 9:])


def test_heads_may_lose_their_columns_one_edit_after_the_other(make_call):
    call = make_call()
    both = RemoveColumn(heads=[(3, 1), (3, 4)]).call(call)
    after_each_other = RemoveColumn(heads=[(3, 4)]).call(RemoveColumn(heads=[(3, 1)]).call(call))
    assert both.pattern().equal(after_each_other.pattern())


@pytest.mark.parametrize(
    ("weights", "shared"),
    [((1, 1e-43, 0), (0, 1, 0)), ((1, -0.5, 0.5), (0, -0.5, 0.5))],
    ids=["a nearly empty row is shared out", "what was removed is lost where the kept weights cancel"],
)
def test_rows_whose_kept_weights_sum_to_nearly_nothing_stay_finite(make_call, weights, shared):
    call = make_call()
    pattern, by_hand = torch.zeros(2, 2, 6, 11, 11)
    pattern[..., :3], by_hand[..., :3] = torch.tensor(weights), torch.tensor(shared)
    pattern = pattern.tril()
    after = RemoveColumn().call(call.with_pattern(pattern)).pattern()
    assert after.isfinite().all() and after[:, :, 2:].equal(by_hand[:, :, 2:])


LAYER = 3


def exps(call):
    k = call.k.repeat_interleave(2, 1)
    causal = torch.ones(11, 11).tril().bool()
    return (torch.einsum("bhid,bhjd->bhij", call.q, k) * call.scale).exp() * causal


def key_slot(value=0.0):
    return SlotRow(torch.randn(6, 1, 5), torch.full((6, 1, 5), value))


SLOTS = {"sink logit": lambda: SinkLogit(torch.randn(6)), "key slot": key_slot}
every_slot = pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)


@every_slot
def test_a_zeroed_slot_adds_one_to_the_sum_of_exponentials(slot, make_call):
    call = make_call(slot=slot())
    one = torch.ones(2, 6, 11, 1)
    by_hand = torch.cat((one, exps(call)), -1) / (exps(call).sum(-1, keepdim=True) + 1)
    zeroed = ZeroKeySlot().call(call)
    torch.testing.assert_close(zeroed.pattern(), by_hand)
    torch.testing.assert_close(zeroed.output(), by_hand[..., 1:] @ call.v.repeat_interleave(2, 1))
    torch.testing.assert_close(zeroed.slot_mass(), by_hand[..., 0].sum(2))


def test_an_added_logit_has_its_exponential_as_weight(make_call):
    call = make_call()
    by_hand = exps(call) / (exps(call).sum(-1, keepdim=True) + torch.tensor(1.5).exp())
    torch.testing.assert_close(AddSinkLogit(1.5).call(call).pattern()[..., 1:], by_hand)
    some = AddSinkLogit(1.5, heads=[(call.layer, 4)]).call(call).pattern()
    assert some[:, :4, :, 0].eq(0).all() and some[:, 5:, :, 0].eq(0).all()
    torch.testing.assert_close(some[:, 4, :, 1:], by_hand[:, 4])
    torch.testing.assert_close(some[:, :4, :, 1:], call.pattern()[:, :4])


@every_slot
def test_without_its_slot_attention_is_plain_softmax(slot, make_call):
    plain = make_call()
    without = RemoveKeySlot().call(replace(plain, slot=slot()))
    torch.testing.assert_close(without.output(), plain.output())
    torch.testing.assert_close(without.pattern(), exps(plain) / exps(plain).sum(-1, keepdim=True))


def test_a_key_is_zeroed_in_the_named_heads_and_values_stay(make_call):
    call = make_call(slot=key_slot(value=2.0))
    zeroed = ZeroKeySlot(heads=[(LAYER, 2), (LAYER, 5), (0, 1)]).call(call)
    assert zeroed.slot.key[[2, 5]].eq(0).all() and zeroed.slot.key[[0, 1, 3, 4]].equal(call.slot.key[[0, 1, 3, 4]])
    assert zeroed.slot.value.equal(call.slot.value)
    logits = ZeroKeySlot(heads=[(LAYER, 0)]).call(replace(call, slot=SinkLogit(torch.ones(6)))).slot.logit
    assert logits.tolist() == [0, 1, 1, 1, 1, 1]


def test_layers_without_a_slot_or_with_one_refuse_in_one_line(make_call):
    plain, slotted = make_call(), make_call(slot=SinkLogit(torch.zeros(6)))
    behind, behind_slotted = RemoveColumn().call(plain), RemoveColumn().call(slotted)
    unfit = [(ZeroKeySlot(), plain), (RemoveKeySlot(), plain), (AddSinkLogit(), slotted), (AddSinkLogit(), behind)]
    for edit, call in (*unfit, (ZeroKeySlot(), behind_slotted), (RemoveKeySlot(), behind_slotted)):
        refused(partial(edit.call, call), "layer 3")
    for edit in (ZeroKeySlot(layers=[2]), RemoveKeySlot(layers=[2]), ZeroKeySlot(heads=[(2, 0)])):
        assert edit.call(plain) is plain
    assert AddSinkLogit(layers=[2]).call(slotted) is slotted


def call_of(scores, mask=None):
    """A call of one head with these scores, `query key`."""
    k = torch.eye(len(scores))[None, None]
    return AttentionCall(0, scores[None, None], k, k.clone(), scale=1.0, mask=mask)


def kept_one_by_one(scores, window, heavy, first, allowed):
    """What H2O keeps of the keys that some heads share, as sets: the oracle.

    scores: `head query key`. allowed: which keys a query of the cache attends to.
    """
    scores = scores.masked_fill(~allowed, -torch.inf)
    cached, weight, rows = [], torch.zeros(len(allowed)), []
    for query in range(len(allowed)):
        cached.append(query)
        if len(cached) > window:
            old = [key for key in cached if key <= query - (window - heavy)]
            old = [key for key in old if not (key == 0 and first is First.KEPT)]
            chosen = 0 if 0 in old and first is First.EVICTED else min(old, key=lambda key: float(weight[key]))
            cached.remove(chosen)
        weight[cached] += scores[:, query, cached].softmax(-1).sum(0)
        rows.append(set(cached))
    return rows


@pytest.mark.parametrize("first", First)
@pytest.mark.parametrize("window, heavy", [(5, 2), (7, 6), (3, 1)])
def test_heavy_hitters_are_those_of_a_cache_that_evicts_one_by_one(first, window, heavy):
    scores = 3 * torch.randn(23, 23, generator=torch.Generator().manual_seed(window))
    causal = torch.ones(23, 23, dtype=torch.bool).tril()
    for allowed in (causal, causal.triu(-4) | causal & (torch.arange(23) == 0)):  # the model's own window
        mask = KeepHeaviest(window, heavy, first).call(call_of(scores, allowed[None, None])).allowed()[0, 0]
        kept = kept_one_by_one(scores[None], window, heavy, first, allowed)
        seen = [{key for key in row if allowed[query, key]} for query, row in enumerate(kept)]
        assert [set(row.nonzero()[:, 0].tolist()) for row in mask] == seen


def test_heads_that_share_keys_keep_the_same_ones_by_their_summed_weight(make_call):
    call = make_call(queries=13)  # two query heads read each of three key heads
    mask, causal = KeepHeaviest(5, 2).call(call).allowed(), torch.ones(13, 13, dtype=torch.bool).tril()
    for text, head in torch.ones(2, 6).nonzero().tolist():
        shared = call.scores()[text, head // 2 * 2 : head // 2 * 2 + 2]
        kept = kept_one_by_one(shared, 5, 2, First.JUDGED, causal)
        assert [set(row.nonzero()[:, 0].tolist()) for row in mask[text, head]] == kept


def test_random_ones_do_not_look_at_scores():
    scores = torch.randn(31, 31)
    random = [KeepHeaviest(6, 2, First.EVICTED, seed=3).call(call_of(s)).allowed() for s in (scores, 0 * scores)]
    assert random[0].equal(random[1]) and not random[0][..., 6:, 0].any()


def test_without_a_choice_heavy_hitters_are_a_rolling_cache():
    subject, tokens = subject_of("llama with grouped queries"), tokens_of()
    for heavy, first in ((0, First.EVICTED), (1, First.KEPT)):
        logits = subject.run(tokens, edits=[KeepHeaviest(7, heavy, first)]).logits
        torch.testing.assert_close(logits, subject.run(tokens, edits=[Evict(7, heavy)]).logits)
    for heavy, first in ((7, First.JUDGED), (0, First.KEPT), (-1, First.EVICTED)):
        refused(partial(KeepHeaviest, 7, heavy, first), "heavy")


def test_a_seed_has_63_bits():
    assert KeepHeaviest(4, 1, seed=2**63 - 1).seed == 2**63 - 1
    for seed in (-1, 2**63):
        refused(partial(KeepHeaviest, 4, 1, seed=seed), "seed")


@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (3, 11), (5, 13)])
@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (4, 0), (1, 0), (7, 1), (20, 3)])
def test_a_query_sees_the_sinks_and_the_last_keys_of_its_window(make_call, queries, keys, window, sinks):
    seen = Evict(window, sinks).call(make_call(queries=queries, keys=keys)).allowed()[0, 0]
    for row, query in enumerate(range(keys - queries, keys)):
        recent = range(max(0, query - (window - sinks) + 1), query + 1)
        expected = sorted({*range(min(sinks, query + 1)), *recent})
        assert seen[row].nonzero().flatten().tolist() == expected


def test_a_mask_that_was_there_still_hides_its_pairs(make_call):
    mask = torch.rand(2, 6, 11, 11) < 0.5
    call = Evict(5, 2).call(make_call(mask=mask))
    assert call.mask.equal(mask & Evict(5, 2).call(make_call(mask=torch.ones_like(mask))).mask)


@pytest.mark.parametrize(("window", "sinks"), [(3, 3), (3, 4), (0, 0), (3, -1)])
def test_a_cache_without_room_for_a_recent_token_is_refused(window, sinks):
    refused(lambda: Evict(window, sinks), "sinks")
