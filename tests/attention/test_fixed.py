import pytest
import torch

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.fixed import FixedPattern
from sinkinterp.attention.kernels import Kernel, Sigmoid, Unit
from sinkinterp.attention.slots import SlotRow
from sinkinterp.errors import InputError
from sinkinterp.metrics import importance as metrics
from sinkinterp.metrics import nulls


def random_call(**change):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 11)
    slot = SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 11))
    return AttentionCall(0, q, k, v, 0.5, **{"slot": slot} | change)


@pytest.mark.parametrize("change", [{}, {"slot": None}, {"kernel": Kernel(similarity=Sigmoid(), normaliser=Unit())}])
def test_a_call_whose_own_pattern_is_fixed_answers_as_before(change):
    call = random_call(**change)
    fixed = FixedPattern.of(call, call.pattern())
    positions = torch.tensor([0, 3, 6])
    assert torch.allclose(fixed.output(), call.mix(call.pattern()), atol=1e-6)
    for read in (metrics.importance, metrics.raw_importance, nulls.uniform_importance):
        assert torch.allclose(read(fixed, positions), read(call, positions), atol=1e-6)
    assert torch.allclose(metrics.slot_importance(fixed), metrics.slot_importance(call), atol=1e-6)


def test_what_was_set_is_what_is_read():
    call = random_call(slot=None)
    weights = torch.zeros(2, 6, 7, 7)
    weights[..., 2] = 0.25
    fixed = FixedPattern.of(call, weights)
    assert metrics.importance(fixed, torch.tensor([0, 2])).unbind(-1)[0].eq(0).all()
    assert torch.allclose(metrics.raw_importance(fixed, torch.tensor([2])), torch.tensor(0.25 * 7 / 5))
    assert torch.allclose(metrics.importance(fixed, torch.tensor([2])), torch.tensor(7 / 5))  # a proxy: rows sum to 1/4
    assert torch.allclose(fixed.output()[:, 4], 0.25 * call.v[:, 2, 2][:, None].expand(-1, 7, -1))


def test_a_pattern_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"layer 0 has the shape \(2, 6, 7, 8\); got \(2, 6, 7, 7\)"):
        FixedPattern.of(random_call(), torch.zeros(2, 6, 7, 7))


def test_a_fixed_pattern_has_no_normaliser_to_ask_for():
    call = random_call()
    with pytest.raises(InputError, match="set by an edit"):
        FixedPattern.of(call, call.pattern()).log_normaliser()
