import torch

from sinkinterp.metrics.writes import is_broadcast, is_nop


def test_nop_and_broadcast_worked_by_hand():
    ratios = torch.tensor([[0.0, 0.19, 0.2, 0.79], [0.8, 1.0, 1.25, 1.26]])
    assert is_nop(ratios).tolist() == [[True, True, False, False], [False] * 4]
    assert is_broadcast(ratios).tolist() == [[False] * 4, [True, True, True, False]]
