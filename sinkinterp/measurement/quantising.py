"""What quantisation loses with outliers and without, and without as many random tokens or dimensions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from ..attention.shapes import Residual
from ..backends.exclusive import exclusive
from ..backends.huggingface import HuggingFaceSubject
from ..data.progress import Progress, silent
from ..data.tokens import Tokens
from ..interventions.changes import ChangeResidual
from ..interventions.edit import Edit
from ..metrics.bootstrap import BY_SEQUENCE, estimate, estimate_cells
from ..metrics.outliers import fake_quantised
from ..report.leaving_out import ADDED, ERROR, LEFT_OUT, WHAT, quantisation_figure
from ..table import Cell, Table
from .eviction import loss_of
from .leaving_out import Mask
from .patching import activations

BITS = (8, 4)
GRAINS = {"tensor": (-2, -1), "token": (-1,), "channel": (-2,)}  # of activations `pos d_model`, each text by itself
NOTHING, TOKENS, DIMS, BOTH = "nothing", "outlier tokens", "outlier dimensions", "both"
RANDOM_TOKENS, RANDOM_DIMS = "random tokens", "random dimensions"
Left = Callable[[int, Residual], Bool[Tensor, "#batch #pos #d_model"]]  # what stays as it is, by block


def left_out(mask: Mask) -> dict[str, Left]:
    """What is left out of a quantisation, by its name; each kind of outlier beside as many at random."""

    def tokens(block: int, x: Residual) -> Tensor:
        return ~mask.keep(block)(x)[..., None]

    def dims(block: int, x: Residual) -> Tensor:
        return _chosen(mask.dims[block], x)[None, None]

    def random_dims(block: int, x: Residual) -> Tensor:
        return others(_chosen(mask.dims[block], x)[None], block)[None]

    return {
        NOTHING: lambda block, x: torch.zeros(1, 1, 1, dtype=torch.bool, device=x.device),
        TOKENS: tokens,
        RANDOM_TOKENS: lambda block, x: others(tokens(block, x)[..., 0], block)[..., None],
        DIMS: dims,
        RANDOM_DIMS: random_dims,
        BOTH: lambda block, x: tokens(block, x) | dims(block, x),
    }


def worth_trying(mask: Mask, block: int | None = None) -> list[str]:
    """The names of what can be left out: without outliers in any block, or in `block`, there is nothing."""
    blocks = range(len(mask.dims)) if block is None else (block,)
    names = [NOTHING]
    names += [TOKENS, RANDOM_TOKENS] if mask.tokens[:, list(blocks)].any() else []
    names += [DIMS, RANDOM_DIMS] if any(mask.dims[i] for i in blocks) else []
    return [*names, BOTH] if len(names) == 5 else names


def others(chosen: Bool[Tensor, "row place"], seed: int = 0) -> Bool[Tensor, "row place"]:
    """As many random places of every row that are not chosen, or all others where there are not so many."""
    draws = torch.rand(chosen.shape, generator=torch.Generator().manual_seed(seed)).to(chosen.device)
    order = draws.masked_fill(chosen, 2).argsort(-1).argsort(-1)
    return (order < chosen.sum(-1, keepdim=True)) & ~chosen


@dataclass(frozen=True)
class Quantise(Edit):
    """Rounds the input of every block to `bits` bits, but for what `left` says; one scale for the axes `over`."""

    bits: int
    over: tuple[int, ...]
    left: Left

    @override
    def residual(self, block: int, x: Residual) -> Residual:
        kept = self.left(block, x)
        return torch.where(kept, x, fake_quantised(x.masked_fill(kept, 0), self.bits, self.over))


def activations_table(subject: HuggingFaceSubject, tokens: Tokens, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where every block's input is quantised, by bits, grain and what is left out.

    The error is relative, squared, of tokens and dimensions that are not outliers, mean over blocks; of activations
    that are not quantised before.
    """
    full, show = loss_of(subject, tokens), progress("quantising activations")
    rows: list[dict[str, Cell]] = []
    x = {block: here.cpu().float() for block, here in activations(ChangeResidual(), subject, tokens).items()}
    ordinary, names = left_out(mask)[BOTH], worth_trying(mask)
    for bits in BITS:
        for grain, over in GRAINS.items():
            for name in names:
                show(len(rows), len(BITS) * len(GRAINS) * len(names))
                edit = Quantise(bits, over, left_out(mask)[name])
                added = (loss_of(subject, tokens, [edit]) - full).mean(1)
                error = _error(x, edit, ordinary)
                rows.append(_row(f"int{bits} per {grain}", name, error, added))
    return _table("What does quantising activations lose?", mask, rows, "inputs of all blocks, scales of each text")


