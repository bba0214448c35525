"""sinks: alpha and Sink_k of attention weights that someone has already, from any library."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Pattern
from ..checks import InputError, whole_number
from ..metrics.estimates import SHARES, estimate_cells, intervals, mean_cells, rate
from ..metrics.importance import check_epsilon
from ..plots.theme import heat_map, themed
from ..table import HEAD, LAYER, NULL, Cell, Table
from .readings import Readings

_TOLERANCE = 0.02  # by which a row of half-precision weights may exceed one
_LAYER_OF_HOOK = re.compile(r"(?:^|\.)(\d+)\..*hook_pattern$")
AXES = "sequence layer head query key"
TAKES = (
    f"a tensor or array `{AXES}`, a list of `sequence head query key` (one for each layer), an ActivationCache, or a "
    "model's output with attn_implementation='eager'"
)


def holds_attention(given: Any) -> bool:
    """Tells if something may hold attention weights: an array, or a collection, but not a model."""
    is_collection = callable(getattr(type(given), "items", None)) and not isinstance(given, torch.nn.Module)
    return is_collection or isinstance(given, Tensor | np.ndarray | list | tuple)


def patterns_of(given: Any, sequences: int | None = None) -> dict[int, Pattern]:
    """The attention weights that someone holds, by layer, as `sinks` takes them.

    sequences: how many there are, where tokens or a mask say so. It tells what the first of four axes is. Raises
    InputError where nothing does, for what holds no weights, for weights that are not square, and for layers of
    several sizes.
    """
    layers = {layer: _checked(pattern, layer) for layer, pattern in _by_layer(given, sequences).items()}
    sizes = {(pattern.shape[0], pattern.shape[-1]) for pattern in layers.values()}
    if len(sizes) > 1:
        found = ", ".join(f"{batch} x {length}" for batch, length in sorted(sizes))
        raise InputError(f"all layers have one batch and one length; got {found}")
    return layers


def sinks(patterns: Any, position: int = 0, epsilon: float = 0.3, attention_mask: Any = None) -> Table:
    """alpha of a position in every head, and the share of sequences in which it exceeds epsilon, with 95% intervals.

    `patterns` are attention weights: a tensor or array `sequence layer head query key`, as `si.attention_weights`
    returns it (also `head query key`, or one map), or a list of `sequence head query key` for each layer
    (`output_attentions`, or from nnsight; stacked by `torch.stack(attentions, 1)`).
    They may also be an ActivationCache, or a model's output. Of `generate` without beams, all steps are joined. An
    encoder-decoder model gives those of its decoder. The first row is of all heads: Sink_k.
    alpha is the mean weight over the queries from the position on, as in `measure(convention=PAPER)`. If some
    weight is negative or some row exceeds one, proxies `|w| / sum |w|` replace the weights of every layer, and the
    note says so. Rows of less than one stay: a slot has the rest. The null is uniform attention, as far back as the
    layer's weights reach. So it finds sliding windows, but no slot. `attention_mask` `batch key` is 0 where a batch
    is padded; positions then count from the first token of each sequence. Raises InputError for anything that is
    not a causal square pattern, for padding without its mask, and for a mask that is not padding.
    """
    check_epsilon(epsilon)
    alphas, nulls, note = alphas_of(patterns, position, attention_mask)
    every = torch.cat(list(alphas.values()), 1)
    k = position + 1

    def row(layer: int | None, head: int | None, alpha: Float[Tensor, "batch head"]) -> dict[str, Cell]:
        return {
            LAYER: layer, HEAD: head, **mean_cells(f"alpha_{k}", alpha.mean(1), SHARES),
            NULL: fmean(nulls.values()) if layer is None else nulls[layer],
            **estimate_cells(f"Sink_{k}", rate((alpha > epsilon).float().mean(1))),
        }  # fmt: skip

    of_heads = [row(i, j, alpha[:, j : j + 1]) for i, alpha in alphas.items() for j in range(alpha.shape[1])]
    note = note.replace("; ", f", epsilon={epsilon}; ", 1) + f"; {intervals(len(every))}"
    rows = (row(None, None, every), *of_heads)
    return Table.of(f"Sinks at position {position}: all heads, then each", note, rows, partial(_figure, f"alpha_{k}"))


def _figure(column: str, table: Table) -> go.Figure:
    """The importance in every head."""
    figure = heat_map(replace(table, frame=table.frame.dropna(subset=[LAYER])), column, zmin=0, zmax=1)
    return themed(figure, table.title, 460, table.note)


def alphas_of(
    patterns: Any, position: int = 0, attention_mask: Any = None
) -> tuple[dict[int, Float[Tensor, "batch head"]], dict[int, float], str]:
    """alpha of a position, and its null, of the layers of attention weights that `sinks` takes; then their protocol."""
    layers = patterns_of(patterns, None if attention_mask is None else len(attention_mask))
    batch, _, _, length = next(iter(layers.values())).shape
    real = _unpadded(layers) if attention_mask is None else _real(attention_mask, batch, length)
    position = whole_number(position, "position", 0, int(real.sum(-1).min()) - 1)
    layers = {layer: _of_tokens(pattern, real, layer) for layer, pattern in layers.items()}
    of_position = partial(_alpha, column=real.int().argmax(-1) + position, real=real)
    are_shares = all(map(_are_shares, layers.values()))
    weights = layers if are_shares else {layer: _proxy(pattern) for layer, pattern in layers.items()}
    nulls = {layer: of_position(_uniform(pattern, real)).mean().item() for layer, pattern in layers.items()}
    note = f"n={batch}, T={length}; divisor: queries from the position on"
    note += "" if are_shares else "; proxies |w| / sum |w|, since some weights are negative or some rows exceed one"
    return {layer: of_position(pattern) for layer, pattern in weights.items()}, nulls, note


def _unpadded(layers: Mapping[int, Pattern]) -> Bool[Tensor, "batch key"]:
    """All tokens. Raises InputError for a sequence that begins or ends with tokens that receive no weight at all."""
    found = [(pattern != 0) & ~pattern.triu(1).any(-1, keepdim=True) for pattern in layers.values()]  # of causal rows
    is_seen = torch.stack([has_weight.any(1).any(1) for has_weight in found]).any(0)
    if is_seen.any() and not is_seen[:, [0, -1]].all():
        sequence = int((~is_seen[:, [0, -1]]).any(1).nonzero()[0])
        raise InputError(
            f"sequence {sequence} begins or ends with tokens that receive no attention, as padding does; give the "
            "attention_mask of the batch (all ones, if these are tokens), or cut them off"
        )
    return torch.ones_like(is_seen)


def _real(attention_mask: Any, batch: int, length: int) -> Bool[Tensor, "batch key"]:
    """Where there are tokens. Raises InputError for a mask of another shape, or with a gap or nothing in a sequence."""
    try:
        given = torch.as_tensor(attention_mask).cpu()
        real = given.bool()
        first, last = (ends.int().argmax(-1) for ends in (real, real.flip(-1)))
        has_no_gap = bool((real.sum(-1) == length - last - first).all())
        is_mask = real.shape == (batch, length) and bool((given == real).all()) and has_no_gap
    except (TypeError, ValueError, RuntimeError, IndexError):
        is_mask = False
    if not is_mask:
        what = f"attention_mask is {batch} x {length}, as the weights are: 1 for tokens, 0 for padding at the ends only"
        raise InputError(f"{what}; got {attention_mask!r:.60}")
    return real


def _alpha(
    pattern: Pattern, column: Int[Tensor, " batch"], real: Bool[Tensor, "batch key"]
) -> Float[Tensor, "batch head"]:
    """The mean weight of each sequence's column over its queries from there on."""
    queries = (real & (torch.arange(pattern.shape[-1]) >= column[:, None]))[:, None]
    mass = pattern.gather(-1, column[:, None, None, None].expand(*pattern.shape[:3], 1))[..., 0]
    return (mass * queries).sum(-1) / queries.sum(-1)


