import pytest
import torch

from sinkinterp.errors import InputError
from sinkinterp.metrics import secondary
from sinkinterp.metrics.secondary import TokenSink, cosine_to_first, sink_grid, sink_positions, sink_tokens
from sinkinterp.metrics.sink import sink_rate

SIX = torch.tensor([[[[0.9, 0.1], [0.5, 0.1]]], [[[0.4, 0.7], [0.1, 0.1]]]])  # 2 sequences, 1 layer, 2 heads, 2 tokens


def secondary_sinks(residuals, *options, **named):
    """From residuals `block sequence pos d_model`."""
    cosines = torch.stack([cosine_to_first(x) for x in residuals], 1)
    return secondary.secondary_sinks(cosines, *options, **named)


def drawn():
    return torch.rand(3, 5, 7, 11)


def test_a_grid_worked_by_hand():
    assert sink_grid(SIX, (0.3, 0.6)).tolist() == [[0.75, 0.25], [0.25, 0.25]]


def test_a_grid_holds_the_sink_rate_of_each_position_whatever_the_order_of_epsilons():
    alpha, epsilons = drawn(), (0.5, 0.1, 0.9, 0.3)
    alpha[1, :, :, 4:] = torch.nan  # a sequence that ends before position 4
    grid = sink_grid(alpha, epsilons)
    assert grid.shape == (4, 11)
    for row, epsilon in zip(grid, epsilons, strict=True):
        expected = torch.stack([sink_rate(alpha[..., p], epsilon).nanmean() for p in range(11)])
        torch.testing.assert_close(row, expected)


def test_the_threshold_of_a_grid_is_strict():
    epsilons = (0.1, 0.2, 0.3, 0.7)
    above = torch.nextafter(torch.tensor(epsilons), torch.tensor(1.0))
    assert sink_grid(torch.tensor(epsilons)[None, None, None], epsilons).diagonal().eq(0).all()
    assert sink_grid(above[None, None, None], epsilons).diagonal().eq(1).all()


@pytest.mark.parametrize("epsilon", [0.0, 1.0, float("nan")])
def test_an_epsilon_that_is_no_share_is_refused(epsilon):
    with pytest.raises(InputError, match="between 0 and 1"):
        sink_grid(SIX, (0.3, epsilon))
    with pytest.raises(InputError, match="between 0 and 1"):
        sink_tokens(SIX, torch.zeros(2, 2, dtype=torch.long), epsilon)


def test_an_empty_grid_is_refused():
    with pytest.raises(InputError, match="at least one"):
        sink_grid(SIX, ())


def test_sink_positions_worked_by_hand():
    none = torch.zeros_like(SIX)
    assert sink_positions(SIX, none, epsilon=0.3, share=0.2).tolist() == [0, 1]
    assert sink_positions(SIX, none, epsilon=0.3, share=0.25).tolist() == [0]
    assert sink_positions(SIX, none, epsilon=0.3, share=0.75).tolist() == []


def test_a_position_that_uniform_attention_would_make_a_sink_as_often_is_none():
    alpha, null = drawn(), drawn() * 0.2
    null[..., 3] = alpha[..., 3]
    expected = [p for p in range(11) if (alpha[..., p] > 0.4).float().mean() > 0.5 and p != 3]
    found = sink_positions(alpha, null, epsilon=0.4, share=0.5).tolist()
    assert found == expected and 3 < len(found) < 11


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_that_no_position_could_exceed_is_refused(share):
    with pytest.raises(InputError, match="below 1"):
        sink_positions(SIX, SIX, 0.3, share)


def test_sink_tokens_worked_by_hand():
    tokens = torch.tensor([[7, 2], [7, 4]])
    assert sink_tokens(SIX, tokens, 0.3) == [TokenSink(7, 2, 0.75), TokenSink(4, 1, 0.5), TokenSink(2, 1, 0.0)]


def test_ties_fall_to_the_more_frequent_token_then_the_smaller_id():
    tokens = torch.tensor([[9, 9, 3, 5, 1]])
    assert [row.token for row in sink_tokens(torch.zeros(1, 2, 3, 5), tokens, 0.3)] == [9, 1, 3, 5]


def test_sink_tokens_are_what_a_loop_over_occurrences_counts():
    alpha, tokens = drawn(), torch.randint(13, (3, 11))
    rows = sink_tokens(alpha, tokens, 0.6)
    assert sorted(row.token for row in rows) == sorted(set(tokens.flatten().tolist()))
    for row in rows:
        heads = [alpha[s, :, :, p] for s in range(3) for p in range(11) if tokens[s, p] == row.token]
        assert row.occurrences == len(heads)
        assert row.share == pytest.approx((torch.stack(heads) > 0.6).float().mean().item())


def test_secondary_sinks_worked_by_hand():
    first, across, along, against = [2.0, 0.0], [0.0, 5.0], [3.0, 0.1], [-4.0, 0.0]
    blocks = torch.tensor(
        [[first, along, across, across], [first, across, across, against], [first, across, along, across]]
    )
    residuals = blocks[:, None]
    assert secondary_sinks(residuals, 0, 2).tolist() == [[False, True, True, False]]
    assert secondary_sinks(residuals, 1, 2).tolist() == [[False, False, True, False]]
    assert secondary_sinks(residuals, 0, 1).tolist() == [[False, True, False, False]]
    assert not secondary_sinks(residuals, 1, 1).any()


def test_secondary_sinks_are_those_with_a_close_angle_to_their_own_first_token():
    residuals = torch.randn(7, 3, 11, 5)
    expected = torch.zeros(3, 11, dtype=torch.bool)
    for block in range(2, 5):
        for s in range(3):
            for p in range(1, 11):
                x, first = residuals[block, s, p], residuals[block, s, 0]
                expected[s, p] |= bool(x @ first / (x @ x * (first @ first)).sqrt() > 0.6)
    assert 0 < expected.sum() < 30
    assert torch.equal(secondary_sinks(residuals, 2, 4, cosine=0.6), expected)


def test_the_length_of_a_residual_does_not_matter():
    residuals, lengths = torch.randn(3, 2, 7, 5), torch.rand(3, 2, 7, 1) * 1000 + 1
    assert torch.equal(secondary_sinks(residuals * lengths, 0, 2, 0.5), secondary_sinks(residuals, 0, 2, 0.5))


@pytest.mark.parametrize(("step_up", "step_down"), [(-1, 2), (2, 1), (0, 3)])
def test_steps_outside_the_blocks_or_out_of_order_are_refused(step_up, step_down):
    with pytest.raises(InputError, match="from 0 to 2, in order"):
        secondary_sinks(torch.randn(3, 2, 5, 7), step_up, step_down)


@pytest.mark.parametrize("cosine", [0.0, 1.0, float("nan")])
def test_a_cosine_that_no_angle_could_exceed_is_refused(cosine):
    with pytest.raises(InputError, match="between 0 and 1"):
        secondary_sinks(torch.randn(3, 2, 5, 7), 0, 1, cosine)


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


def test_the_cosine_to_the_first_token_worked_by_hand():
    x = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]])
    torch.testing.assert_close(cosine_to_first(x), torch.tensor([[1.0, 0.0, -1.0, 0.6, 0.0]]))
    torch.testing.assert_close(cosine_to_first(x.half() * 1e4), cosine_to_first(x))
