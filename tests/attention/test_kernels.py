import math
from dataclasses import replace

import pytest
import torch
from lm.family import SPECS, tokens
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.kernels import (
    ClampedSum,
    EluFeature,
    EluPlusOne,
    Exp,
    ExpMinusOne,
    Identity,
    Kernel,
    Magnitude,
    MLPFeature,
    PNorm,
    PositiveShare,
    Raw,
    Rectified,
    Sigmoid,
    Stretched,
    Unit,
)
from sinkinterp.attention.masks import Prefix, Window
from sinkinterp.attention.slots import LearnedRow
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.interventions import PatchNormalization
from sinkinterp.lm.model import build
from sinkinterp.spec import Dims

NORMALISERS = [Unit(), PNorm(), PNorm(0.5), PNorm(3.0), ClampedSum(), PositiveShare()]
SIMILARITIES = [
    Exp(), ExpMinusOne(), Sigmoid(), Sigmoid(11.0), EluPlusOne(), Raw(), Magnitude(Raw()), Rectified(Raw()),
    Magnitude(ExpMinusOne()), Rectified(ExpMinusOne()),
]  # fmt: skip
PAIRS = [(s, n) for s in SIMILARITIES for n in NORMALISERS if n.degree == 1 or not s.drops_factor]
every_pair = pytest.mark.parametrize(("similarity", "normaliser"), PAIRS, ids=str)
ALLOWED = torch.ones(7, 7).tril().bool()[None, None]


def dense(kernel, scores, allowed=ALLOWED):
    return kernel.pattern(scores, allowed)


CLIPPED = Kernel(clip=Stretched(-0.1, 1.5))


def test_clipped_softmax_stretches_shares_and_cuts_them_at_zero_and_one():
    scores = torch.tensor([0.80, 0.15, 0.05]).log()[None, None, None]
    weights = dense(CLIPPED, scores, torch.ones(1, 1, 1, 3, dtype=torch.bool))[0, 0, 0]
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.14, 0.0]))  # 1.6 p - 0.1 of .8 is 1.18, of .05 -.02
    assert Stretched() == Stretched(-0.03, 1.0)  # Bondarenko et al.'s
    assert not CLIPPED.is_normalised and not CLIPPED.is_softmax and "clip" not in Kernel().to_dict()


