"""How a transformers model shows a recorder its attention calls and its residual stream. Nothing is patched."""

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
from ..attention.shapes import HeadOutput
from ..errors import InputError
from . import own_attention
from .recorder import Recorder

BASES = ("sdpa", "eager")  # the attention implementations of transformers that can be recorded
RECORDER: ContextVar[Recorder | None] = ContextVar("sinkinterp_recorder", default=None)


def _recorded(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows every call to the recorder."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        call = call_of_interface(module.layer_idx, query, key, value, attention_mask, scaling, **kwargs)
        recorder = RECORDER.get()
        edited = call if recorder is None else recorder.attend(call)
        fused = edited.is_fused and (base == "sdpa" or "kernel" in kwargs)
        if fused or edited is not call:
            z, weights = edited.output(), None
        else:
            eager = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
            function = ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
            z, weights = function(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
            z = z.transpose(1, 2)
        if recorder is not None:
            z = recorder.output(edited, z)
        return z.transpose(1, 2).contiguous(), weights

    return attention


def _attended(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, bias: Tensor | None = None
) -> HeadOutput:
    """What heads return in a model that does not use the attention interface; see `own_attention.Attend`."""
    bias = None if bias is None else bias.expand(-1, -1, q.shape[2], -1)
    call = call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, position_bias=bias)
    recorder = RECORDER.get()
    if recorder is not None:
        call = recorder.attend(call)
    z = call.output()
    return (z if recorder is None else recorder.output(call, z)).to(v.dtype)


for _base in BASES:
    AttentionInterface.register(f"sinkinterp_{_base}", _recorded(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(f"sinkinterp_{_base}", ALL_MASK_ATTENTION_FUNCTIONS[_base])


def blocks_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The decoder's stack of blocks: the first list of modules that is as long as the configuration says."""
    depth = model.config.get_text_config().num_hidden_layers
    parts = (model.get_decoder(), model)  # a vision tower or an encoder may be as deep as the decoder
    modules = [module for part in parts for module in part.modules()]
    stacks = [module for module in modules if isinstance(module, nn.ModuleList) and len(module) == depth]
    if not stacks:
        raise InputError(f"{type(model).__name__} keeps its {depth} blocks in no list, so residuals cannot be read")
    return list(stacks[0])


# what the last module of a feed-forward branch is called; of several such modules in a block, the first name counts
_FEED_FORWARD = (
    "post_feedforward_layernorm",
    "post_mlp_layernorm",
    "post_norm2",
    "mlp",
    "feed_forward",
    "mlp_block",
    "block_sparse_moe",
    "fc2",
)

_FACTORS = ("residual_multiplier", "residual_scale")  # Granite, MiniCPM3


@dataclass(frozen=True)
class FeedForward:
    """The last module of a block's feed-forward branch, and what the block multiplies its output by."""

    module: nn.Module
    factor: float


def feed_forwards_of(blocks: Sequence[nn.Module]) -> list[FeedForward | None]:
    """The feed-forward branch of every block; None where unknown."""
    inner = [getattr(block, "original_component", block) for block in blocks]  # TransformerLens wraps it
    modules = [_last_feed_forward(block) for block in inner]
    factors = [float(next((getattr(block, name) for name in _FACTORS if hasattr(block, name)), 1)) for block in inner]
    return [None if m is None else FeedForward(m, factor) for m, factor in zip(modules, factors, strict=True)]


def _last_feed_forward(block: nn.Module) -> nn.Module | None:
    family = own_attention.family_of(block)
    if family is not None and family.feed_forward is not None:
        return dict(block.named_modules()).get(family.feed_forward)
    return next((getattr(block, name) for name in _FEED_FORWARD if hasattr(block, name)), None)


@dataclass(frozen=True)
class StreamModules:
    """The modules of a model that read and write its residual stream.

    tables: those of learned positions. mlps: of every block; None where it is not to be read.
    """

    embedding: nn.Module
    tables: tuple[nn.Module, ...]
    blocks: Sequence[nn.Module]
    mlps: Sequence[FeedForward | None]


@contextmanager
def recorded_stream(modules: StreamModules, recorder: Recorder) -> Iterator[None]:
    """Inside, the recorder is shown embeddings, residuals and feed-forward updates, and its result replaces them."""

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        if args:
            return (recorder.residual(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": recorder.residual(kwargs["hidden_states"])}

    def after(record: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            has_others = isinstance(output, tuple | list)
            x = output[0] if has_others else output
            edited = record(x)
            if edited is x:
                return None  # leaves the output as it is
            return (edited, *output[1:]) if has_others else edited

        return hook

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in modules.blocks]
    outputs = [(modules.embedding, recorder.token_embedding), (modules.blocks[-1], recorder.residual)]
    outputs += [(table, recorder.position_embedding) for table in modules.tables]
    for block, mlp in enumerate(modules.mlps):
        if mlp is not None:
            outputs.append((mlp.module, partial(recorder.mlp, block, factor=mlp.factor)))
    handles += [module.register_forward_hook(after(record)) for module, record in outputs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def position_tables(model: PreTrainedModel, length: int) -> Iterator[list[nn.Module]]:
    """A list that fills, while the model runs, with the tables that are asked for consecutive rows: learned positions.

    length: of the sequences that the model runs on.
    """
    tables: list[nn.Module] = []

    def before(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for ids in (*args, *kwargs.values()):
            is_ids = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
            if is_ids and (ids.long().diff() == 1).all():
                tables.append(table)

    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    handles = [table.register_forward_pre_hook(before, with_kwargs=True) for table in others]
    try:
        yield tables
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def attention_set_to(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Inside, the model has another attention implementation; None leaves its own.

    A model outside transformers' attention interface shows its calls to the recorder instead; see `own_attention`.
    """
    before = model.config._attn_implementation
    blocks: Sequence[nn.Module] = ()
    if implementation is not None and model._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    elif implementation is not None:
        blocks = blocks_of(model)
    try:
        with own_attention.replaced(blocks, _attended):
            yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model has no dropout."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
