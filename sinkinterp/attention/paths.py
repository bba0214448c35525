"""Which kernel computes a call's output and log-sum-exp: the one table of paths.

`attended` tries the paths of `PATHS` from the top. Where none takes a call, its log-sum-exp is gathered in blocks of
keys, and its output comes from `output_alone` or, for small T, from the dense pattern. `docs/concepts/kernels.md` shows
`KINDS`, and a test sends a call of every kind down its path.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from . import flex, fused
from .fused import Attended
from .scoring import Scoring
from .shapes import HeadOutput, Values
from .slots import SinkLogit, SlotRow


@dataclass(frozen=True)
class Path:
    """A way to get output and log-sum-exp from one kernel; `attend` returns None where it does not take a call."""

    name: str
    attend: Callable[[Scoring, Values], Attended | None]


def _by_torch(scoring: Scoring, v: Values) -> Attended | None:
    """By PyTorch's kernels, which know no soft cap, and hold a bias in the precision of the queries."""
    bias = scoring.bias
    rounds_bias = bias is not None and torch.promote_types(bias.dtype, scoring.q.dtype) != scoring.q.dtype
    if scoring.softcap is not None or rounds_bias:
        return None
    return fused.attend(fused.plain(scoring, v))


def _by_flex(scoring: Scoring, v: Values) -> Attended | None:
    """By FlexAttention, where no gradient is asked for, and no slot's row, whose score has no soft cap, beside one."""
    if _has_gradient(scoring, v) or (scoring.softcap is not None and isinstance(scoring.slot, SlotRow)):
        return None
    return flex.attend(fused.plain(scoring, v), scoring.softcap)


PATHS = (Path("PyTorch's kernel", _by_torch), Path("FlexAttention", _by_flex))


@dataclass(frozen=True)
class Kind:
    """A kind of softmax call, and the name of its path on each device; "blocks" where no kernel takes it."""

    calls: str
    cpu: str
    cuda: str
    fallback: str


TORCH, FLEX, BLOCKS = PATHS[0].name, PATHS[1].name, "blocks"
THEN_FLEX = "FlexAttention on CUDA, then SDPA for the output and blocks for the log-sum-exp"
THEN_BLOCKS = "the dense pattern for the output, blocks for the log-sum-exp"
KINDS = (
    Kind("causal; grouped queries; after a cache; a slot with a key and a value", TORCH, TORCH, THEN_FLEX),
    Kind("with a mask: windows, prefixes, padding", TORCH, TORCH, THEN_FLEX),
    Kind("with a bias (ALiBi, T5) that the precision of the queries holds", TORCH, TORCH, THEN_BLOCKS),
    Kind("with a bias in fp32 beside queries in bf16 or fp16", BLOCKS, FLEX, THEN_BLOCKS),
    Kind("with a soft cap (Gemma 2)", BLOCKS, FLEX, THEN_BLOCKS),
    Kind("with a sink logit (GPT-OSS), without gradients", TORCH, TORCH, THEN_BLOCKS),
    Kind("with a sink logit or a trained bias, with gradients", BLOCKS, BLOCKS, "none"),
    Kind("other kernels than softmax", BLOCKS, BLOCKS, "none"),
)


def attended(scoring: Scoring, v: Values) -> Attended | None:
    """What the heads return and the log-sum-exp of every row, by one kernel; None where none computes both."""
    taken = path_of(scoring, v)
    return None if taken is None else taken[1]


def path_of(scoring: Scoring, v: Values) -> tuple[str, Attended] | None:
    """The name of the path that takes a call, and what it computes."""
    if not scoring.kernel.is_softmax or _trains_what_kernels_do_not(scoring, v):
        return None
    logit = scoring.slot if isinstance(scoring.slot, SinkLogit) else None
    tokens = scoring if logit is None else replace(scoring, slot=None)
    for path in PATHS:
        result = path.attend(tokens, v)
        if result is not None:
            return path.name, result if logit is None else _with_logit(*result, logit)
    return None


def output_alone(scoring: Scoring, v: Values) -> HeadOutput | None:
    """The output by the public `scaled_dot_product_attention` off the CPU, where that computes the call; else None."""
    is_plain = scoring.kernel.is_softmax and scoring.bias is None and scoring.softcap is None
    if scoring.q.device.type == "cpu" or not is_plain or isinstance(scoring.slot, SinkLogit):
        return None
    return fused.sdpa(fused.plain(scoring, v))


def _with_logit(z: HeadOutput, log_sum: torch.Tensor, slot: SinkLogit) -> Attended:
    """Output and log-sum-exp with one more column, whose value is zero."""
    total = torch.logaddexp(log_sum, slot.logit.to(log_sum.dtype).view(1, -1, 1))
    share = (log_sum - total).exp().unsqueeze(-1)
    return (z * share).to(z.dtype), total


def _trains_what_kernels_do_not(scoring: Scoring, v: Values) -> bool:
    """Whether a gradient is asked for through the log-sum-exp or to a bias, which kernels do not give."""
    trains_bias = scoring.bias is not None and scoring.bias.requires_grad and torch.is_grad_enabled()
    return trains_bias or (isinstance(scoring.slot, SinkLogit) and _has_gradient(scoring, v))


def _has_gradient(scoring: Scoring, v: Values) -> bool:
    logit = [scoring.slot.logit] if isinstance(scoring.slot, SinkLogit) else []
    rows = [scoring.slot.key, scoring.slot.value] if isinstance(scoring.slot, SlotRow) else []
    bias = [] if scoring.bias is None else [scoring.bias]
    return torch.is_grad_enabled() and any(t.requires_grad for t in (scoring.q, scoring.k, v, *logit, *rows, *bias))
