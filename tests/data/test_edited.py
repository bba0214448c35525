import pytest
import torch

from sinkinterp.data.backcopy import BigramBackcopy, ChainFirst
from sinkinterp.data.edited import Edited, Limited
from sinkinterp.data.packing import HELD_OUT
from sinkinterp.data.stream_edits import FixedAt, RandomAt
from sinkinterp.errors import InputError
from sinkinterp.spec import Spec
from sinkinterp.train.task import Task, prepared

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


def test_an_edit_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="below 11 at a position below 7"):
        Edited(TASK, (FixedAt(7, 5),))


def test_training_sees_only_so_many_different_sequences_and_held_out_ones_are_new():
    limited = Limited(13, TASK)
    seen = torch.cat([limited.sample(50, 0, step) for step in range(1, 9)])
    assert len(seen.unique(dim=0)) == 13
    assert limited.sample(50, 0, 1).ne(limited.sample(50, 0, 2)).any()  # other draws from the same pool
    assert limited.sample(29, *HELD_OUT).equal(TASK.sample(29, *HELD_OUT))
    with pytest.raises(ValueError, match="at least 1 sequence"):
        Limited(0, TASK)
