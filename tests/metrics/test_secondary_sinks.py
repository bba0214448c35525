import torch

from sinkinterp.metrics import residuals as module
from sinkinterp.metrics.residuals import cosine_to_first


def secondary_sinks(residuals, *options, **named):
    """From residuals `block sequence pos d_model`."""
    cosines = torch.stack([cosine_to_first(x) for x in residuals], 1)
    return module.secondary_sinks(cosines, *options, **named)


def test_secondary_sinks_worked_by_hand():
    first, across, along, against = [2.0, 0.0], [0.0, 5.0], [3.0, 0.1], [-4.0, 0.0]
    blocks = [[first, along, across, across], [first, across, across, against], [first, across, along, across]]
    residuals = torch.tensor(blocks)[:, None]
    for steps, positions in {(0, 2): [1, 2], (1, 2): [2], (0, 1): [1], (1, 1): []}.items():
        assert secondary_sinks(residuals, *steps)[0].nonzero().flatten().tolist() == positions


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


def test_the_cosine_to_the_first_token_worked_by_hand():
    x = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]])
    torch.testing.assert_close(cosine_to_first(x), torch.tensor([[1.0, 0.0, -1.0, 0.6, 0.0]]))
    torch.testing.assert_close(cosine_to_first(x.half() * 1e4), cosine_to_first(x))


def test_the_cosine_to_the_first_token_is_that_of_torch():
    x = torch.randn(3, 17, 13)
    x[1, 4] = x[2, 0] = 0
    x[0, 5] *= 1e6
    expected = torch.nn.functional.cosine_similarity(x, x[:, :1], dim=-1)
    torch.testing.assert_close(cosine_to_first(x), expected, rtol=1e-5, atol=1e-6)