def weights_table(subject: HuggingFaceSubject, tokens: Tokens, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where the linear maps of all blocks are quantised; columns of dimensions are left out."""
    full, show = loss_of(subject, tokens), progress("quantising weights")
    rows: list[dict[str, Cell]] = []
    sides = {"tensor": (-2, -1), "channel": (-1,)}
    names = [name for name in worth_trying(mask) if name in (NOTHING, DIMS, RANDOM_DIMS)]
    for bits in BITS:
        for grain, over in sides.items():
            for name in names:
                show(len(rows), len(BITS) * len(sides) * len(names))
                with quantised_weights(subject, bits, over, left_out(mask)[name]) as error:
                    added = (loss_of(subject, tokens) - full).mean(1)
                rows.append(_row(f"int{bits} per {grain}", name, torch.tensor([error]), added))
    return _table("What does quantising weights lose?", mask, rows, "linear maps of all blocks; channel: a row")


@contextmanager
def quantised_weights(subject: HuggingFaceSubject, bits: int, over: tuple[int, ...], left: Left) -> Iterator[float]:
    """Inside, the linear maps of all blocks are quantised. Yields the relative squared error, mean over maps."""
    with exclusive(subject.model), torch.no_grad():
        blocks = enumerate(subject.modules.blocks)
        saved = [(layer, i, layer.weight.clone()) for i, block in blocks for layer in _linear(block)]
        errors = []
        try:
            for layer, block, weight in saved:
                kept = left(block, weight[None])[0] if weight.shape[1] == subject.shape.d_model else torch.tensor(False)
                kept = kept.to(weight.device).expand(weight.shape)
                layer.weight.copy_(torch.where(kept, weight, fake_quantised(weight.masked_fill(kept, 0), bits, over)))
                errors.append(((layer.weight - weight).square().sum() / weight.square().sum()).item())
            yield sum(errors) / max(1, len(errors))
        finally:
            for layer, _, weight in saved:
                layer.weight.copy_(weight)


def _linear(block: torch.nn.Module) -> list[torch.nn.Linear]:
    return [layer for layer in block.modules() if isinstance(layer, torch.nn.Linear)]


def _error(x: Mapping[int, Residual], edit: Quantise, outlier: Left) -> Float[Tensor, " sequence"]:
    """The relative squared error of each text, mean over blocks."""
    found = []
    for block, here in x.items():
        ordinary = ~outlier(block, here)
        change = (edit.residual(block, here) - here) * ordinary
        found.append(change.square().sum((1, 2)) / (here * ordinary).square().sum((1, 2)))
    return torch.stack(found).mean(0)


def _chosen(dims: Sequence[int], x: Residual) -> Bool[Tensor, " d_model"]:
    chosen = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    chosen[list(dims)] = True
    return chosen


def _row(what: str, name: str, error: Tensor, added: Tensor) -> dict[str, Cell]:
    return {
        WHAT: what,
        LEFT_OUT: name,
        **estimate_cells(ERROR, estimate(error)),
        **estimate_cells(ADDED, estimate(added)),
    }


def _table(title: str, mask: Mask, rows: list[dict[str, Cell]], what: str) -> Table:
    note = (
        f"{mask.note}; {what}; symmetric, scale from the largest magnitude; added loss in nats a token; "
        f"control: as many random ones left out; null: 0, nothing quantised; {BY_SEQUENCE}"
    )
    return Table(title, note, tuple(rows), quantisation_figure)
