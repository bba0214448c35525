"""Every variant at small odd sizes, and combinations of many."""

from dataclasses import replace
from functools import cache

import torch

from sinkinterp.attention.kernels import ClampedSum, Kernel, MLPFeature, Raw, Sigmoid, Unit
from sinkinterp.attention.masks import Causal, Prefix, Window
from sinkinterp.attention.slots import KeySlot, LearnedRow
from sinkinterp.lm.attention import Added, Alibi, AttentionSpec, HeadGate, RMSQKNorm, T5Relative, ValueBias
from sinkinterp.lm.block import GatedFFN, Gelu, PostNorm, SinkToken, UpdateNorm
from sinkinterp.lm.model import LMSpec, SinkForCausalLM, WrittenInit, build
from sinkinterp.lm.variants import VARIANTS

SIGMOID = Kernel(similarity=Sigmoid(), normaliser=Unit())
MLP = Kernel(MLPFeature(), Raw(), ClampedSum(), alpha=0.5)
BESIDE = {"qk_norm": RMSQKNorm(), "v_bias": ValueBias(), "gate": HeadGate(), "join": Added()}
COMBINED = {
    "sigmoid with kv slot": LMSpec(attention=AttentionSpec(SIGMOID, slots=KeySlot(v=LearnedRow()))),
    "update norm": LMSpec(branch=UpdateNorm()),
    "much at once": LMSpec(
        T5Relative(), AttentionSpec(SIGMOID, Causal() & Window(5), **BESIDE), GatedFFN(act=Gelu()), PostNorm(),
        SinkToken(), WrittenInit(),
    ),
    "as much again": LMSpec(
        Alibi(), AttentionSpec(MLP, Causal() | Prefix(3), KeySlot(LearnedRow(dims=3, shared=True)), **BESIDE)
    ),
}  # fmt: skip


def small(name: str, spec: LMSpec) -> LMSpec:
    heads = spec.n_heads if name in ("heads_1", "heads_2", "heads_4", "heads_8", "differential") else 3
    ffn = replace(spec.ffn, width=37)
    return replace(spec, vocab=97, d_model=14 * heads, n_heads=heads, n_layers=2, n_ctx=19, ffn=ffn)


SPECS = {name: small(name, spec) for name, spec in (VARIANTS | COMBINED).items()}


def tokens(batch: int = 2, length: int = 13) -> torch.Tensor:
    return torch.randint(97, (batch, length), generator=torch.Generator().manual_seed(1))


@cache
def model_of(name: str) -> SinkForCausalLM:
    """One model for all tests that leave it as it was."""
    return build(SPECS[name])


@cache
def logits_of(name: str) -> torch.Tensor:
    with torch.no_grad():
        return model_of(name)(tokens()).logits
