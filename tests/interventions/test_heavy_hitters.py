"""The mask of a cache that keeps the heaviest keys, against a cache that evicts one by one."""

from functools import partial

import pytest
import torch
from backends.zoo import subject_of, tokens_of
from refusals import refused

from sinkinterp.attention.call import AttentionCall
from sinkinterp.interventions.columns import Evict, First, KeepHeaviest


def call_of(scores, mask=None):
    """A call of one head with these scores, `query key`."""
    k = torch.eye(len(scores))[None, None]
    return AttentionCall(0, scores[None, None], k, k.clone(), scale=1.0, mask=mask)


def kept_one_by_one(scores, window, heavy, first, allowed):
    """What H2O keeps, as sets: the oracle. allowed: which keys a query of the cache attends to."""
    scores = scores.masked_fill(~allowed, -torch.inf)
    cached, weight, rows = [], torch.zeros(len(scores)), []
    for query in range(len(scores)):
        cached.append(query)
        if len(cached) > window:
            old = [key for key in cached if key <= query - (window - heavy)]
            old = [key for key in old if not (key == 0 and first is First.KEPT)]
            chosen = 0 if 0 in old and first is First.EVICTED else min(old, key=lambda key: float(weight[key]))
            cached.remove(chosen)
        weight[cached] += scores[query, cached].softmax(0)
        rows.append(set(cached))
    return rows


@pytest.mark.parametrize("first", First)
@pytest.mark.parametrize("window, heavy", [(5, 2), (7, 6), (3, 1)])
def test_heavy_hitters_are_those_of_a_cache_that_evicts_one_by_one(first, window, heavy):
    scores = 3 * torch.randn(23, 23, generator=torch.Generator().manual_seed(window))
    causal = torch.ones(23, 23, dtype=torch.bool).tril()
    for allowed in (causal, causal.triu(-4) | causal & (torch.arange(23) == 0)):  # the model's own window
        mask = KeepHeaviest(window, heavy, first).call(call_of(scores, allowed[None, None])).allowed()[0, 0]
        kept = kept_one_by_one(scores, window, heavy, first, allowed)
        seen = [{key for key in row if allowed[query, key]} for query, row in enumerate(kept)]
        assert [set(row.nonzero()[:, 0].tolist()) for row in mask] == seen


def test_a_planted_heavy_hitter_stays_and_random_ones_do_not_look_at_scores():
    scores = torch.zeros(31, 31)
    scores[:, 4] = 8.0
    kept = KeepHeaviest(6, 1).call(call_of(scores)).allowed()[0, 0]
    assert kept[4:, 4].all() and kept.sum(-1).tolist() == [*range(1, 7), *[6] * 25]
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
