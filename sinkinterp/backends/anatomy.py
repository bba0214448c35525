"""The modules of a transformers model that attend, read or write its residual stream, or hold learned positions.

Among them are the linear maps to queries, keys and values. Nothing is written into a model: what a map returns changes
by what the edits change in its weights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..attention import ATTENTION_INPUT, MLP, NEURONS
from ..attention.shapes import Gap, ModelShape, tolerance_of
from ..attention.sites import QUERY_WEIGHTS, WEIGHT_SITES, LazyWeights, Site
from ..checks import InputError
from . import own_attention
from .attached import Hook
from .recorder import Recorder

_DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")  # where `num_hidden_layers` is the encoder's
_FACTORS = ("residual_multiplier", "residual_scale")  # Granite, MiniCPM3
# what the last module of a feed-forward branch is called; of several such modules in a block, the first name counts
_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_norm2", "post_ffn_norm")
_MLPS = ("mlp", "feed_forward", "mlp_block", "shared_mlp", "block_sparse_moe", "fc2", "layer.2.DenseReluDense")
_FEED_FORWARD = (*_NORMS, *_MLPS)
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
    if not depth:
        raise InputError(f"{type(model).__name__} has no blocks")
    parts = (model.get_decoder(), *(() if config.is_encoder_decoder else (model,)))
    towers = [m for m in model.modules() if m is not model and getattr(m, "main_input_name", "") == "pixel_values"]
    of_images = {module for tower in towers for module in tower.modules()}  # which may be as many
    modules = [module for part in parts for module in part.modules() if module not in of_images]
    lists = [module for module in modules if isinstance(module, nn.ModuleList)]
    stack = next((modules for modules in lists if len(modules) == depth), None)
    if stack is None:
        lengths = " or ".join(map(str, sorted({len(modules) for modules in lists}))) or "no list of them"
        fix = f"set model.config.num_hidden_layers, now {depth}, to that"
        raise InputError(f"{type(model).__name__} has {lengths} blocks; {fix}")
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


@dataclass(frozen=True)
class Tap:
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


@dataclass(frozen=True)
class StreamModules:
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


def position_tables(model: PreTrainedModel, length: int) -> AbstractContextManager[list[nn.Module]]:
    """A list that fills, while the model runs, with the tables that are asked for consecutive rows: learned positions.

    length: of the sequences that the model runs on.
    """
    tables: list[nn.Module] = []

    def before(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if table not in tables and any(_is_consecutive(ids, length) for ids in (*args, *kwargs.values())):
            tables.append(table)

    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    return removed_after([table.register_forward_pre_hook(before, with_kwargs=True) for table in others], tables)


def positions_replaced(tables: Sequence[nn.Module], positions: Tensor) -> AbstractContextManager[None]:
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
    return removed_after(handles)


@contextmanager
def removed_after(handles: Sequence[RemovableHandle], filled: Any = None) -> Iterator[Any]:
    """In the block, these hooks are there; after it they are removed. Yields what they fill."""
    try:
        yield filled
    finally:
        for handle in handles:
            handle.remove()


def _is_consecutive(ids: Any, length: int) -> bool:
    """Tells if this is a tensor of `length` consecutive integers, or of several such rows."""
    is_ids = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
    return is_ids and bool((ids.long().diff() == 1).all())


Rows = Int[Tensor, "head d_head"]  # the entries of what a map returns that each head takes
Layout = tuple[str, int]  # of what a map returns: an einops pattern, and for how many sites it makes vectors
ALONE: Layout = ("(site head d) -> site head d", 1)
_STACKED: Layout = ("(site head d) -> site head d", 3)  # GPT-2
_INTERLEAVED: Layout = ("(head site d) -> site head d", 3)  # GPT-NeoX, Bloom
_LAYOUTS: Sequence[tuple[tuple[str, str, str], Layout]] = (
    (("q_proj", "k_proj", "v_proj"), ALONE),
    (("q", "k", "v"), ALONE),
    (("c_attn",) * 3, _STACKED),
    (("query_key_value",) * 3, _INTERLEAVED),
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LARGE = 1024.0  # beside a weight times this, a bias is small, also in bfloat16


def linear_of(module: Any, x: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
    """The weight `d_out d_in` of a map that is given x, when asked for, and its bias.

    They are found by other inputs, so the format of the weight does not matter. Raises InputError for a module that is
    not linear: twice an input must give twice what is above the bias. So it does for weights in several processes.
    """
    if any(hasattr(weight, "device_mesh") for weight in module.parameters()):  # a DTensor
        raise InputError(f"the weights of a {type(module).__name__} are a DTensor")
    ones, first = (1,) * (x.ndim - 2), x.detach().flatten(0, -2)[0]
    bias, once, twice = module.forward(torch.stack((0 * first, first, 2 * first)).view(*ones, 3, -1)).flatten(0, -2)
    gap, what = Gap.of(twice.detach(), (2 * once - bias).detach()), f"a {type(module).__name__} is not linear"
    gap.check(tolerance_of(x.dtype), what, "edit the call of its layer instead")

    def weight() -> Tensor:
        each = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).view(*ones, *(x.shape[-1],) * 2)
        return ((module.forward(each * _LARGE).flatten(0, -2) - bias) / _LARGE).T

    return weight, bias if isinstance(getattr(module, "bias", None), Tensor) or bias.any() else None


@dataclass(frozen=True)
class HeadMap:
    """The module that makes the queries, keys or values of a layer, `site`."""

    module: nn.Module
    layer: int
    site: Site
    layout: Layout
    d_head: int

    def rows(self, width: int) -> Rows:
        """The entries of what the module returns that each head takes; none where this width is not divided so."""
        pattern, n_sites = self.layout
        is_whole = not width % (n_sites * self.d_head)
        rows = rearrange(torch.arange(width if is_whole else 0), pattern, site=n_sites, d=self.d_head)
        return rows[WEIGHT_SITES.index(self.site) % n_sites]

    def edited(self, recorder: Recorder, shape: ModelShape, x: Tensor, y: Tensor) -> Tensor:
        """What the map returns for x after the recorder's edits of its weights; y before them."""
        rows = self.rows(y.shape[-1]).to(y.device)
        if rows.shape != (shape.n_heads if self.site is QUERY_WEIGHTS else shape.n_kv_heads, shape.d_head):
            return y  # and the recorder misses the map
        recorder.mapped.add((self.site, self.layer))
        weight, bias = linear_of(self.module, x)
        with torch.set_grad_enabled(recorder.gradients):
            before = LazyWeights(cache(lambda: weight()[rows]), None if bias is None else bias[rows])
            after = self.site.edited(before, recorder.edits, self.layer)
            if after.bias is not before.bias:
                change = (after.bias - before.bias).flatten().expand(*y.shape[:-1], -1)
                y = y.index_add(-1, rows.flatten(), change.to(y.dtype))
            if "weight" in vars(after) and after.weight is not before.weight:
                change = F.linear(x, (after.weight - before.weight).flatten(0, 1))
                y = y.index_add(-1, rows.flatten(), change.to(y.dtype))
            return y


