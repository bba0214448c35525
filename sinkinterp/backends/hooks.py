"""How a transformers model shows a recorder its attention calls and its residual stream. Nothing is patched."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.interface import call_of_interface, is_causal_call
from ..attention.shapes import HeadOutput
from ..errors import InputError
from . import own_attention
from .recorder import Recorder

BASES = ("sdpa", "eager")  # the attention implementations of transformers that can be recorded


@dataclass(frozen=True)
class Recording:
    """A recorder, and the block of every module whose calls it is shown. Calls of other modules are left alone."""

    recorder: Recorder
    layers: Mapping[nn.Module, int]


RECORDING: ContextVar[Recording | None] = ContextVar("sinkinterp_recording", default=None)


def _recorded(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows the calls of known modules to the recorder."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        def of_transformers() -> tuple[Tensor, Tensor | None]:
            eager = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
            function = ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
            return function(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

        recording = RECORDING.get()
        if recording is None or module not in recording.layers:
            return of_transformers()
        layer, extra = recording.layers[module], {**kwargs, "is_causal": is_causal_call(module, kwargs)}
        call = call_of_interface(layer, query, key, value, attention_mask, scaling, **extra)
        edited = recording.recorder.attend(call)
        if edited is not call or (edited.is_fused and (base == "sdpa" or "kernel" in kwargs)):
            z, weights = edited.output(), None
        else:
            z, weights = of_transformers()
            z = z.transpose(1, 2)
        return recording.recorder.output(edited, z).transpose(1, 2).contiguous(), weights

    return attention


def _attended(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, bias: Tensor | None = None
) -> HeadOutput:
    """What heads return in a model that does not use the attention interface; see `own_attention.Attend`."""
    bias = None if bias is None else bias.expand(-1, -1, q.shape[2], -1)
    call = call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, position_bias=bias)
    recording = RECORDING.get()
    recorder = None if recording is None else recording.recorder
    if recorder is not None:
        call = recorder.attend(call)
    z = call.output()
    return (z if recorder is None else recorder.output(call, z)).to(v.dtype)


for _base in BASES:
    AttentionInterface.register(f"sinkinterp_{_base}", _recorded(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(f"sinkinterp_{_base}", ALL_MASK_ATTENTION_FUNCTIONS[_base])


_DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")  # where `num_hidden_layers` is the encoder's


def blocks_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The model's stack of blocks: the first list of modules that is as long as the configuration says.

    In an encoder-decoder model, that of the decoder.
    """
    config = model.config
    depths = [getattr(config, name) for name in _DECODER_DEPTHS if hasattr(config, name)]
    depth = depths[0] if depths else config.get_text_config().num_hidden_layers
    parts = (model.get_decoder(), *(() if config.is_encoder_decoder else (model,)))  # a vision tower may be as deep
    modules = [module for part in parts for module in part.modules()]
    stacks = [module for module in modules if isinstance(module, nn.ModuleList) and len(module) == depth]
    if not stacks:
        raise InputError(f"{type(model).__name__} keeps its {depth} blocks in no list, so residuals cannot be read")
    return list(stacks[0])


def cross_attention(block: nn.Module) -> set[nn.Module]:
    """The modules of a block that attend to an encoder: they are not causal and stand beside one that is."""
    is_causal = {m: m.is_causal for m in block.modules() if isinstance(getattr(m, "is_causal", None), bool)}
    return {m for m, causal in is_causal.items() if not causal} if any(is_causal.values()) else set()


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
    "layer.2.DenseReluDense",
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
    modules = dict(block.named_modules())
    if family is not None and family.feed_forward is not None:
        return modules.get(family.feed_forward)
    return next((modules[name] for name in _FEED_FORWARD if name in modules), None)


@dataclass(frozen=True)
class StreamModules:
    """The modules of a model that read and write its residual stream.

    tables: those of learned positions. mlps: of every block; None where it is not to be read. is_cross: whether
    cross-attention is read, in place of self-attention.
    """

    embedding: nn.Module
    tables: tuple[nn.Module, ...]
    blocks: Sequence[nn.Module]
    mlps: Sequence[FeedForward | None]
    is_cross: bool = False

    @cached_property
    def layers(self) -> dict[nn.Module, int]:
        """The block of every module whose attention calls are read."""
        layers: dict[nn.Module, int] = {}
        for i, block in enumerate(self.blocks):
            cross = cross_attention(block)
            layers |= dict.fromkeys(cross if self.is_cross else set(block.modules()) - cross, i)
        return layers


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
        if any(_is_consecutive(ids, length) for ids in (*args, *kwargs.values())):
            tables.append(table)

    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    handles = [table.register_forward_pre_hook(before, with_kwargs=True) for table in others]
    try:
        yield tables
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def asked_for(tables: Sequence[nn.Module], positions: Tensor) -> Iterator[None]:
    """Inside, the tables of learned positions return other rows than the model asks for.

    positions: `#sequence pos`, the positions that tokens are given, counted from the first row that the model asks for.
    """
    n_sequences, length = positions.shape

    def edited(ids: Any) -> Any:
        if not _is_consecutive(ids, length):
            return ids
        rows = ids.flatten()[0] + positions.flatten()
        return rows.view(*(1,) * (ids.ndim - 1), -1)

    def before(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        return tuple(map(edited, args)), {name: edited(value) for name, value in kwargs.items()}

    def after(table: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output.reshape(n_sequences, length, -1)

    handles = [table.register_forward_pre_hook(before, with_kwargs=True) for table in tables]
    handles += [table.register_forward_hook(after, prepend=True) for table in tables]  # before a recorder sees it
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_consecutive(ids: Any, length: int) -> bool:
    """Whether this is a tensor of `length` consecutive integers, or of several such rows."""
    is_ids = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
    return is_ids and bool((ids.long().diff() == 1).all())


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
