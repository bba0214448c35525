import math

import pytest
import torch

from sinkinterp.attention.kernels import Exp, Identity, Kernel, Magnitude, PNorm, Raw, Sigmoid, Unit

PAIRS = [(similarity, PNorm()) for similarity in (Exp(), Sigmoid(), Raw(), Magnitude(Raw()))]
PAIRS += [(similarity, Unit()) for similarity in (Sigmoid(), Raw(), Magnitude(Raw()))]
ALLOWED = torch.ones(7, 7).tril().bool()[None, None]


def test_softmax_by_hand():
    pattern = Kernel().pattern(
        torch.tensor([[[[0.0, 9.0], [0.0, math.log(3)]]]]), torch.ones(2, 2).tril().bool()[None, None]
    )
    torch.testing.assert_close(pattern[0, 0], torch.tensor([[1.0, 0.0], [0.25, 0.75]]))


def test_sigmoid_without_normalisation_by_hand():
    kernel = Kernel(similarity=Sigmoid(), normaliser=Unit())
    pattern = kernel.pattern(
        torch.tensor([[[[0.0, 9.0], [math.log(3), 0.0]]]]), torch.ones(2, 2).tril().bool()[None, None]
    )
    torch.testing.assert_close(pattern[0, 0], torch.tensor([[0.5, 0.0], [0.75, 0.5]]))


def test_a_signed_similarity_is_divided_by_the_sum_of_magnitudes():
    pattern = Kernel(similarity=Raw()).pattern(torch.tensor([[[[3.0, -1.0]]]]), torch.ones(1, 1, 1, 2).bool())
    torch.testing.assert_close(pattern.flatten(), torch.tensor([0.75, -0.25]))


@pytest.mark.parametrize(("similarity", "normaliser"), PAIRS, ids=str)
def test_the_log_form_of_a_kernel_is_its_value_form(similarity, normaliser):
    kernel = Kernel(similarity=similarity, normaliser=normaliser, alpha=0.7)
    scores = torch.randn(2, 3, 7, 7) * 4
    log_sim = similarity.log_magnitude(scores).masked_fill(~ALLOWED, -torch.inf)
    streamed = 0.7 * (log_sim - normaliser.log_size(log_sim.logsumexp(-1))[..., None]).exp()
    torch.testing.assert_close(streamed, kernel.pattern(scores, ALLOWED).abs())


def test_exp_needs_a_normaliser_that_restores_the_row_factor():
    with pytest.raises(ValueError, match="PNorm"):
        Kernel(similarity=Exp(), normaliser=Unit())


def test_a_row_that_sees_nothing_is_zero_and_has_finite_gradients():
    scores = torch.randn(1, 1, 3, 3, requires_grad=True)
    pattern = Kernel().pattern(scores, torch.zeros(1, 1, 3, 3).bool())
    pattern.sum().backward()
    assert pattern.eq(0).all() and scores.grad.isfinite().all()


def test_large_scores_do_not_overflow():
    assert Kernel().pattern(torch.tensor([[[[1e4, 1e4]]]]), torch.ones(1, 1, 1, 2).bool()).tolist() == [[[[0.5, 0.5]]]]


def test_only_p_one_is_known():
    with pytest.raises(ValueError, match="p = 1"):
        PNorm(2.0)


def test_identity_leaves_vectors_alone():
    x = torch.randn(2, 3, 5, 7)
    assert Identity()(x) is x
