"""Which fused kernel computes what of a call: its output and log-sum-exp, or what every key receives.

`attended` tries the paths of `PATHS` from the top. If none takes a call, its log-sum-exp is gathered in blocks of
keys. Its output then comes from `output_alone` or, for small T, from the dense pattern. `docs/concepts/kernels.md`
shows `KINDS`, and a test sends a call of every kind down its path.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from . import flex, fused
from .fused import Attended, Plain
from .scoring import Scoring
from .shapes import HeadOutput, Keys, PerQuery, Queries
from .slots import SinkLogit, SlotRow


def _by_torch(call: Scoring) -> Attended | None:
    """By PyTorch's kernels, which know no soft cap, and hold a bias in the precision of the queries."""
    bias = call.bias
    rounds_bias = bias is not None and torch.promote_types(bias.dtype, call.q.dtype) != call.q.dtype
    if call.softcap is not None or rounds_bias:
        return None
    return _asked(fused.plain(call), fused.attend)


def _by_flex(call: Scoring) -> Attended | None:
    """By FlexAttention. It takes no gradients, and no slot's row beside a soft cap, since that row has none."""
    if _has_gradient(call) or (call.softcap is not None and isinstance(call.slot, SlotRow)):
        return None
    return _asked(fused.plain(call), lambda given: flex.attend(given, call.softcap))


def _asked(given: Plain, attend: Callable[[Plain], Attended | None]) -> Attended | None:
    attended = attend(given)
    return None if attended is None else (given.cut(*attended)[0], given.cut(*attended)[1])


TORCH, FLEX, BLOCKS = "PyTorch's kernel", "FlexAttention", "blocks"
PATHS: Mapping[str, Callable[[Scoring], Attended | None]] = {TORCH: _by_torch, FLEX: _by_flex}


@dataclass(frozen=True)
class Kind:
    """A kind of softmax call, and the name of its path on each device; `BLOCKS` where no kernel takes it."""

    calls: str
    cpu: str
    cuda: str
    fallback: str


THEN_FLEX = "FlexAttention on CUDA, then SDPA for the output and blocks for the log-sum-exp"
THEN_BLOCKS = "the dense pattern for the output, blocks for the log-sum-exp"
THEN_SDPA = "SDPA with one number more a head for the output, blocks for the log-sum-exp"
KINDS = (
    Kind("causal; grouped queries; after a cache; a slot with a key and a value", TORCH, TORCH, THEN_FLEX),
    Kind("with a mask: windows, prefixes, padding", TORCH, TORCH, THEN_FLEX),
    Kind("with a bias (ALiBi, T5) that the precision of the queries holds", TORCH, TORCH, THEN_BLOCKS),
    Kind("with a bias in fp32 beside queries in bf16 or fp16", BLOCKS, FLEX, THEN_BLOCKS),
    Kind("with a soft cap (Gemma 2)", BLOCKS, FLEX, THEN_BLOCKS),
    Kind("with a sink logit (GPT-OSS), without gradients", TORCH, TORCH, THEN_SDPA),
    Kind("with a sink logit, with gradients", BLOCKS, BLOCKS, THEN_SDPA),
    Kind("with a trained bias, with gradients", BLOCKS, BLOCKS, "none"),
    Kind("other kernels than softmax", BLOCKS, BLOCKS, "none"),
)


def attended(call: Scoring) -> Attended | None:
    """The output of the heads and the log-sum-exp of every row, by one kernel; None if none computes both."""
    taken = path_of(call)
    return None if taken is None else taken[1]


def path_of(call: Scoring) -> tuple[str, Attended] | None:
    """The name of the path that takes a call, and its result."""
    if not call.kernel.is_softmax or _trains_what_kernels_do_not(call):
        return None
    logit = call.slot if isinstance(call.slot, SinkLogit) else None
    tokens = call if logit is None else replace(call, slot=None)
    for name, attend in PATHS.items():
        result = attend(tokens)
        if result is not None:
            return name, result if logit is None else _with_logit(*result, logit)
    return None