def test_a_clipped_kernel_gives_columns_and_proxies_of_its_pattern(make_call):
    plain = make_call()
    call = si.PatchNormalization(CLIPPED).call(plain)
    pattern = (1.6 * plain.pattern() - 0.1).clamp(0, 1) * plain.allowed()
    torch.testing.assert_close(call.pattern(), pattern)
    torch.testing.assert_close(call.column_mass(), pattern.sum(2), rtol=1e-4, atol=1e-5)
    shares = pattern / pattern.sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(call.proxy().column_mass(), shares.sum(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(call.output(), plain.mix(pattern))


@every_pair
def test_proxy_scores_are_shares_of_magnitudes(similarity, normaliser):
    kernel = Kernel(similarity=similarity, normaliser=normaliser, alpha=0.7)
    scores = torch.randn(2, 3, 7, 7) * 4
    size = dense(kernel, scores).abs()
    want = size / size.sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(dense(kernel.proxy, scores), want, rtol=1e-4, atol=1e-6)


@every_pair
def test_a_kernel_that_says_so_has_rows_that_sum_to_one(similarity, normaliser):
    kernel = Kernel(similarity=similarity, normaliser=normaliser)
    pattern = dense(kernel, torch.randn(2, 3, 7, 7) * 4)
    one = (pattern >= 0).all() and (pattern.sum(-1) - 1).abs().max() < 1e-5
    assert bool(one) or not kernel.is_normalised
    assert kernel.is_normalised == (similarity.positive and normaliser == PNorm())


LOG3, RAW, UNIT = math.log(3), {"similarity": Raw()}, {"normaliser": Unit()}
BY_HAND = [  # steps of a kernel, a row of scores, its weights
    ({}, [0.0, LOG3], [0.25, 0.75]),
    ({}, [1e4, 1e4], [0.5, 0.5]),
    (RAW, [3.0, -1.0], [0.75, -0.25]),  # divided by the sum of magnitudes
    ({"similarity": Sigmoid(), **UNIT}, [LOG3, 0.0], [0.75, 0.5]),
    ({"similarity": Sigmoid(3.0), **UNIT}, [LOG3, -LOG3], [0.5, 0.1]),
    ({"similarity": EluPlusOne(), **UNIT}, [2.0, -LOG3], [3, 1 / 3]),
    ({"similarity": Rectified(Raw()), **UNIT}, [2.0, -3.0], [2, 0]),
    ({"normaliser": PNorm(2.0), **RAW}, [3.0, -4.0], [0.6, -0.8]),
    ({"normaliser": PNorm(0.5), **RAW}, [1.0, 4.0], [1 / 9, 4 / 9]),
    ({"normaliser": PNorm(0.05), **RAW}, [2.0, 0.0, 0.0], [1, 0, 0]),  # zeros count for nothing, also where p is small
    ({"normaliser": ClampedSum(), **RAW}, [3.0, -1.0], [1.5, -0.5]),
    ({"normaliser": ClampedSum(), **RAW}, [3.0, -2.5], [3, -2.5]),
    ({"similarity": ExpMinusOne(), "normaliser": PositiveShare()}, [math.log(4), math.log(0.5), 0.0], [6 / 7, 0, 0]),
]


@pytest.mark.parametrize(("steps", "scores", "weights"), BY_HAND)
def test_a_row_of_every_similarity_and_normaliser_by_hand(steps, scores, weights):
    pattern = dense(Kernel(**steps), torch.tensor([[[scores]]]), torch.ones(1, 1, 1, len(scores)).bool())
    assert pattern.flatten().tolist() == pytest.approx(weights)


@pytest.mark.parametrize("p", [0.25, 0.5, 1.0, 3.0])
def test_p_normalised_softmax_is_the_root_of_a_softmax_at_another_temperature(p):
    scores = torch.randn(2, 3, 7, 7)
    want = (p * scores).masked_fill(~ALLOWED, -torch.inf).softmax(-1) ** (1 / p)  # equation 44
    torch.testing.assert_close(dense(Kernel(normaliser=PNorm(p)), scores), want)


@pytest.mark.parametrize("p", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("similarity", [Exp(), Sigmoid(), Raw(), Rectified(Raw())], ids=str)
def test_gradients_are_finite_where_weights_underflow(p, similarity):
    scores = (torch.randn(1, 1, 7, 7) * 80).requires_grad_()
    pattern = dense(Kernel(similarity=similarity, normaliser=PNorm(p)), scores)
    (pattern * torch.randn(7)).sum().backward()
    assert pattern.isfinite().all() and scores.grad.isfinite().all()


def test_the_gradient_of_a_p_norm_is_that_of_its_formula():
    scores = torch.randn(1, 1, 3, 5, dtype=torch.double, requires_grad=True)
    allowed = torch.ones(1, 1, 3, 5).bool()
    kernel = Kernel(similarity=Sigmoid(), normaliser=PNorm(3.0))
    assert torch.autograd.gradcheck(lambda s: dense(kernel, s, allowed), scores)


@pytest.mark.parametrize(("make", "wrong", "right"), [
    (lambda normaliser: Kernel(normaliser=normaliser), Unit(), PNorm()),
    (lambda normaliser: Kernel(similarity=ExpMinusOne(), normaliser=normaliser), ClampedSum(), PositiveShare()),
    (PNorm, 0.0, 0.01), (Sigmoid, 0.0, 0.01), (Stretched, 0.1, 0.0), (lambda high: Stretched(high=high), 0.0, 0.01),
    (Window, 0, 1), (Prefix, 0, 1), (lambda dims: LearnedRow(dims=dims).build(Dims(21, 3, 7, 5)), 8, 7),
    (lambda dims: LearnedRow(dims=dims).build(Dims(21, 3, 7, 5)), -1, 0),
])  # fmt: skip
def test_parts_that_mean_nothing_are_refused(make, wrong, right):
    """What drops a factor of its row needs a normaliser that restores it; masks and rows are not empty or too long."""
    refused(lambda: make(wrong))
    make(right)


def test_a_row_that_sees_nothing_is_zero_and_has_finite_gradients():
    scores = torch.randn(1, 1, 3, 3, requires_grad=True)
    pattern = dense(Kernel(), scores, torch.zeros(1, 1, 3, 3).bool())
    pattern.sum().backward()
    assert pattern.eq(0).all() and scores.grad.isfinite().all()


def test_elu_features_are_positive_and_an_mlps_are_two_maps_with_a_relu_between():
    x = torch.randn(2, 3, 5, 7)
    assert Identity()(x) is x
    assert (EluFeature()(x) > 0).all() and EluFeature()(x)[x > 0].equal(x[x > 0] + 1)
    mlp = MLPFeature().build(Dims(21, 3, 7, 5))
    first, second = mlp.parameters()
    torch.testing.assert_close(mlp(x), (x @ first.T).clamp(min=0) @ second.T)
    with pytest.raises(NotImplementedError):
        MLPFeature()(x)


SQUARED = Kernel(normaliser=PNorm(2.0))


@torch.no_grad()
def test_a_trained_model_and_a_patched_one_agree():
    spec = replace(SPECS["llama"], attention=replace(SPECS["llama"].attention, kernel=SQUARED))
    model, plain = build(spec), build(SPECS["llama"])
    plain.load_state_dict(model.state_dict())
    patched = HuggingFaceSubject(plain).run(tokens(), edits=[PatchNormalization(SQUARED)]).logits
    torch.testing.assert_close(patched, model(tokens()).logits)
    assert not patched.allclose(plain(tokens()).logits)