def maps_of(blocks: Mapping[int, nn.Module], d_head: int) -> Iterator[HeadMap]:
    """The modules that make queries, keys and values in these blocks, by layer, where they are known."""
    for layer, block in blocks.items():
        projections = [_projection(block, part) for part in range(len(WEIGHT_SITES))]
        for site, (module, layout) in zip(WEIGHT_SITES, projections, strict=True):
            if module is not None and (layout != ALONE or projections.count((module, layout)) == 1):
                yield HeadMap(module, layer, site, layout, d_head)


def _projection(block: nn.Module, part: int) -> tuple[nn.Module | None, Layout]:
    """The module that makes a part of calls, and its layout. A `c_attn` of GPTBigCode has neither layout."""
    for parent in block.modules():
        for names, layout in _LAYOUTS:
            module = getattr(parent, names[part], None)
            if isinstance(module, nn.Module) and (layout is not _STACKED or not hasattr(parent, "multi_query")):
                return module, layout
    return None, ALONE


@contextmanager
def maps_edited(
    blocks: Sequence[nn.Module], maps: Iterable[HeadMap], shape: ModelShape, recorder: Recorder
) -> Iterator[None]:
    """In the block, maps return what the recorder's edits of weights make of them.

    A module that layers share is edited in those layers alone whose blocks run.
    """
    running = -1

    def enter(layer: int, block: nn.Module, args: Any) -> None:
        nonlocal running
        running = layer

    def after(head_map: HeadMap, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> Any:
        if head_map.layer != running or not recorder.edits_at(head_map.site):
            return None
        return head_map.edited(recorder, shape, (*args, *kwargs.values())[0], y)

    handles = [block.register_forward_pre_hook(Hook(recorder, partial(enter, i))) for i, block in enumerate(blocks)]
    for head_map in maps:
        edited = Hook(recorder, partial(after, head_map))
        handles.append(head_map.module.register_forward_hook(edited, prepend=True, with_kwargs=True))
    with removed_after(handles):
        yield


@dataclass(frozen=True)
class LinearMap:
    """A parameter of a module that is a linear map, or of experts a stack of them; transposed: columns are outputs."""

    module: nn.Module
    name: str
    is_transposed: bool

    @property
    def weight(self) -> Float[Tensor, "... row column"]:
        """A view of the weights: a row for each output, a column for each input.

        Raises InputError for weights that the module computes, or that are elsewhere between passes.
        """
        weight, kind = self.module._parameters.get(self.name), type(self.module).__name__
        if weight is None:
            raise InputError(f"the weights of a {kind} are computed, as under weight norm; remove the parametrisation")
        if weight.is_meta:
            raise InputError(f"the weights of a {kind} are offloaded")
        return weight.mT if self.is_transposed else weight

    @contextmanager
    def replaced(self, weight: Float[Tensor, "... row column"]) -> Iterator[None]:
        """In the block, the module computes with these weights; its own are not written."""
        before = self.module._parameters[self.name]
        self.module._parameters[self.name] = nn.Parameter(weight.mT if self.is_transposed else weight, False)
        try:
            yield
        finally:
            self.module._parameters[self.name] = before


def is_stack(weight: Tensor) -> bool:
    """Tells if a parameter is a stack of matrices, as of experts."""
    return weight.ndim == 3 and min(weight.shape[1:]) > 1


def linear_maps(block: nn.Module) -> Iterator[LinearMap]:
    """The linear maps of a block.

    Weights that are integers are left out, as in a quantised model. So are routers of experts that transformers does
    not build as linear layers, and vectors, such as keys and values of a slot. Raises InputError as `LinearMap.weight`.
    """
    for module in block.modules():
        if isinstance(module, nn.Linear | Conv1D):
            maps = [LinearMap(module, "weight", isinstance(module, Conv1D))]
        else:
            weights = {} if isinstance(module, _CONVOLUTIONS) else dict(module.named_parameters(recurse=False))
            is_transposed = getattr(module, "is_transposed", False)  # transformers' experts
            maps = [LinearMap(module, name, is_transposed) for name, weight in weights.items() if is_stack(weight)]
        yield from (linear for linear in maps if linear.weight.is_floating_point())