def output_alone(call: Scoring) -> HeadOutput | None:
    """The output by the public `scaled_dot_product_attention`, which has gradients; None where it does not compute it.

    On the CPU it is used for trained sink logits alone.
    """
    is_plain = call.kernel.is_softmax and call.bias is None and call.softcap is None
    is_logit = isinstance(call.slot, SinkLogit)
    if not is_plain or not (is_logit or call.q.device.type != "cpu"):
        return None
    given = fused.plain(_with_row(call, call.slot) if isinstance(call.slot, SinkLogit) else call)
    (z,) = given.cut(fused.sdpa(given))
    return z[..., :-1] if is_logit else z


def _with_row(call: Scoring, slot: SinkLogit) -> Scoring:
    """The call with a slot's row in place of its sink logit: queries have one number more, a 1, and the slot's key too.

    There the slot's key has the logit over the scale, and keys and values of tokens have 0.
    """
    q, k, v = (F.pad(t, (0, 1), value=number) for t, number in ((call.q, 1.0), (call.k, 0.0), (call.v, 0.0)))
    key = F.pad((slot.logit / call.scale).to(q.dtype)[:, None, None], (q.shape[-1] - 1, 0))
    row = SlotRow(key, v.new_zeros(q.shape[1], 1, v.shape[-1]))
    return replace(call, q=q, k=k, v=v, slot=row)


def _with_logit(z: HeadOutput, log_sum: Tensor, slot: SinkLogit) -> Attended:
    """Output and log-sum-exp with one more column, whose value is zero."""
    total = torch.logaddexp(log_sum, slot.logit.to(log_sum.dtype).view(1, -1, 1))
    share = (log_sum - total).exp().unsqueeze(-1)
    return (z * share).to(z.dtype), total


def _trains_what_kernels_do_not(call: Scoring) -> bool:
    """Tells if a gradient is asked for that kernels do not give: through the log-sum-exp, or to a bias."""
    trains_bias = call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled()
    return trains_bias or (isinstance(call.slot, SinkLogit) and _has_gradient(call))


def _has_gradient(call: Scoring) -> bool:
    logit = [call.slot.logit] if isinstance(call.slot, SinkLogit) else []
    rows = [call.slot.key, call.slot.value] if isinstance(call.slot, SlotRow) else []
    bias = [] if call.bias is None else [call.bias]
    return torch.is_grad_enabled() and any(t.requires_grad for t in (call.q, call.k, call.v, *logit, *rows, *bias))


def takes_all_columns(call: Scoring) -> bool:
    """Tells if `column_masses` computes these weights faster than blocks of keys: on CUDA, without gradients."""
    is_bare = call.kernel.is_softmax and call.mask is call.bias is call.softcap is None
    is_square = call.q.shape[2] == call.k.shape[2] > 1
    is_trained = torch.is_grad_enabled() and (call.q.requires_grad or call.k.requires_grad)
    return call.q.device.type == "cuda" and is_bare and is_square and not is_trained


def column_masses(q: Queries, k: Keys, log_sum: PerQuery, scale: float) -> PerQuery | None:
    """Attention that every key receives, summed over the queries from its own on; None where no kernel gives it.

    Key j receives the sum over i >= j of exp(scale q_i.k_j - lse_i). That is exp of a log-sum-exp again, of an
    attention in which keys ask and queries answer. Read from the last token to the first it is causal. -lse_i / scale
    becomes part of the answering vectors, where the asking ones have a 1: one number in fp32, and in half precision
    three that sum to it.

    log_sum: of every row, slots counted. fp32; relative error up to 1e-5 in fp32 and 1e-4 in bf16.
    """
    parts = _as_sum(-log_sum / scale, q.dtype)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    answering, asking = (
        F.pad(torch.cat((t, more), -1), (0, -(t.shape[-1] + more.shape[-1]) % fused.ALIGNED)).flip(2)
        for t, more in ((q, parts), (k, torch.ones_like(parts)))
    )
    result = fused.attend(Plain(asking, answering, answering, None, None, scale))
    return None if result is None else result[1].flip(-1).exp()


def _as_sum(values: PerQuery, dtype: torch.dtype) -> Tensor:
    """Numbers of a precision, in a new last axis, that sum to fp32 values."""
    parts = []
    for _ in range(1 if dtype.itemsize >= values.dtype.itemsize else 3):
        parts.append(values.to(dtype))
        values = values - parts[-1]
    return torch.stack(parts, -1)
