from dataclasses import replace

import pytest
import torch
from attention.layouts import layouts

from sinkinterp.attention.kernels import (
    SOFTMAX,
    EluFeature,
    EluPlusOne,
    Kernel,
    LogLength,
    MLPFeature,
    Raw,
    Rectified,
    Sigmoid,
    Unit,
)
from sinkinterp.lm.attention import blockwise_output, is_worth_blocks
from sinkinterp.spec import Dims

UNNORMALISED = {"similarity": Sigmoid(), "normaliser": Unit()}
KERNELS = [
    *(Kernel(similarity=s, normaliser=Unit(), alpha=0.3)
      for s in (Sigmoid(), Sigmoid(23.0), EluPlusOne(), Raw(), Rectified(Raw()))),
    Kernel(EluFeature(), Raw(), Unit()), Kernel(**UNNORMALISED, scaling=LogLength()),
]  # fmt: skip
FIELDS = layouts(23, 6)


def value_and_gradients(call, output):
    parts = [t.detach().clone().requires_grad_() for t in (call.q, call.k, call.v)]
    z = output(replace(call, **dict(zip("qkv", parts, strict=True))))
    weights = torch.randn(z.shape, generator=torch.Generator().manual_seed(3))
    return z, torch.autograd.grad((z * weights).sum(), parts)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_blocks_of_keys_give_the_plain_value_and_gradients(make_call, kernel, fields):
    call = make_call(queries=23, kernel=kernel, **fields)
    plain = value_and_gradients(call, lambda c: c.mix(c.pattern()))
    blocks = value_and_gradients(call, lambda c: blockwise_output(c, block=5))
    torch.testing.assert_close(blocks, plain, rtol=1e-4, atol=1e-5)


def test_the_maps_of_a_feature_learn_as_in_the_plain_path(make_call):
    feature = MLPFeature().build(Dims(30, 6, 5, 23))
    call = make_call(queries=23, kernel=Kernel(feature, Raw(), Unit()))
    gradients = [
        torch.autograd.grad(output(replace(call)).square().sum(), list(feature.parameters()))
        for output in (lambda c: c.mix(c.pattern()), lambda c: blockwise_output(c, block=5))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


def test_queries_after_a_cache_are_aligned_with_the_last_keys(make_call):
    call = make_call(queries=3, keys=23, kernel=KERNELS[0])
    torch.testing.assert_close(blockwise_output(call, block=5), call.mix(call.pattern()))


def test_half_precision_values_are_summed_in_single_precision(make_call):
    call = make_call(queries=301, kernel=Kernel(**UNNORMALISED))
    half = replace(call, q=call.q.bfloat16(), k=call.k.bfloat16(), v=call.v.bfloat16())
    exact = blockwise_output(replace(half, q=half.q.double().float(), k=half.k.float(), v=half.v.float()), block=5)
    z = blockwise_output(half, block=5)
    assert z.dtype == torch.bfloat16
    assert z.equal(exact.bfloat16())  # one rounding, at the very end


def test_no_map_of_all_pairs_is_kept_for_the_way_back(make_call):
    call = make_call(queries=601, kernel=KERNELS[0])
    call = replace(call, q=call.q.requires_grad_())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        blockwise_output(call)
    assert max(kept) <= max(call.q.numel(), 601 * 128) and sum(kept) < 2 * 6 * 601 * 601


def test_only_long_unnormalised_calls_go_by_blocks(make_call):
    cases = ((513, KERNELS[0]), (512, KERNELS[0]), (513, SOFTMAX))
    worth = [is_worth_blocks(make_call(queries=1, keys=keys, kernel=kernel)) for keys, kernel in cases]
    assert worth == [True, False, False]
