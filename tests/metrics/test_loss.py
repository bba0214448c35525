import math

import pytest
import torch

from sinkinterp.metrics.metric import next_token_loss, target_loss


def draw():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, 7, generator=rng), torch.randint(7, (3, 5), generator=rng)


def test_losses_worked_by_hand():
    chances = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]])
    losses = next_token_loss(chances.log() + 3, torch.tensor([[0, 1, 2]]))
    torch.testing.assert_close(losses, torch.tensor([[math.log(4), -math.log(0.8)]]))


def test_every_text_has_its_logits(as_users_run_it):
    logits, tokens = draw()
    for some, others in ((logits[:2], tokens), (logits, tokens[:2]), (logits[:, :3], tokens)):
        with pytest.raises(ValueError):
            target_loss(some, others)


def test_every_token_but_the_first_is_predicted_by_the_position_before_it():
    logits, tokens = draw()
    chances = logits.exp() / logits.exp().sum(-1, keepdim=True)
    expected = [[-math.log(chances[s, p, tokens[s, p + 1]]) for p in range(4)] for s in range(3)]
    torch.testing.assert_close(next_token_loss(logits, tokens), torch.tensor(expected))


def test_logits_of_half_precision_are_summed_in_fp32():
    logits, tokens = draw()
    losses = next_token_loss(logits.bfloat16(), tokens)
    assert losses.dtype == torch.float32
    assert losses.equal(next_token_loss(logits.bfloat16().float(), tokens))
