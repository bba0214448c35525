"""Every architecture of the study by name, one line each: a small change of a base."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from ..attention import kernels
from ..attention.masks import Causal, Prefix, Window
from ..attention.slots import EvenRow, FirstAxis, KeySlot, LearnedRow, LogitSlot, Row, ZeroRow
from ..checks import InputError, nearest
from . import attention as parts
from .block import FFN, GatedFFN, Gelu, PostNorm, Relu, SinkToken, Swish
from .model import LMSpec, WrittenInit

BASE = LMSpec(position=parts.Learned())


class Variants(dict[str, LMSpec]):
    """Specs by name. Raises InputError, which names what is near, for any other name."""

    def __missing__(self, name: str) -> LMSpec:
        raise InputError(f"{name!r} is not a variant{nearest(name, self)}; see `sinkinterp list variants`")

    def __repr__(self) -> str:
        return f"<{len(self)} variants: {', '.join(self)}>"


@cache
def variants(base: LMSpec) -> Variants:
    """Every architecture of the study as a change of `base`, which is its "softmax". Some of them may equal `base`.

    Sizes are those of `base`, the width of the feed-forward layers included. "llama" is Llama at these sizes.
    """
    named = {"llama": _llama(base), "softmax": base}
    for _, family in _FAMILIES:
        named |= family(base)
    return Variants(named)


@cache
def families() -> Mapping[str, tuple[str, ...]]:
    """The names of the architectures, by the part of the base that they change."""
    return MappingProxyType({title: tuple(family(BASE)) for title, family in _FAMILIES})


def _llama(base: LMSpec) -> LMSpec:
    sizes = {name: getattr(base, name) for name in ("vocab", "d_model", "n_heads", "n_layers", "n_ctx", "norm_eps")}
    return LMSpec(ffn=GatedFFN(width=_width(base)), **sizes)


def _width(base: LMSpec) -> int:
    assert isinstance(base.ffn, FFN | GatedFFN)
    return base.ffn.width


def attn(base: LMSpec = BASE, **change: Any) -> LMSpec:
    """`base` with some fields of its attention changed."""
    return replace(base, attention=replace(base.attention, **change))


def _kernel(base: LMSpec, **change: Any) -> LMSpec:
    return attn(base, kernel=kernels.Kernel(**change))


def _slot(base: LMSpec, k: Row = LearnedRow(), v: Row = ZeroRow()) -> LMSpec:
    return attn(base, slots=KeySlot(k, v))


def _positions(base: LMSpec) -> dict[str, LMSpec]:
    """Table 3."""
    return {
        "no_position": replace(base, position=parts.NoPosition()),
        "sinusoidal": replace(base, position=parts.Sinusoidal()),
        "learned": replace(base, position=parts.Learned()),
        "rotary": replace(base, position=parts.Rotary()),
        "alibi": replace(base, position=parts.Alibi()),
        "t5": replace(base, position=parts.T5Relative()),
        "bucket_index": replace(base, position=parts.BucketIndex()),
    }


def _parts(base: LMSpec) -> dict[str, LMSpec]:
    """Feed-forward layers (Table 11), norms (equation 3), heads (Table 12), initialisation."""
    width = _width(base)
    return {
        "relu": replace(base, ffn=FFN(width, Relu())),
        "gelu": replace(base, ffn=FFN(width, Gelu())),
        "swish": replace(base, ffn=FFN(width, Swish())),
        "reglu": replace(base, ffn=GatedFFN(width, Relu())),
        "geglu": replace(base, ffn=GatedFFN(width, Gelu())),
        "swiglu": replace(base, ffn=GatedFFN(width, Swish())),
        "post_norm": replace(base, branch=PostNorm()),
        **{f"heads_{n}": replace(base, n_heads=n) for n in (1, 2, 4, 8)},
        "heads_added": attn(base, join=parts.Added()),
        "written_init": replace(base, init=WrittenInit()),
    }


def _biases(base: LMSpec) -> dict[str, LMSpec]:
    """Attention biases (Tables 4, 5, 12, 13)."""
    shared = LearnedRow(shared=True)
    return {
        "sink_token": replace(base, before=SinkToken()),
        "kv_bias": _slot(base, v=LearnedRow()),
        "kv_bias_shared": _slot(base, shared, shared),
        "k_bias": _slot(base),
        "k_bias_shared": _slot(base, shared),
        "v_bias": attn(base, v_bias=parts.ValueBias()),
        "v_bias_shared": attn(base, v_bias=parts.ValueBias(shared)),
        "k_bias_e1": _slot(base, v=FirstAxis(1.0)),
        "k_bias_5e1": _slot(base, v=FirstAxis(5.0)),
        "k_bias_20e1": _slot(base, v=FirstAxis(20.0)),
        "k_bias_even": _slot(base, v=EvenRow(1.0)),
        "k_bias_5even": _slot(base, v=EvenRow(5.0)),
        "k_bias_20even": _slot(base, v=EvenRow(20.0)),
        **{f"k_bias_{n}d": _slot(base, LearnedRow(dims=n)) for n in (1, 2, 4, 8)},
    }


def _operations(base: LMSpec) -> dict[str, LMSpec]:
    """Attention operations (Tables 6, 14, 15, figure 29)."""
    sigmoid, raw, feature, clamped = kernels.Sigmoid(), kernels.Raw(), kernels.MLPFeature(), kernels.ClampedSum()
    return {
        **{f"alpha_{alpha:g}": _kernel(base, alpha=alpha) for alpha in (2.0, 0.2, 0.1, 0.05)},
        **{f"softmax_p{p:g}": _kernel(base, normaliser=kernels.PNorm(p)) for p in (0.25, 0.5, 2.0)},
        **{
            f"sigmoid_p{p:g}": _kernel(base, similarity=sigmoid, normaliser=kernels.PNorm(p)) for p in (1 / 2, 2.0, 4.0)
        },
        "sigmoid": _kernel(base, similarity=sigmoid, normaliser=kernels.Unit()),
        "sigmoid_norm": _kernel(base, similarity=sigmoid),
        "sigmoid_length": _kernel(base, similarity=kernels.Sigmoid(float(base.n_ctx)), normaliser=kernels.Unit()),
        "elu": _kernel(base, similarity=kernels.EluPlusOne(), normaliser=kernels.Unit()),
        "elu_norm": _kernel(base, similarity=kernels.EluPlusOne()),
        "linear": _kernel(base, similarity=raw, normaliser=kernels.Unit()),
        "linear_norm": _kernel(base, similarity=raw, normaliser=clamped),
        "elu_kernel": _kernel(base, feature=kernels.EluFeature(), similarity=raw, normaliser=kernels.Unit()),
        "elu_kernel_norm": _kernel(base, feature=kernels.EluFeature(), similarity=raw),
        "mlp_kernel": _kernel(base, feature=feature, similarity=raw, normaliser=kernels.Unit()),
        "mlp_kernel_norm": _kernel(base, feature=feature, similarity=raw, normaliser=clamped),
    }


def _beyond_the_paper(base: LMSpec) -> dict[str, LMSpec]:
    relu = kernels.Rectified(kernels.Raw())
    return {
        "off_by_one": _slot(base, ZeroRow(), ZeroRow()),
        "sink_logit": attn(base, slots=LogitSlot()),
        "gated": attn(base, gate=parts.HeadGate()),
        "gated_elements": attn(base, gate=parts.ElementGate()),
        "gated_values": attn(base, v_gate=parts.ElementGate()),
        "clipped": _kernel(base, clip=kernels.Stretched(-2 / base.n_ctx)),
        "differential": attn(replace(base, n_heads=base.n_heads + base.n_heads % 2), maps=parts.Differential()),
        "softpick": _kernel(base, similarity=kernels.ExpMinusOne(), normaliser=kernels.PositiveShare()),
        "relu_attention": _kernel(base, similarity=relu, normaliser=kernels.Unit(), alpha=1 / base.n_ctx),
        "qk_norm": attn(base, qk_norm=parts.RMSQKNorm()),
    }


def _masks(base: LMSpec) -> dict[str, LMSpec]:
    """Figures 5 and 6."""
    return {
        "window": attn(base, mask=Causal() & Window(8)),
        "prefix_2": attn(base, mask=Causal() | Prefix(2)),
        "prefix_5": attn(base, mask=Causal() | Prefix(5)),
    }


_FAMILIES: Sequence[tuple[str, Callable[[LMSpec], dict[str, LMSpec]]]] = (
    ("positions", _positions),
    ("layers and heads", _parts),
    ("attention biases", _biases),
    ("normalisation", _operations),
    ("beyond the paper", _beyond_the_paper),
    ("masks", _masks),
)


def distinct(specs: Mapping[str, LMSpec]) -> dict[str, LMSpec]:
    """Each spec once, under its first name."""
    names: dict[LMSpec, str] = {}
    for name, spec in specs.items():
        names.setdefault(spec, name)
    return {name: spec for spec, name in names.items()}


VARIANTS = Variants(distinct(variants(BASE)))
