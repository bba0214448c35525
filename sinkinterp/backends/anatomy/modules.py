"""The modules of a transformers model that attend, read or write its residual stream, or hold learned positions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ...attention import ATTENTION_INPUT, MLP, NEURONS, Site
from ...checks import Frozen, InputError
from . import own_attention

_DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")  # where `num_hidden_layers` is the encoder's
_FACTORS = ("residual_multiplier", "residual_scale")  # Granite, MiniCPM3
# what the last module of a feed-forward branch is called; of several such modules in a block, the first name counts
_FEED_FORWARD = (
    "post_feedforward_layernorm",
    "post_mlp_layernorm",
    "post_norm2",
    "post_ffn_norm",
    "mlp",
    "feed_forward",
    "mlp_block",
    "shared_mlp",
    "block_sparse_moe",
    "fc2",
    "layer.2.DenseReluDense",
)
# what attention and the last matrix of a feed-forward layer are called in a block
_ATTENTION = ("self_attn", "attn", "attention", "self_attention", "layer.0.SelfAttention", "norm_attn_norm.attn")
_OUTPUT_MATRIX = tuple(
    f"{layer}.{matrix}" if layer else matrix
    for layer in ("mlp", "feed_forward", "ffn", "layer.2.DenseReluDense", "layer.1.DenseReluDense", "shared_mlp", "")
    for matrix in ("down_proj", "c_proj", "fc_out", "dense_4h_to_h", "fc2", "w2", "wo", "output_linear")
)
_BESIDE = {"shared_mlp": "block_sparse_moe"}  # a module that runs before it, whose output the block adds to its own


def blocks_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The model's stack of blocks: the first list of modules that is as long as the configuration says.

    In an encoder-decoder model, that of the decoder.
    """
    config = model.config
    depths = [getattr(config, name) for name in _DECODER_DEPTHS if hasattr(config, name)]
    depth = depths[0] if depths else config.get_text_config().num_hidden_layers
    parts = (model.get_decoder(), *(() if config.is_encoder_decoder else (model,)))
    towers = [m for m in model.modules() if m is not model and getattr(m, "main_input_name", "") == "pixel_values"]
    of_images = {module for tower in towers for module in tower.modules()}  # which may be as many
    modules = [module for part in parts for module in part.modules() if module not in of_images]
    lists = [module for module in modules if isinstance(module, nn.ModuleList)]
    stack = next((modules for modules in lists if len(modules) == depth), None)
    if stack is None:
        lengths = " or ".join(map(str, sorted({len(modules) for modules in lists}))) or "no list of them"
        raise InputError(
            f"{type(model).__name__} has {lengths} blocks; set model.config.num_hidden_layers, now {depth}, to that"
        )
    return list(stack)


def running_device(model: PreTrainedModel) -> torch.device:
    """The device that runs the first layer. Weights that accelerate offloads have no device until their layer runs."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    places = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((place for place in places if place is not None), "meta"))


def cross_attention(block: nn.Module) -> set[nn.Module]:
    """The modules of a block that attend to an encoder: they are not causal, and another module of the block is."""
    is_causal = {m: m.is_causal for m in block.modules() if isinstance(getattr(m, "is_causal", None), bool)}
    return {m for m, causal in is_causal.items() if not causal} if any(is_causal.values()) else set()


def token_mixer(block: nn.Module, attends: bool) -> str:
    """Names the part of a block that mixes tokens: attention, cross-attention, a convolution or another mixer."""
    if attends:
        return "attention and cross-attention" if cross_attention(block) else "attention"
    is_convolution = any("conv" in type(child).__name__.lower() for child in block.children())
    return "convolution" if is_convolution else "mixer"


class Tap(Frozen):
    """The module of a block whose output, times `factor`, is at a site. With `is_input` its input is.

    beside: a module that runs before it and whose output is added to its own, as that of experts; None without one.
    """

    module: nn.Module
    factor: float = 1.0
    beside: nn.Module | None = None
    is_input: bool = False


Taps = Mapping[Site, Sequence[Tap | None]]


def taps_of(blocks: Sequence[nn.Module]) -> Taps:
    """The tap of every block at each site that modules show, in forward order; None where it is unknown."""
    return {
        ATTENTION_INPUT: [_tap(block, _ATTENTION) for block in blocks],
        NEURONS: list(map(_output_matrix, blocks)),
        MLP: list(map(_feed_forward, blocks)),
    }


def _named_modules(block: nn.Module) -> dict[str, nn.Module]:
    """The modules of a block by their names in transformers: TransformerLens wraps a module, and the wrapper counts."""
    modules: dict[str, nn.Module] = {}
    for name, module in block.named_modules():
        modules.setdefault(name.replace("_original_component.", "").removesuffix("_original_component"), module)
    return modules


def _tap(block: nn.Module, names: Sequence[str]) -> Tap | None:
    """The tap at the input of the first of these modules that a block has."""
    modules = _named_modules(block)
    return next((Tap(modules[name], is_input=True) for name in names if name in modules), None)


def _output_matrix(block: nn.Module) -> Tap | None:
    has_experts = any("experts" in name or "moe" in name for name, _ in block.named_modules())
    return None if has_experts else _tap(block, _OUTPUT_MATRIX)


def _feed_forward(block: nn.Module) -> Tap | None:
    block = getattr(block, "original_component", block)
    family = own_attention.family_of(block)
    modules = dict(block.named_modules())
    names = _FEED_FORWARD if family is None or family.feed_forward is None else (family.feed_forward,)
    name = next((name for name in names if name in modules), None)
    factor = float(next((getattr(block, name) for name in _FACTORS if hasattr(block, name)), 1))
    if name is None:
        return None
    return Tap(modules[name], factor, modules[_BESIDE[name]] if _BESIDE.get(name) in modules else None)


class StreamModules(Frozen):
    """The modules of a model that read and write its residual stream.

    tables: those of learned positions. taps: at the sites that are read and edited. is_cross: whether cross-attention
    is read, in place of self-attention. n_kv_heads: to this number those of a layer with fewer are repeated.
    """

    embedding: nn.Module
    tables: tuple[nn.Module, ...]
    blocks: Sequence[nn.Module]
    taps: Taps
    is_cross: bool = False
    n_kv_heads: int = 1

    @property
    def stacks_streams(self) -> bool:
        """Tells if the first axis of the output of blocks counts several streams, as in Gemma 3n."""
        return hasattr(self.blocks[0], "altup")

    @cached_property
    def layers(self) -> dict[nn.Module, int]:
        """The block of every module whose attention calls are read."""
        layers: dict[nn.Module, int] = {}
        for i, block in enumerate(self.blocks):
            cross = cross_attention(block)
            layers |= dict.fromkeys(cross if self.is_cross else set(block.modules()) - cross, i)
        return layers


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
    with removed_after([table.register_forward_pre_hook(before, with_kwargs=True) for table in others]):
        yield tables


@contextmanager
def positions_replaced(tables: Sequence[nn.Module], positions: Tensor) -> Iterator[None]:
    """In the block, the tables of learned positions return other rows than the model asks for.

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
    with removed_after(handles):
        yield


@contextmanager
def removed_after(handles: Sequence[RemovableHandle]) -> Iterator[None]:
    """In the block, these hooks are there; after it they are removed."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_consecutive(ids: Any, length: int) -> bool:
    """Tells if this is a tensor of `length` consecutive integers, or of several such rows."""
    is_ids = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
    return is_ids and bool((ids.long().diff() == 1).all())
