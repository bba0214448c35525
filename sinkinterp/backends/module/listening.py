"""Listens to the torch functions that a module calls, attention among them, and counts where in a pass each stands."""

import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from ...attention.call import AttentionCall, call_of_interface
from ...errors import InputError

SDPA, MULTI_HEAD = F.scaled_dot_product_attention, F.multi_head_attention_forward
NEVER = -1e4  # exp(-1e4) is 0 in any dtype: an additive mask that is lower forbids its pair
Place = tuple[int, Any, int]  # attention calls before an operation, its function, how many such calls since attention

# nn.MultiheadAttention hides its attention call inside one function: this is a copy that lets a mode see it
_SEEN_MULTI_HEAD = types.FunctionType(
    MULTI_HEAD.__code__, {**F.__dict__, "has_torch_function": lambda tensors: False}, None, MULTI_HEAD.__defaults__
)


class Listener(TorchFunctionMode):
    """A mode of torch functions: `attend` computes every attention call, `operate` the other functions in `heard`.

    name: the model's, for messages. heard: None for all functions. The other functions run as they are.
    """

    def __init__(self, name: str, heard: set[Any] | None = None) -> None:
        super().__init__()
        self.name = name
        self.heard = None if heard is None else {*heard, SDPA, MULTI_HEAD}
        self.n_attended = 0
        self.counts: Counter[tuple[int, Any]] = Counter()  # calls of each function after so many attention calls
        self._last_call: AttentionCall | None = None

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        """What the heads of a call return, `batch head query d_value`. The arguments are those of torch's function."""
        raise NotImplementedError

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What another function returns for these arguments."""
        raise NotImplementedError

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.heard is not None and func not in self.heard:
            return func(*args, **kwargs)
        if func is MULTI_HEAD:
            return self._multi_head(*args, **kwargs)
        if func is not SDPA:
            self.counts[self.n_attended, func] += 1
            return self.operate((self.n_attended, func, self.counts[self.n_attended, func] - 1), args, kwargs)
        self._last_call = call = call_of_sdpa(self.name, *args, **kwargs)
        z = self.attend(call, *args, **kwargs)
        self.n_attended += 1
        return z

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        needs_weights = kwargs.get("need_weights", True)
        with self:
            out, _ = _SEEN_MULTI_HEAD(*args, **kwargs | {"need_weights": False})
        if not needs_weights or self._last_call is None:
            return out, None
        weights = self._last_call.pattern()
        return out, weights.mean(1) if kwargs.get("average_attn_weights", True) else weights


@contextmanager
def computed_by(functions: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """In the block, calls of these modules are computed by these functions, in place of their `forward`."""
    before = {module: vars(module).get("forward") for module in functions}
    for module, function in functions.items():
        module.forward = function
    try:
        yield
    finally:
        for module, forward in before.items():
            vars(module).pop("forward")
            if forward is not None:
                module.forward = forward


def call_of_sdpa(  # noqa: PLR0913  the arguments of torch's function
    name: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> AttentionCall:  # fmt: skip
    """The call that `scaled_dot_product_attention` was asked to compute, as layer 0. name: the model's, for messages.

    A mask that allows exactly what causal attention allows is None. Raises InputError for dropout, for heads that are
    not an axis of their own, and for queries that continue a cache of keys.
    """
    if dropout_p:
        raise InputError(f"{name} drops attention weights at random (dropout_p={dropout_p}), also outside training")
    if query.ndim != 4:
        raise InputError(
            f"{name} attends with queries {tuple(query.shape)}, not (batch, head, pos, d_head): one head at a time, or "
            "heads and sequences in one axis; describe the module with attention=AttentionOf(...)"
        )
    if query.shape[2] != key.shape[2]:
        raise InputError(
            f"{name} attends to more keys than it has queries, as with a cache or learned keys; run it without them"
        )
    if attn_mask is not None:
        attn_mask = attn_mask.view((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(attn_mask < NEVER, -torch.inf)
    call = call_of_interface(0, query, key, value, attn_mask, scale, is_causal=is_causal)
    is_causal = call.mask is not None and call.mask.equal(torch.ones_like(call.mask).tril())
    return replace(call, mask=None) if is_causal else call
