"""Attention with a bias by distance, against the dense pattern."""

from dataclasses import replace

import pytest
import torch
from memory import Held

from sinkinterp.attention import fused
from sinkinterp.attention.fused import Inputs
from sinkinterp.attention.relative import RelativeBias, Scalars, Slopes
from sinkinterp.attention.slots import SinkLogit
from sinkinterp.lm.attention import Alibi, BucketIndex, T5Relative, slopes
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec, build

T = 577  # more than `fused.LONG`, and not a multiple of a block


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def call_of(n=T, d=11, dtype=torch.float, batch=2):
    q, k, v = (drawn(batch, 3, n, d, seed=i).to(dtype).requires_grad_() for i in range(3))
    return Inputs(0, q, k, v, d**-0.5)


def rules():
    """Three heads: slopes that no binary fraction holds, scalars of each head, and the same for all heads."""
    return {
        "slopes": Slopes(torch.tensor([2**-0.5, 2**-1.5, 2**-7.5])),
        "scalars": Scalars(3 * drawn(3, 113, seed=5).requires_grad_()),
        "shared": Scalars(torch.arange(32.0)[None]),
        "two": Scalars(drawn(3, 2, seed=6).requires_grad_()),
    }


def relative(rule, n=T):
    ids = torch.arange(7, 7 + n)[None]
    return RelativeBias(rule, ids, ids)


def value_and_gradients(z, call, rule):
    leaves = [call.q, call.k, call.v, *(t for t in vars(rule).values() if t.requires_grad)]
    return [z, *torch.autograd.grad((z * drawn(*z.shape, seed=9)).sum(), leaves)]


def dense(rule, call):
    """By the definition, in fp64."""
    n = call.q.shape[2]
    gap = torch.arange(n)[:, None] - torch.arange(n)
    if isinstance(rule, Slopes):
        bias = -rule.slopes.double()[:, None, None] * gap
    else:
        bias = rule.scalars.double()[:, gap.clamp(0, rule.scalars.shape[1] - 1)]
    q, k, v = (t.double() for t in (call.q, call.k, call.v))
    scores = q @ k.mT * call.scale + bias
    return scores.masked_fill(gap < 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("name", rules())
@pytest.mark.parametrize("d", [11, 64])
def test_output_and_gradients_are_those_of_the_dense_pattern(name, d):
    rule, call = rules()[name], call_of(d=d)
    z = relative(rule).output(call)
    want = value_and_gradients(dense(rule, call), call, rule)
    got = value_and_gradients(z, call, rule)
    torch.testing.assert_close(got[:4], [t.to(z.dtype) for t in want[:4]], rtol=1e-5, atol=1e-5)
    if len(want) > 4:  # sums over all pairs of a distance
        torch.testing.assert_close(got[4], want[4], rtol=1e-5, atol=1e-4)


def test_slopes_are_as_precise_at_2048_tokens_as_a_bias_that_is_added():
    rule, call = Slopes(torch.tensor(slopes(3))), call_of(n=2048, d=64, batch=1)
    with torch.no_grad():
        assert (relative(rule, 2048).output(call) - dense(rule, call)).abs().max() < 2e-6


@pytest.mark.parametrize("name", rules())
def test_in_bfloat16_positions_keep_their_precision(name):
    rule, call = rules()[name], call_of(dtype=torch.bfloat16)
    z = relative(rule).output(call)
    assert z.dtype == torch.bfloat16
    torch.testing.assert_close(z.double(), dense(rule, call), rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["slopes", "scalars"])
def test_memory_is_linear_in_length(name):
    peaks = []
    for n in (T, 2 * T):
        rule, call = rules()[name], call_of(n, batch=1)
        with Held() as held:
            relative(rule, n).output(call).sum().backward()
        peaks.append(held.peak)
    assert peaks[1] < 2.1 * peaks[0] and peaks[1] < 3 * (2 * T) ** 2


def test_calls_of_another_kind_are_left_to_the_dense_bias():
    rule, call = Slopes(torch.tensor(slopes(3))), call_of(batch=1)
    mask = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    others = [
        replace(call, mask=mask), replace(call, slot=SinkLogit(torch.zeros(3))), replace(call, softcap=3.0),
        replace(call, q=call.q[:, :, 1:]), replace(call, k=call.k[:, :1], v=call.v[:, :1]), call_of(fused.LONG),
    ]  # fmt: skip
    assert relative(rule).output(call) is not None
    assert all(relative(rule, other.k.shape[2]).output(other) is None for other in others)
    swapped = torch.arange(T)[None].clone()
    swapped[0, :2] = torch.tensor([1, 0])
    assert RelativeBias(rule, swapped, swapped).output(call) is None


@pytest.mark.parametrize("position", [Alibi(), T5Relative(), BucketIndex()], ids=str)
def test_a_model_gives_the_same_logits_and_gradients_whether_it_shows_its_patterns_or_not(position):
    spec = LMSpec(position=position, vocab=101, n_ctx=T, n_layers=2, d_model=24, n_heads=3, ffn=GatedFFN(width=29))
    model, tokens = build(spec), torch.randint(101, (1, T), generator=torch.Generator().manual_seed(0))
    made = []
    for shows in (False, True):
        model.zero_grad()
        out = model(tokens, labels=tokens, output_attentions=shows)
        out.loss.backward()
        made.append([out.logits, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-5)
