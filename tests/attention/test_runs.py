"""Long calls without a fused kernel, in runs of queries: against the dense pattern."""

from dataclasses import replace

import pytest
import torch
from attention.layouts import layouts

from sinkinterp.attention import call as calls
from sinkinterp.attention.kernels import (
    SOFTMAX,
    ClampedSum,
    EluFeature,
    EluPlusOne,
    Kernel,
    MLPFeature,
    PNorm,
    Raw,
    Rectified,
    Sigmoid,
    Unit,
)
from sinkinterp.lm.attention import Alibi, BucketIndex, T5Relative
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.spec import Dims

UNNORMALISED = {"similarity": Sigmoid(), "normaliser": Unit()}
KERNELS = [
    *(Kernel(similarity=s, normaliser=Unit(), alpha=0.3)
      for s in (Sigmoid(), Sigmoid(23.0), EluPlusOne(), Raw(), Rectified(Raw()))),
    Kernel(EluFeature(), Raw(), Unit()),
    SOFTMAX, Kernel(normaliser=PNorm(2.0)), Kernel(similarity=Raw(), normaliser=ClampedSum()),
]  # fmt: skip
FIELDS = layouts(23, 6) | {"after a cache": {"queries": 13, "keys": 23}}


def in_runs(call):
    return torch.cat([part.mix(part.pattern()) for part in call.runs(5)], 2)


def dense(call):
    return call.mix(call.pattern())


def value_and_gradients(call, output):
    parts = [t.detach().clone().requires_grad_() for t in (call.q, call.k, call.v)]
    z = output(replace(call, **dict(zip("qkv", parts, strict=True))))
    weights = torch.randn(z.shape, generator=torch.Generator().manual_seed(3))
    return z, torch.autograd.grad((z * weights).sum(), parts)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_runs_of_queries_give_the_plain_value_and_gradients(make_call, kernel, fields):
    call = make_call(kernel=kernel, **{"queries": 23} | fields)
    torch.testing.assert_close(
        value_and_gradients(call, in_runs), value_and_gradients(call, dense), rtol=1e-4, atol=1e-5
    )


def test_the_maps_of_a_feature_learn_as_in_the_plain_path(make_call):
    feature = MLPFeature().build(Dims(30, 6, 5, 23))
    call = make_call(queries=23, kernel=Kernel(feature, Raw(), Unit()))
    gradients = [
        torch.autograd.grad(output(replace(call)).square().sum(), list(feature.parameters()))
        for output in (dense, in_runs)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", [KERNELS[0], Kernel(normaliser=PNorm(2.0))], ids=str)
def test_no_map_of_all_pairs_is_kept_for_the_way_back(make_call, kernel):
    call = make_call(queries=601, kernel=kernel)
    call = replace(call, q=call.q.requires_grad_())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        call.output()
    assert sum(kept) < 2 * 6 * 601 * 601


def test_only_long_calls_without_a_kernel_go_by_runs(make_call, monkeypatch):
    seen = []
    monkeypatch.setattr(calls, "checkpoint", lambda function, part, **_: seen.append(part) or function(part))
    for keys, kernel in ((513, KERNELS[0]), (512, KERNELS[0]), (513, SOFTMAX)):
        make_call(queries=1, keys=keys, kernel=kernel).output()
    assert [part.k.shape[2] for part in seen] == [513]


@pytest.mark.parametrize("position", [Alibi(), T5Relative(), BucketIndex()], ids=str)
def test_a_model_gives_the_same_logits_and_gradients_whether_it_shows_its_patterns_or_not(position):
    n = 577
    spec = LMSpec(position=position, vocab=101, n_ctx=n, n_layers=2, d_model=24, n_heads=3, ffn=GatedFFN(width=29))
    model, tokens = build(spec), torch.randint(101, (1, n), generator=torch.Generator().manual_seed(0))
    made = []
    for shows in (False, True):
        model.zero_grad()
        out = model(tokens, labels=tokens, output_attentions=shows)
        out.loss.backward()
        made.append([out.logits, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-5)
