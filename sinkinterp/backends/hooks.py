"""How a transformers model is watched: its attention function, its blocks, its position table. Nothing is patched."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.interface import call_of_interface
from ..errors import InputError
from .recorder import Recorder

BASES = ("sdpa", "eager")  # the attention implementations of transformers that can be watched


RECORDER: ContextVar[Recorder | None] = ContextVar("sinkinterp_watch", default=None)


def _recorded(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows every call to the recorder."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        call = call_of_interface(module.layer_idx, query, key, value, attention_mask, scaling, **kwargs)
        recorder = RECORDER.get()
        seen = call if recorder is None else recorder.attend(call)
        fused = seen.is_fused and (base == "sdpa" or "kernel" in kwargs)
        if fused or seen is not call:
            z, weights = seen.output(), None
        else:
            own = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
            function = ALL_ATTENTION_FUNCTIONS.get_interface(base, own)
            z, weights = function(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
            z = z.transpose(1, 2)
        if recorder is not None:
            z = recorder.output(seen, z)
        return z.transpose(1, 2).contiguous(), weights

    return attention


for _base in BASES:
    AttentionInterface.register(f"sinkinterp_{_base}", _recorded(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(f"sinkinterp_{_base}", ALL_MASK_ATTENTION_FUNCTIONS[_base])


def blocks_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The model's stack of blocks: the first list of modules that is as long as the configuration says."""
    depth = model.config.get_text_config().num_hidden_layers
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if not stacks:
        raise InputError(f"{type(model).__name__} keeps its {depth} blocks in no list, so residuals cannot be read")
    return list(stacks[0])


_FEED_FORWARD = ("post_feedforward_layernorm", "mlp", "feed_forward", "fc2")  # the first that a block has writes last


@dataclass(frozen=True)
class Sites:
    """The modules of a model whose inputs or outputs edits of residual width change.

    tables: those of learned positions. mlps: the last module of every block's feed-forward branch; None where unknown.
    """

    embedding: nn.Module
    tables: tuple[nn.Module, ...]
    blocks: Sequence[nn.Module]

    @property
    def mlps(self) -> list[nn.Module | None]:
        inner = [getattr(block, "original_component", block) for block in self.blocks]  # TransformerLens wraps it
        return [next((getattr(b, name) for name in _FEED_FORWARD if hasattr(b, name)), None) for b in inner]


@contextmanager
def stream_hooks(sites: Sites, recorder: Recorder) -> Iterator[None]:
    """Shows `recorder` embeddings, residuals and feed-forward updates, and hands the model what it gives back."""

    def entering(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        if args:
            return (recorder.residual(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": recorder.residual(kwargs["hidden_states"])}

    def leaving(show: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda module, args, output: through(show, output)

    handles = [block.register_forward_pre_hook(entering, with_kwargs=True) for block in sites.blocks]
    shown = [(sites.embedding, recorder.token_embedding), (sites.blocks[-1], recorder.residual)]
    shown += [(table, recorder.position_embedding) for table in sites.tables]
    shown += [(mlp, partial(recorder.mlp, i)) for i, mlp in enumerate(sites.mlps) if mlp is not None]
    handles += [module.register_forward_hook(leaving(show)) for module, show in shown]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def through(show: Callable[[Tensor], Tensor], output: Any) -> Any:
    """A module's output with its tensor, the first of several, as `show` leaves it."""
    return (show(output[0]), *output[1:]) if isinstance(output, tuple) else show(output)


@contextmanager
def position_lookups(model: PreTrainedModel, length: int) -> Iterator[list[nn.Module]]:
    """The tables that are asked for consecutive rows while the model runs: its learned positions."""
    found: list[nn.Module] = []

    def looked_up(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for ids in (*args, *kwargs.values()):
            whole = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
            if whole and (ids.long().diff() == 1).all():
                found.append(table)

    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    handles = [table.register_forward_pre_hook(looked_up, with_kwargs=True) for table in tables]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def attending(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """The model with another attention function, and back."""
    before = model.config._attn_implementation
    if implementation is not None and model._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and back."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