def _uniform(pattern: Pattern, real: Bool[Tensor, "batch key"]) -> Float[Tensor, "batch 1 query key"]:
    """Uniform attention to the tokens that a layer's queries can see: as far back as some weight is not zero."""
    queries, keys = (pattern != 0).any(0).any(0).nonzero().T
    index = torch.arange(pattern.shape[-1])
    back = index[:, None] - index
    seen = ((back >= 0) & (back <= (queries - keys).max()) & real[:, None])[:, None]
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


def _by_layer(given: Any, sequences: int | None) -> dict[int, Any]:
    """The patterns by the number of their layer."""
    if isinstance(given, Readings):
        raise InputError("a report has its sinks: report.sink_rate(), report.heads(); si.sinks takes attention weights")
    if getattr(given, "beam_indices", None) is not None:
        raise InputError("beams change places from step to step, so their weights are of no one text; set num_beams=1")
    given = getattr(given, "attentions", getattr(given, "decoder_attentions", given))
    if isinstance(given, Tensor | np.ndarray):
        return dict(enumerate(_with_all_axes(given, sequences).swapaxes(0, 1)))
    if isinstance(given, Mapping) or callable(getattr(given, "items", None)):
        found = {int(m[1]): value for name, value in given.items() if (m := _LAYER_OF_HOOK.search(str(name)))}
        if found:
            return dict(sorted(found.items()))
    patterns = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else []
    if not patterns or isinstance(patterns[0], str):
        others = "si.sinks(model, text) has those of a model, si.attention_map(models, text) draws several"
        raise InputError(f"this {type(given).__name__} holds no attention weights; give {TAKES}; {others}")
    if all(isinstance(step, list | tuple) and step for step in patterns):
        patterns = [_generated(layer, of_steps) for layer, of_steps in enumerate(zip(*patterns, strict=False))]
    return dict(enumerate(patterns))


