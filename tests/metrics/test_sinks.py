import numpy as np
import pytest
import torch

from sinkinterp.metrics.importance import (
    TokenSink,
    above_controls,
    control_positions,
    sink_grid,
    sink_positions,
    sink_rate,
    sink_tokens,
)

SIX = torch.tensor([[[[0.9, 0.1], [0.5, 0.1]]], [[[0.4, 0.7], [0.1, 0.1]]]])  # 2 sequences, 1 layer, 2 heads, 2 tokens


def drawn():
    return torch.rand(3, 5, 7, 11)


def test_a_grid_worked_by_hand():
    assert sink_grid(SIX, (0.3, 0.6)).tolist() == [[0.75, 0.25], [0.25, 0.25]]
    assert sink_positions(SIX, torch.zeros_like(SIX), 0.3, 0.25).tolist() == [0]  # strictly above


def test_a_grid_holds_the_sink_rate_of_each_position_whatever_the_order_of_epsilons():
    alpha, epsilons = drawn(), (0.5, 0.1, 0.9, 0.3)
    alpha[1, :, :, 4:] = torch.nan  # a sequence that ends before position 4
    grid = sink_grid(alpha, epsilons)
    for same in (iter(epsilons), torch.tensor(epsilons), np.array(epsilons, dtype=np.float32)):
        assert sink_grid(alpha, same).equal(grid)
    assert sink_grid(alpha, 0.3).equal(grid[3:])
    assert grid.shape == (4, 11)
    for row, epsilon in zip(grid, epsilons, strict=True):
        expected = torch.stack([sink_rate(alpha[..., p], epsilon).nanmean() for p in range(11)])
        torch.testing.assert_close(row, expected)


def test_a_position_is_a_sink_where_its_rate_exceeds_that_of_uniform_attention_by_the_share():
    alpha, null = drawn(), drawn() * 0.2
    null[..., 3] = alpha[..., 3]
    null[..., 5] = 0.9 * (torch.arange(7) < 5)  # a window so short that uniform attention has a sink in most heads
    alpha[..., 5] = 0.9
    expected = [p for p in range(11) if (alpha[..., p] > 0.4).float().mean() > 0.5 and p not in (3, 5)]
    found = sink_positions(alpha, null, epsilon=0.4, share=0.5).tolist()
    assert found == expected and 3 < len(found) < 11
    assert 5 in sink_positions(alpha, null, epsilon=0.4, share=0.2)


def test_sink_tokens_worked_by_hand():
    tokens = torch.tensor([[7, 2], [7, 4]])
    assert sink_tokens(SIX, tokens, 0.3) == [TokenSink(7, 2, 0.75), TokenSink(4, 1, 0.5), TokenSink(2, 1, 0.0)]


def test_ties_fall_to_the_more_frequent_token_then_the_smaller_id():
    tokens = torch.tensor([[9, 9, 3, 5, 1]])
    assert [row.token for row in sink_tokens(torch.zeros(1, 2, 3, 5), tokens, 0.3)] == [9, 1, 3, 5]


def test_padding_counts_neither_as_a_token_nor_in_a_grid():
    alpha, tokens = drawn(), torch.randint(5, (3, 11))
    alpha[1, :, :, 7:], tokens[1, 7:] = torch.nan, -1
    assert {row.token for row in sink_tokens(alpha, tokens, 0.6)} == set(tokens[tokens >= 0].tolist())
    for row in sink_tokens(alpha, tokens, 0.6):
        heads = alpha.movedim(-1, 1)[tokens == row.token]
        assert (row.occurrences, row.share) == (len(heads), pytest.approx((heads > 0.6).float().mean().item()))
    alpha[..., 9:] = torch.nan
    assert sink_grid(alpha, (0.3,))[0].isnan().tolist() == [False] * 9 + [True] * 2
    assert 9 not in sink_positions(alpha, alpha * 0, 0.3, 0.1)


@pytest.mark.parametrize("epsilon", [0.1, 0.2, 0.3, 0.5, 0.7])
def test_the_threshold_is_strict(epsilon):
    above = torch.nextafter(torch.tensor(epsilon), torch.tensor(1.0)).item()
    alpha = torch.tensor([[[epsilon, above]]])
    assert sink_rate(alpha, epsilon).tolist() == [0.5]
    assert sink_grid(alpha[:, None], (epsilon,)).tolist() == [[0, 1]]


def test_heads_are_counted_before_they_are_averaged_and_a_sequence_without_the_position_has_no_rate():
    first, second = [[0.9, 0.0, 0.0], [0.2, 0.2, 0.2]], [[0.4, 0.4, 0.4], [0.4, 0.0, 0.0]]
    alpha = torch.tensor([first, second, [[torch.nan] * 3] * 2])
    torch.testing.assert_close(sink_rate(alpha, 0.3), torch.tensor([1 / 6, 4 / 6, torch.nan]), equal_nan=True)


def test_heads_above_the_controls_worked_by_hand():
    excess = torch.zeros(2, 1, 50, 3)  # sequence layer head pos; 200 controls, of which 1% is two
    excess[0, 0, :3, 1] = torch.tensor([0.9, 0.8, 0.5])  # the 99th percentile is .5, the third largest
    excess[0, 0, :4, 0] = torch.tensor([0.6, 0.51, 0.5, 0.4])
    assert above_controls(excess).tolist() == pytest.approx([2 / 50, 0])
    excess[1, ..., 0] = torch.nan  # a sequence that is too short
    assert above_controls(excess).tolist() == pytest.approx([2 / 50, torch.nan], nan_ok=True)


@pytest.mark.parametrize("length", [2, 3, 5, 16, 64, 1000])
def test_controls_lie_behind_the_first_position_in_the_first_half(length):
    first, *controls = control_positions(length)
    assert first == 0 and controls and 0 < min(controls) <= max(controls) < max(2, length // 2) and len(controls) <= 9
