"""Every architecture of the study, by name: one line each, each a small change of a base."""

from dataclasses import replace
from typing import Any

from ..attention.features import EluFeature, MLPFeature
from ..attention.kernels import Kernel
from ..attention.masks import Causal, Prefix, Window
from ..attention.normalisers import ClampedSum, PNorm, PositiveShare, Unit
from ..attention.similarities import EluPlusOne, ExpMinusOne, Raw, Rectified, Sigmoid
from ..attention.slots import EvenRow, FirstAxis, KeySlot, LearnedRow, LogitSlot, ZeroRow
from .block import PostNorm
from .ffn import FFN, GatedFFN, Gelu, Relu, Swish
from .heads import Added, HeadGate, RMSQKNorm, ValueBias
from .init import WrittenInit
from .model import LMSpec
from .positions import Learned, NoPosition, Rotary, Sinusoidal
from .relative import Alibi, BucketIndex, T5Relative
from .sink_token import SinkToken

BASE = LMSpec(position=Learned())


def attn(base: LMSpec = BASE, **change: Any) -> LMSpec:
    """A base with some of its attention changed."""
    return replace(base, attention=replace(base.attention, **change))


def variants(base: LMSpec) -> dict[str, LMSpec]:
    """Every row of the study as a change of `base`, which is its "softmax"; some rows may be `base` itself."""

    def op(**steps: Any) -> LMSpec:
        return attn(base, kernel=Kernel(**steps))

    def slot(k: Any = LearnedRow(), v: Any = ZeroRow()) -> LMSpec:
        return attn(base, slots=KeySlot(k, v))

    shared = LearnedRow(shared=True)
    return {
        "softmax": base,
        # positions (Table 3)
        "no_position": replace(base, position=NoPosition()),
        "sinusoidal": replace(base, position=Sinusoidal()),
        "learned": replace(base, position=Learned()),
        "rotary": replace(base, position=Rotary()),
        "alibi": replace(base, position=Alibi()),
        "t5": replace(base, position=T5Relative()),
        "bucket_index": replace(base, position=BucketIndex()),
        # feed-forward layers (Table 11), norms (equation 3), heads (Table 12), initialisation
        "relu": replace(base, ffn=FFN(act=Relu())),
        "gelu": replace(base, ffn=FFN(act=Gelu())),
        "swish": replace(base, ffn=FFN(act=Swish())),
        "reglu": replace(base, ffn=GatedFFN(act=Relu())),
        "geglu": replace(base, ffn=GatedFFN(act=Gelu())),
        "swiglu": replace(base, ffn=GatedFFN(act=Swish())),
        "post_norm": replace(base, branch=PostNorm()),
        "heads_1": replace(base, n_heads=1),
        "heads_2": replace(base, n_heads=2),
        "heads_4": replace(base, n_heads=4),
        "heads_8": replace(base, n_heads=8),
        "heads_added": attn(base, join=Added()),
        "written_init": replace(base, init=WrittenInit()),
        # attention biases (Tables 4, 5, 12, 13)
        "sink_token": replace(base, before=SinkToken()),
        "kv_bias": slot(v=LearnedRow()),
        "kv_bias_shared": slot(shared, shared),
        "k_bias": slot(),
        "k_bias_shared": slot(shared),
        "v_bias": attn(base, v_bias=ValueBias()),
        "v_bias_shared": attn(base, v_bias=ValueBias(shared)),
        "k_bias_e1": slot(v=FirstAxis(1.0)),
        "k_bias_5e1": slot(v=FirstAxis(5.0)),
        "k_bias_20e1": slot(v=FirstAxis(20.0)),
        "k_bias_even": slot(v=EvenRow(1.0)),
        "k_bias_5even": slot(v=EvenRow(5.0)),
        "k_bias_20even": slot(v=EvenRow(20.0)),
        "k_bias_1d": slot(LearnedRow(dims=1)),
        "k_bias_2d": slot(LearnedRow(dims=2)),
        "k_bias_4d": slot(LearnedRow(dims=4)),
        "k_bias_8d": slot(LearnedRow(dims=8)),
        # attention operations (Tables 6, 14, 15, figure 29)
        "alpha_2": op(alpha=2.0),
        "alpha_0.2": op(alpha=0.2),
        "alpha_0.1": op(alpha=0.1),
        "alpha_0.05": op(alpha=0.05),
        "softmax_p0.25": op(normaliser=PNorm(1 / 4)),
        "softmax_p0.5": op(normaliser=PNorm(1 / 2)),
        "softmax_p2": op(normaliser=PNorm(2.0)),
        "sigmoid_p0.5": op(similarity=Sigmoid(), normaliser=PNorm(1 / 2)),
        "sigmoid_p2": op(similarity=Sigmoid(), normaliser=PNorm(2.0)),
        "sigmoid_p4": op(similarity=Sigmoid(), normaliser=PNorm(4.0)),
        "sigmoid": op(similarity=Sigmoid(), normaliser=Unit()),
        "sigmoid_norm": op(similarity=Sigmoid()),
        "sigmoid_length": op(similarity=Sigmoid(float(base.n_ctx)), normaliser=Unit()),
        "elu": op(similarity=EluPlusOne(), normaliser=Unit()),
        "elu_norm": op(similarity=EluPlusOne()),
        "linear": op(similarity=Raw(), normaliser=Unit()),
        "linear_norm": op(similarity=Raw(), normaliser=ClampedSum()),
        "elu_kernel": op(feature=EluFeature(), similarity=Raw(), normaliser=Unit()),
        "elu_kernel_norm": op(feature=EluFeature(), similarity=Raw()),
        "mlp_kernel": op(feature=MLPFeature(), similarity=Raw(), normaliser=Unit()),
        "mlp_kernel_norm": op(feature=MLPFeature(), similarity=Raw(), normaliser=ClampedSum()),
        # beyond the paper
        "off_by_one": slot(ZeroRow(), ZeroRow()),
        "sink_logit": attn(base, slots=LogitSlot()),
        "gated": attn(base, gate=HeadGate()),
        "softpick": op(similarity=ExpMinusOne(), normaliser=PositiveShare()),
        "relu_attention": op(similarity=Rectified(Raw()), normaliser=Unit(), alpha=1 / base.n_ctx),
        "qk_norm": attn(base, qk_norm=RMSQKNorm()),
        # masks (figures 5 and 6)
        "window": attn(base, mask=Causal() & Window(8)),
        "prefix_2": attn(base, mask=Causal() | Prefix(2)),
        "prefix_5": attn(base, mask=Causal() | Prefix(5)),
    }


def distinct(specs: dict[str, LMSpec]) -> dict[str, LMSpec]:
    """Each spec once, under the first of its names."""
    names: dict[LMSpec, str] = {}
    for name, spec in specs.items():
        names.setdefault(spec, name)
    return {name: spec for spec, name in names.items()}


VARIANTS = distinct({"llama": LMSpec()} | variants(BASE))
