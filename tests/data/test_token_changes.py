from functools import partial

import pytest
import torch
from refusals import refused
from sinkinterp._experiments.shared.tasks import Edited, FixedAt, Limited, RandomAt

from sinkinterp.data.backcopy import BigramBackcopy, ChainFirst, Sample
from sinkinterp.data.draws import HELD_OUT
from sinkinterp.spec import Spec
from sinkinterp.train.loop import Task, prepared

TOKENS = torch.arange(211 * 7).reshape(211, 7) % 13
CHUNKS = torch.randperm(211, generator=torch.Generator().manual_seed(3))


def sample(*stream, rows=slice(None)):
    return Sample(TOKENS[rows], CHUNKS[rows], 13, stream)


@pytest.mark.parametrize("redraw", [True, False])
def test_random_tokens_are_uniform_at_their_positions_and_leave_the_others(redraw):
    found = RandomAt(2, 5, redraw)(sample(0, 1))
    assert found[:, [0, 1, 5, 6]].equal(TOKENS[:, [0, 1, 5, 6]])
    counts = found[:, 2:5].flatten().bincount(minlength=13)
    expected = 211 * 3 / 13
    assert len(counts) == 13 and ((counts - expected) ** 2 / expected).sum() < 12 + 4 * 24**0.5
    assert len(found[:, 2:5].unique(dim=0)) > 150


def test_redrawn_tokens_follow_the_stream():
    edit = RandomAt(0, 3)
    assert edit(sample(0, 1)).equal(edit(sample(0, 1)))
    drawn = [edit(sample(*stream))[:, :3] for stream in ((0, 1), (0, 2), (1, 1), ("held out",))]
    assert not any(a.equal(b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_fixed_random_tokens_follow_the_chunk_alone():
    edit, rows = RandomAt(0, 3, redraw=False), torch.tensor([7, 3, 200])
    assert edit(sample(0, 1))[rows].equal(edit(sample(1, 9, rows=rows)))
    assert not edit(sample(0, 1))[:, :3].equal(RandomAt(0, 3)(sample(0, 1))[:, :3])


def test_a_fixed_token_stands_in_its_place_and_nowhere_else():
    found = FixedAt(2, 11)(sample(0, 1))
    assert found[:, 2].eq(11).all()
    assert found[:, [0, 1, 3, 4, 5, 6]].equal(TOKENS[:, [0, 1, 3, 4, 5, 6]])


@pytest.mark.parametrize("edit", [RandomAt(0, 2), RandomAt(1, 3, redraw=False), FixedAt(1, 4)])
def test_an_edit_leaves_what_it_was_given_and_survives_json(edit):
    before = TOKENS.clone()
    edit(sample(0, 1))
    assert TOKENS.equal(before)
    assert Spec.from_dict(edit.to_dict()) == edit


def test_edits_beyond_the_sequence_or_the_vocabulary_are_refused():
    for edit in (RandomAt(0, 7), RandomAt(6, 7), FixedAt(6, 12), FixedAt(0, 0)):
        edit.check(13, 7)
    wrong = (RandomAt(0, 8), RandomAt(3, 3), RandomAt(-1, 2), FixedAt(7, 0), FixedAt(-1, 0), FixedAt(0, 13))
    for edit in wrong:
        refused(partial(edit.check, 13, 7))
    refused(lambda: Edited(TASK, (FixedAt(7, 5),)), "7")


TASK = BigramBackcopy(vocab=11, length=7, n_triggers=2, first=ChainFirst())


@pytest.mark.parametrize("task", [Edited(TASK, (FixedAt(2, 5), RandomAt(0, 1))), Limited(13, TASK)])
def test_a_task_made_from_a_task_is_one_and_survives_json(task, tmp_path):
    assert isinstance(task, Task) and prepared(task, tmp_path) is task
    assert Spec.from_dict(task.to_dict()) == task
    assert (task.vocab, task.length) == (11, 7) and task.sample(5, 0, 1).equal(task.sample(5, 0, 1))


def test_edits_change_their_position_in_training_and_held_out_sequences():
    edited = Edited(TASK, (FixedAt(2, 5),))
    for stream in ((0, 1), HELD_OUT):
        before, after = TASK.sample(17, *stream), edited.sample(17, *stream)
        assert (after[:, 2] == 5).all() and not (before[:, 2] == 5).all()
        others = [p for p in range(7) if p != 2]
        assert after[:, others].equal(before[:, others])


def test_training_sees_only_so_many_different_sequences_and_held_out_ones_are_new():
    limited = Limited(13, TASK)
    seen = torch.cat([limited.sample(50, 0, step) for step in range(1, 9)])
    assert len(seen.unique(dim=0)) == 13
    assert limited.sample(50, 0, 1).ne(limited.sample(50, 0, 2)).any()  # other draws from the same pool
    assert limited.sample(29, *HELD_OUT).equal(TASK.sample(29, *HELD_OUT))
    refused(lambda: Limited(0, TASK), "sequences of Limited")
