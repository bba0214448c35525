from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused
from sinkinterp._experiments.shared.tasks import Edited, FixedAt, Limited, RandomAt

from sinkinterp.data.backcopy import BigramBackcopy, BosFirst, ChainFirst, RandomFirst
from sinkinterp.data.draws import HELD_OUT, Sample
from sinkinterp.spec import Spec
from sinkinterp.train.loop import Task, prepared

TASK = BigramBackcopy(vocab=11, length=17, n_triggers=3, spread=0.7)
TOKENS = TASK.sample(2003, "test", 0)
N = TOKENS.numel()


def deviations(counts, expected):
    """Pearson's chi-square in standard deviations above what chance makes of it."""
    cells = expected > 0
    chi2 = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - 1
    return ((chi2 - degrees) / (2 * degrees) ** 0.5).item()


def after(rule):
    """Pairs (token, next token) wherever `rule(token)` holds, as a table of counts."""
    pairs = TOKENS.unfold(1, 2, 1).flatten(0, 1)
    pairs = pairs[rule(pairs[:, 0])]
    return torch.zeros(TASK.vocab, TASK.vocab).index_put_(tuple(pairs.T), torch.tensor(1.0), accumulate=True)


def test_the_first_token_is_uniform_and_as_a_trigger_copies_nothing_but_follows_the_chain():
    counts = TOKENS[:, 0].bincount(minlength=11)
    assert deviations(counts, torch.full((11,), len(TOKENS) / 11)) < 4
    rows = TOKENS[TOKENS[:, 0] == 1]
    assert deviations(rows[:, 1].bincount(minlength=11), TASK.transitions()[1] * len(rows)) < 4


def test_bigrams_after_a_non_trigger_follow_the_transitions():
    counts = after(lambda token: token >= TASK.n_triggers)
    transitions = TASK.transitions()
    for symbol in range(TASK.n_triggers, 11):
        assert deviations(counts[symbol], transitions[symbol] * counts[symbol].sum()) < 4
    assert counts.sum() > N / 4


@pytest.mark.parametrize("task", [TASK, BigramBackcopy(), replace(TASK, rank=1), replace(TASK, spread=5.0)])
def test_rows_of_transitions_sum_to_one(task):
    transitions = task.transitions()
    assert transitions.shape == (task.vocab, task.vocab)
    assert (transitions > 0).all()
    torch.testing.assert_close(transitions.sum(-1), torch.ones(task.vocab, dtype=torch.float64))


def test_without_spread_transitions_are_zipf_and_forget_the_symbol():
    zipf = 1 / torch.arange(1.0, 12, dtype=torch.float64)
    expected = (zipf / zipf.sum()).expand(11, 11)
    torch.testing.assert_close(replace(TASK, spread=0.0).transitions(), expected, rtol=1e-6, atol=0)


def test_a_stream_gives_its_own_tokens_whatever_the_callers_random_state_which_stays():
    state = torch.get_rng_state()
    samples = [TASK.sample(7, *stream) for stream in (("train", 3), ("train", 4), ("valid", 3), ())]
    assert torch.get_rng_state().equal(state)
    assert not any(a.equal(b) for i, a in enumerate(samples) for b in samples[:i])
    torch.manual_seed(1)
    assert TASK.sample(7, "train", 3).equal(samples[0])


def test_another_chain_seed_is_another_language_with_the_same_first_tokens():
    other = replace(TASK, chain_seed=2)
    assert not other.transitions().isclose(TASK.transitions()).all()
    assert other.sample(7, "train")[:, 0].equal(TASK.sample(7, "train")[:, 0])


def test_a_task_that_begins_as_ever_keeps_its_key_and_another_beginning_has_another():
    assert BigramBackcopy().key() == "8ac1705300ef"  # from before there was a choice
    assert len({replace(TASK, first=first).key() for first in (RandomFirst(), ChainFirst(), BosFirst())}) == 3
    for first in (ChainFirst(), BosFirst()):
        assert Spec.from_dict(replace(TASK, first=first).to_dict()) == replace(TASK, first=first)


def test_bos_is_first_and_nowhere_else_and_behind_it_is_what_would_be_there_without_it():
    tokens = replace(TASK, first=BosFirst()).sample(211, "bos")
    assert tokens.shape == (211, 17) and tokens[:, 0].eq(10).all() and tokens[:, 1:].max() == 9
    plain = replace(TASK, first=ChainFirst())
    behind = replace(TASK, first=BosFirst(), vocab=12, length=18).sample(7, "train", 3)[:, 1:]
    assert behind.equal(plain.sample(7, "train", 3)) and not behind.equal(TASK.sample(7, "train", 3))


def test_without_a_mark_the_first_token_is_one_like_any_other():
    tokens = replace(TASK, first=ChainFirst()).sample(20_011, "chain")
    first, later = tokens[:, 0].bincount(minlength=11), tokens[:, -1].bincount(minlength=11)
    both = (first + later) / 2
    assert (((first - both) ** 2 + (later - both) ** 2) / both).sum() < 10 + 4 * 20**0.5
    random = TASK.sample(20_011, "chain")[:, 0].bincount(minlength=11)
    assert (first - random).abs().max() > 1000  # not uniform, as the default's is


