"""Fused attention kernels: the output of the heads and the log-sum-exp of every row, without a T x T map.

A call that no kernel takes has its log-sum-exp gathered in blocks of keys. Its output then comes from `output_alone` or
from the dense pattern. `docs/concepts/kernels.md` says which call takes which path, and a test sends a call of every
kind down its own.

This is the only file that uses private operators of PyTorch. If they are missing, or if PyTorch would choose a kernel
that makes the T x T map, `attend` returns None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .kernels import SOFTMAX, Kernel
from .masks import Visibility
from .shapes import Allowed, HeadOutput, Keys, PerQuery, Queries, Values
from .slots import SinkLogit, Slot, SlotRow

Attended = tuple[HeadOutput, PerQuery]  # what the heads return, and the log-sum-exp of every row in fp32
_Returned = tuple[Tensor, Tensor]  # the same as a kernel of CUDA pads it

_CHOICE = getattr(torch, "_fused_sdp_choice", None)  # None where this torch has no such operator
_FLASH_ON_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention", None)
_EFFICIENT = getattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", None)
_CUDNN = getattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", None)
FLASH, EFFICIENT, CUDNN = 1, 2, 3  # as in torch.nn.attention.SDPBackend, whose members do not equal numbers
LONG = 512  # keys; below, a slot's mask is small
ALIGNED = 8  # CUDA's flash kernel takes heads, and its memory-efficient one rows of masks, in multiples of so many


@dataclass(frozen=True, eq=False, repr=False)
class Inputs:
    """Queries, keys and values of one attention operation after norms and rotation, and how scores become weights.

    Keys and values are not repeated for grouped queries.

    layer: index among all blocks of the model.
    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    bias: added to the scaled scores (ALiBi, T5), a function of the distance between query and key.
    softcap: scores become softcap * tanh(score / softcap).
    slot: a column left of the first key that belongs to no token.
    shared: which keys each query may attend to, as the layers of a pass share it; None for a call of its own.
    """

    layer: int
    q: Queries
    k: Keys
    v: Values
    scale: float
    mask: Allowed | None = None
    bias: Float[Tensor, "#batch #head query key"] | None = None
    softcap: float | None = None
    slot: Slot = None
    kernel: Kernel = SOFTMAX
    shared: Visibility | None = None

    @cached_property
    def visibility(self) -> Visibility:
        """Which keys each query may attend to."""
        shared, sizes = self.shared, (self.q.shape[2], self.k.shape[2])
        if shared is not None and shared.mask is self.mask and (shared.n_queries, shared.n_keys) == sizes:
            return shared
        return Visibility(*sizes, self.q.device, self.mask)


# Which call a kernel takes


def attended(call: Inputs) -> Attended | None:
    """Output and log-sum-exp of softmax by PyTorch's kernel; None if none computes them.

    Kernels know no soft cap, and hold a bias in the precision of the queries.
    """
    bias, logit = call.bias, call.slot if isinstance(call.slot, SinkLogit) else None
    rounds_bias = bias is not None and torch.promote_types(bias.dtype, call.q.dtype) != call.q.dtype
    is_plain = call.kernel.is_softmax and call.softcap is None
    if rounds_bias or not is_plain or _trains_what_kernels_do_not(call):
        return None
    result = attend(call if logit is None else replace(call, slot=None))
    return result if result is None or logit is None else _with_logit(*result, logit)


def output_alone(call: Inputs) -> HeadOutput | None:
    """The output by the public `scaled_dot_product_attention`, which has gradients; None where it does not compute it.

    On the CPU it is used for trained sink logits alone.
    """
    is_plain = call.kernel.is_softmax and call.bias is call.softcap is None
    if is_plain and isinstance(call.slot, SinkLogit):
        return sdpa(_with_row(call, call.slot))[..., :-1]
    return sdpa(call) if is_plain and call.q.device.type != "cpu" else None


def _with_row(call: Inputs, slot: SinkLogit) -> Inputs:
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


def _trains_what_kernels_do_not(call: Inputs) -> bool:
    """Tells if a gradient is asked for that kernels do not give: through the log-sum-exp, or to a bias."""
    of_logit = (call.q, call.k, call.v, call.slot.logit) if isinstance(call.slot, SinkLogit) else ()
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (call.bias, *of_logit))


def takes_all_columns(call: Inputs) -> bool:
    """Tells if `column_masses` computes these weights faster than blocks of keys: on CUDA, without gradients."""
    is_bare = call.kernel.is_softmax and call.mask is call.bias is call.softcap is None
    is_square = call.q.shape[2] == call.k.shape[2] > 1
    is_trained = torch.is_grad_enabled() and (call.q.requires_grad or call.k.requires_grad)
    return call.q.device.type == "cuda" and is_bare and is_square and not is_trained


def column_masses(call: Inputs, log_sum: PerQuery) -> PerQuery | None:
    """Attention that every key receives, summed over the queries from its own on; None where no kernel gives it.

    Key j receives the sum over i >= j of exp(scale q_i.k_j - lse_i). That is exp of a log-sum-exp again, of an
    attention in which keys ask and queries answer. Read from the last token to the first it is causal. -lse_i / scale
    becomes part of the answering vectors, where the asking ones have a 1: one number in fp32, and in half precision
    three that sum to it.

    log_sum: of every row, slots counted. fp32; relative error up to 1e-5 in fp32 and 1e-4 in bf16.
    """
    parts = as_sum(-log_sum / call.scale, call.q.dtype)
    k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    answering, asking = (
        F.pad(torch.cat((t, more), -1), (0, -(t.shape[-1] + more.shape[-1]) % ALIGNED)).flip(2)
        for t, more in ((call.q, parts), (k, torch.ones_like(parts)))
    )
    result = attend(Inputs(call.layer, asking, answering, answering, call.scale))
    return None if result is None else result[1].flip(-1).exp()


def as_sum(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of a precision, in a new last axis, that sum to values of fp32 or fp64."""
    parts = []
    for _ in range(1 if dtype.itemsize >= values.dtype.itemsize else 1 + 4 // dtype.itemsize):
        parts.append(values.to(dtype))
        values = values - parts[-1]
    return torch.stack(parts, -1)


# What kernels take: scores with a mask and a bias


def _with_row_as_key(call: Inputs) -> Inputs:
    """The call in which a slot's row is the first key; itself where the slot has no row.

    Before many tokens a first query of zeros makes it square, so that kernels need no mask and skip half of the pairs.
    Its result is the first and goes; see `_own_queries`.
    """
    if not isinstance(call.slot, SlotRow):
        return call
    n_heads, bias = call.q.shape[1], None if call.bias is None else F.pad(call.bias, (1, 0))
    k, v = (_slot_then_tokens(row, t, n_heads) for row, t in ((call.slot.key, call.k), (call.slot.value, call.v)))
    if is_plainly_causal(call) and call.k.shape[2] > LONG:
        return replace(call, q=F.pad(call.q, (0, 0, 1, 0)), k=k, v=v, slot=None)
    mask = call.visibility.allowed() if call.mask is None else call.mask
    return replace(call, k=k, v=v, mask=F.pad(mask, (1, 0), value=True), bias=bias, slot=None)


def _own_queries(call: Inputs, result: Tensor) -> Tensor:
    """A result of `batch head query` for the queries of a call alone."""
    n_queries = call.q.shape[2]
    return result.narrow(2, result.shape[2] - n_queries, n_queries)


def _slot_then_tokens(row: Tensor, tokens: Tensor, n_heads: int) -> Tensor:
    tokens = tokens.repeat_interleave(n_heads // tokens.shape[1], 1)
    return torch.cat((row.to(tokens.dtype).expand(len(tokens), -1, -1, -1), tokens), 2)


def _repeated(call: Inputs) -> Inputs:
    """The same attention with a key and a value for every query head."""
    times = call.q.shape[1] // call.k.shape[1]
    k, v = (t.to(call.q.dtype).repeat_interleave(times, 1) for t in (call.k, call.v))
    return replace(call, k=k, v=v)


def is_grouped(call: Inputs) -> bool:
    """Whether several queries share a key."""
    return call.q.shape[1] != call.k.shape[1]


def is_plainly_causal(call: Inputs) -> bool:
    """Whether a kernel's own causal mask is the whole mask."""
    return call.mask is None and call.bias is None and call.q.shape[2] == call.k.shape[2] > 1


def mask_of(call: Inputs) -> Allowed | None:
    """Pairs that may attend; None where the kernel's own causal mask says so, or where all may."""
    if call.mask is not None or is_plainly_causal(call) or (call.q.shape[2] == 1 and call.bias is None):
        return call.mask
    return call.visibility.allowed()


def additive(call: Inputs) -> Tensor | None:
    """The addition to the scores: the bias, and -inf if a pair may not attend; None for nothing."""
    mask = mask_of(call)
    if mask is None:
        return None
    if call.bias is None:
        return call.visibility.once(("added", call.q.dtype), lambda: _minus_infinity_but_at(mask, call.q.new_zeros(())))
    return _minus_infinity_but_at(mask, call.bias.to(call.q.dtype))


def _minus_infinity_but_at(mask: Allowed, added: Tensor) -> Tensor:
    return torch.where(mask, added, -torch.inf)


def _added_and_seeing(call: Inputs) -> tuple[Tensor | None, Tensor | None]:
    """As `additive`, with 0 in rows without a key, which not every kernel accepts, and which rows have one."""
    mask, added = mask_of(call), additive(call)
    if mask is None or added is None:
        return None, None
    seeing = mask.any(-1, keepdim=True)
    return torch.where(seeing, added, 0), seeing


# PyTorch's kernels


def attend(call: Inputs) -> Attended | None:
    """Output and log-sum-exp by the kernel that `scaled_dot_product_attention` would choose; None if it has no such.

    Soft caps and sink logits are left out. On a CPU the output is bit for bit that of `scaled_dot_product_attention`.
    """
    given = _with_row_as_key(call)
    if call.q.device.type == "cpu":
        attended = _on_cpu(given)
    else:
        is_there = call.q.device.type == "cuda" and _CHOICE is not None
        attended = _on_cuda(given) if is_there and not torch.compiler.is_compiling() else None
    return None if attended is None else (_own_queries(call, attended[0]), _own_queries(call, attended[1]))


def sdpa(call: Inputs) -> HeadOutput:
    """The output by the public `scaled_dot_product_attention`; no log-sum-exp. Queries that see nothing get 0."""
    given = _repeated(_with_row_as_key(call))  # some kernels refuse grouped queries, and one makes the T x T map
    added, seeing = _added_and_seeing(given)
    causal = is_plainly_causal(given)
    z = F.scaled_dot_product_attention(given.q, given.k, given.v, added, is_causal=causal, scale=given.scale)
    return _own_queries(call, z if seeing is None else seeing * z)


def _on_cpu(call: Inputs) -> Attended | None:
    added, mask = additive(call), mask_of(call)
    if _CHOICE is None or _FLASH_ON_CPU is None or _chosen(call, added) != FLASH:
        return None
    causal = is_plainly_causal(call)
    z, log_sum = _FLASH_ON_CPU(call.q, call.k, call.v, 0.0, causal, attn_mask=added, scale=call.scale)
    return z, log_sum if mask is None else torch.where(mask.any(-1), log_sum, -torch.inf)


def _on_cuda(call: Inputs) -> Attended | None:
    added, seeing = _added_and_seeing(call)
    for accepted in (call, _repeated(call)) if is_grouped(call) else (call,):
        kernel = _ON_CUDA.get(_chosen(accepted, added))
        attended = None if kernel is None else kernel(accepted, added)
        if attended is None:
            continue
        z, log_sum = attended
        log_sum = log_sum.reshape(*z.shape[:2], -1).narrow(-1, 0, z.shape[2])  # without padding and axes of 1
        return (z, log_sum) if seeing is None else (z * seeing, torch.where(seeing.squeeze(-1), log_sum, -torch.inf))
    return None


def _chosen(call: Inputs, added: Tensor | None) -> int:
    """The kernel that `scaled_dot_product_attention` would choose: FLASH, EFFICIENT, CUDNN or another."""
    if _CHOICE is None:
        return 0
    choice, given = _CHOICE, (call.q, call.k, call.v)
    about = {"scale": call.scale, "enable_gqa": is_grouped(call)}
    kinds = tuple((x.shape, x.dtype, x.requires_grad) for x in given)
    what = ("kernel", kinds, added is None, torch.is_grad_enabled())
    return call.visibility.once(what, lambda: int(choice(*given, added, 0.0, is_plainly_causal(call), **about)))


def _flash(call: Inputs, added: Tensor | None) -> _Returned | None:
    if _FLASH is None or added is not None:
        return None
    missing = -call.q.shape[-1] % ALIGNED
    q, k, v = (F.pad(t, (0, missing)) if missing else t for t in (call.q, call.k, call.v))
    z, log_sum, *_ = _FLASH(q, k, v, 0.0, is_plainly_causal(call), False, scale=call.scale)
    return z.narrow(-1, 0, call.v.shape[-1]), log_sum


def _efficient(call: Inputs, added: Tensor | None) -> _Returned | None:
    if _EFFICIENT is None:
        return None
    if added is not None:  # its rows must start at aligned addresses, and it does not broadcast
        n_keys = added.shape[-1]
        added = F.pad(added, (0, -n_keys % ALIGNED)).narrow(-1, 0, n_keys).expand(*call.q.shape[:3], n_keys)
    causal = is_plainly_causal(call)
    z, log_sum, *_ = _EFFICIENT(call.q, call.k, call.v, added, True, 0.0, causal, scale=call.scale)
    return z, log_sum


def _cudnn(call: Inputs, added: Tensor | None) -> _Returned | None:
    if _CUDNN is None:
        return None
    causal = is_plainly_causal(call)
    z, log_sum, *_ = _CUDNN(call.q, call.k, call.v, added, True, 0.0, causal, False, scale=call.scale)
    return z, log_sum


_ON_CUDA: Mapping[int, Callable[..., _Returned | None]] = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}