def _with_all_axes(given: Any, sequences: int | None) -> Any:
    """The array as `sequence layer head query key`. Raises InputError where its first axis may be either."""
    if given.ndim == 4 and len(given) > 1:
        if sequences not in (1, len(given)):
            fix = "give weights[None] for the layers of one text, weights[:, None] for several texts of one layer"
            raise InputError(f"the first axis of {tuple(given.shape)} may be texts or layers; {fix}")
        return given[None] if sequences == 1 else given[:, None]
    if not 2 <= given.ndim <= 5:
        raise InputError(f"the array is {tuple(given.shape)}; give {TAKES}")
    return given[(None,) * (5 - given.ndim)]


def _generated(layer: int, steps: Sequence[Any]) -> Pattern:
    """The square pattern of a text that was generated, from the weights of each step.

    The first step has the rows of the prompt, each other the row of one token (all rows, without a cache). A cache that
    forgets has the last keys alone, and a static one has columns of zeros behind them.
    """
    for step in steps:
        if not isinstance(step, Tensor) or step.ndim != 4:
            raise InputError(f"layer {layer} has a {type(step).__name__} among its steps; give {TAKES}")
    n, prompt = steps[0].shape[-2] + len(steps) - 1, steps[0].shape[-2]
    whole = steps[0].new_zeros(*steps[0].shape[:2], n, n)
    for i, step in enumerate(steps):
        end, rows = prompt + i, step[..., -1:, :] if i else step
        seen = rows[..., :end]
        whole[..., end - rows.shape[-2] : end, end - seen.shape[-1] : end] = seen
    return whole


def _checked(pattern: Any, layer: int) -> Pattern:
    pattern = torch.tensor(pattern) if isinstance(pattern, np.ndarray) and pattern.dtype.kind == "f" else pattern
    pattern = pattern[None] if isinstance(pattern, Tensor) and pattern.ndim == 3 else pattern  # of one sequence
    if not isinstance(pattern, Tensor) or pattern.ndim != 4 or not pattern.is_floating_point():
        got = tuple(pattern.shape) if isinstance(pattern, Tensor) else type(pattern).__name__
        raise InputError(f"layer {layer} is {got}; give {TAKES}")
    if pattern.shape[-1] != pattern.shape[-2]:
        raise InputError(
            f"layer {layer} has {pattern.shape[-2]} queries and {pattern.shape[-1]} columns; give one column for each "
            "query: the pass of whole sequences, without a cache, a slot's column, or keys that are left out or joined"
        )
    return pattern.detach().float().cpu()


def _of_tokens(pattern: Pattern, real: Bool[Tensor, "batch key"], layer: int) -> Pattern:
    """The weights of the queries that are tokens, 0 elsewhere. Raises InputError unless they are causal weights."""
    pattern = pattern.masked_fill(~real[:, None, :, None], 0)  # rows of padding may hold NaN
    if not pattern.isfinite().all():
        fault, fix = "numbers that are not finite", "give weights, not scores before the softmax, and mask padding"
    elif pattern.triu(1).any():
        fault = "weights at later keys"
        fix = "give causal attention" if _are_shares(pattern) else "give weights, not scores before the softmax"
    elif not pattern.any():
        fault, fix = "no weight above zero", "give the weights of a pass"
    else:
        return pattern
    raise InputError(f"layer {layer} holds {fault}; {fix}")


def _are_shares(pattern: Pattern) -> bool:
    """Tells if no weight is negative and no row exceeds one. If a row is less than one, a slot has the rest."""
    return bool(pattern.min() >= 0 and pattern.sum(-1).max() <= 1 + _TOLERANCE)


def _proxy(pattern: Pattern) -> Pattern:
    """`|w| / sum |w|`; a row without weights stays so."""
    size = pattern.abs()
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