@pytest.mark.parametrize("first", [RandomFirst(), ChainFirst(), BosFirst()])
def test_the_token_after_a_trigger_repeats_the_token_before_it_however_a_sequence_begins(first):
    tokens = replace(TASK, first=first).sample(2003, "copy")
    assert tokens.shape == (2003, 17) and set(tokens.unique().tolist()) == set(range(11))
    before, trigger, copy = tokens[:, int(first == BosFirst()) :].unfold(1, 3, 1).unbind(-1)
    is_trigger = trigger < TASK.n_triggers
    assert is_trigger.sum() > 1000 and copy[is_trigger].equal(before[is_trigger])


ROWS = torch.arange(211 * 7).reshape(211, 7) % 13
CHUNKS = torch.randperm(211, generator=torch.Generator().manual_seed(3))


def sample(*stream, rows=slice(None)):
    return Sample(ROWS[rows], CHUNKS[rows], 13, stream)


@pytest.mark.parametrize("redraw", [True, False])
def test_random_tokens_are_uniform_at_their_positions_and_leave_the_others(redraw):
    found = RandomAt(2, 5, redraw)(sample(0, 1))
    assert found[:, [0, 1, 5, 6]].equal(ROWS[:, [0, 1, 5, 6]])
    counts = found[:, 2:5].flatten().bincount(minlength=13)
    expected = 211 * 3 / 13
    assert len(counts) == 13 and ((counts - expected) ** 2 / expected).sum() < 12 + 4 * 24**0.5
    assert len(found[:, 2:5].unique(dim=0)) > 150


def test_redrawn_tokens_follow_the_stream_and_fixed_ones_the_chunk_alone():
    redrawn, fixed, rows = RandomAt(0, 3), RandomAt(0, 3, redraw=False), torch.tensor([7, 3, 200])
    drawn = [redrawn(sample(*stream))[:, :3] for stream in ((0, 1), (0, 2), (1, 1), ("held out",))]
    drawn.append(fixed(sample(0, 1))[:, :3])
    assert not any(a.equal(b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert redrawn(sample(0, 1))[:, :3].equal(drawn[0])
    assert fixed(sample(0, 1))[rows].equal(fixed(sample(1, 9, rows=rows)))


def test_a_fixed_token_is_in_its_place_and_nowhere_else():
    found = FixedAt(2, 11)(sample(0, 1))
    assert found[:, 2].eq(11).all()
    assert found[:, [0, 1, 3, 4, 5, 6]].equal(ROWS[:, [0, 1, 3, 4, 5, 6]])


@pytest.mark.parametrize("edit", [RandomAt(0, 2), RandomAt(1, 3, redraw=False), FixedAt(1, 4)])
def test_an_edit_leaves_what_it_was_given_and_survives_json(edit):
    before = ROWS.clone()
    edit(sample(0, 1))
    assert ROWS.equal(before) and Spec.from_dict(edit.to_dict()) == edit


def test_edits_beyond_the_sequence_or_the_vocabulary_are_refused():
    for edit in (RandomAt(0, 7), RandomAt(6, 7), FixedAt(6, 12), FixedAt(0, 0)):
        edit.check(13, 7)
    wrong = (RandomAt(0, 8), RandomAt(3, 3), RandomAt(-1, 2), FixedAt(7, 0), FixedAt(-1, 0), FixedAt(0, 13))
    for edit in wrong:
        refused(partial(edit.check, 13, 7))
    refused(lambda: Edited(CHAIN, (FixedAt(7, 5),)), "7")


CHAIN = BigramBackcopy(vocab=11, length=7, n_triggers=2, first=ChainFirst())


@pytest.mark.parametrize("task", [Edited(CHAIN, (FixedAt(2, 5), RandomAt(0, 1))), Limited(13, CHAIN)])
def test_a_task_made_from_a_task_is_one_and_survives_json(task, tmp_path):
    assert isinstance(task, Task) and prepared(task, tmp_path) is task
    assert Spec.from_dict(task.to_dict()) == task
    assert (task.vocab, task.length) == (11, 7) and task.sample(5, 0, 1).equal(task.sample(5, 0, 1))


def test_edits_change_their_position_in_training_and_held_out_sequences():
    edited = Edited(CHAIN, (FixedAt(2, 5),))
    for stream in ((0, 1), HELD_OUT):
        before, after = CHAIN.sample(17, *stream), edited.sample(17, *stream)
        assert (after[:, 2] == 5).all() and not (before[:, 2] == 5).all()
        others = [p for p in range(7) if p != 2]
        assert after[:, others].equal(before[:, others])


def test_training_sees_only_so_many_different_sequences_and_held_out_ones_are_new():
    limited = Limited(13, CHAIN)
    seen = torch.cat([limited.sample(50, 0, step) for step in range(1, 9)])
    assert len(seen.unique(dim=0)) == 13
    assert limited.sample(50, 0, 1).ne(limited.sample(50, 0, 2)).any()  # other draws from the same pool
    assert limited.sample(29, *HELD_OUT).equal(CHAIN.sample(29, *HELD_OUT))
    refused(lambda: Limited(0, CHAIN), "sequences of Limited")
