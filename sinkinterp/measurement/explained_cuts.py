"""What cuts remove of the attention to the first token: of named parts, of random ones, and of a path."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..backends.huggingface import HuggingFaceSubject
from ..backends.neurons import neurons_of
from ..backends.subject import Subject
from ..data.progress import OnProgress
from ..data.tokens import TokenSet
from ..interventions.edit import Edit
from ..metrics.bootstrap import difference, estimate, estimate_cells, mean_cells
from ..metrics.instruments import LOSS
from ..metrics.loss import NEXT_TOKEN_LOSS
from ..report.columns import ALPHA_1
from ..report.explained import CUT, DIRECTLY, IN_STREAM, RANDOM, HeadScore, Path, cut_row
from ..report.report import Report
from ..table import Cell
from .massive_path import Write, as_long, path_edit, path_of, readers_of
from .measure import measure
from .score_parts import SLOT, Part

DRAWS = 2  # of random parts
WAYS = {IN_STREAM: False, DIRECTLY: True}  # of cutting parts
Rows = Sequence[dict[str, Cell]]
Head = tuple[int, int]  # layer and head, from 0


class Work:
    """The model, its inputs, and how many forward passes over all texts were made."""

    def __init__(
        self, subject: Subject, token_set: TokenSet, generator: torch.Generator, on_pass: OnProgress, expected: int = 0
    ) -> None:
        self.subject, self.token_set, self.generator = subject, token_set, generator
        self.on_pass, self.expected, self.passes = on_pass, expected, 0

    def report(self, *edits: Edit) -> Report:
        """What the model does under these edits."""
        self.count()
        return measure(self.subject, self.token_set, edits=edits, positions=(0,), instruments=LOSS, progress=False)

    def count(self) -> None:
        """One more pass."""
        self.passes += 1
        self.on_pass(min(self.passes, self.expected), self.expected)

    def drawn(self, choices: Sequence[Any], count: int) -> list[Any]:
        """So many of the choices, at random."""
        order = torch.randperm(len(choices), generator=self.generator)[:count]
        return [choices[i] for i in order.tolist()]


@dataclass(frozen=True)
class Decomposed:
    """What frozen runs gave, in chunks of sequences; by head, or by layer. Its dictionaries fill up."""

    parts: dict[int, list[Part]] = field(default_factory=dict)
    pairs: dict[Head, list[Tensor]] = field(default_factory=dict)
    scores: dict[Head, list[Tensor]] = field(default_factory=dict)
    made: dict[int, list[Tensor]] = field(default_factory=dict)
    whole: dict[int, list[Tensor]] = field(default_factory=dict)
    keys: dict[int, list[Tensor]] = field(default_factory=dict)
    first_keys: dict[int, list[Tensor]] = field(default_factory=dict)


def alpha_of(report: Report, on_slot: bool) -> tuple[Tensor, Tensor]:
    """Importance of what is explained, and its null; `sequence layer head`."""
    if on_slot and report.slot_importance is not None and report.slot_null is not None:
        return report.slot_importance, report.slot_null
    return report.alpha(), report.null_alpha()


def cut_rows(
    work: Work, head: HeadScore, found: Decomposed, before: Report, on_slot: bool
) -> Iterator[dict[str, Cell]]:
    """What the named parts remove of a head's attention when they are cut, and what as many random ones do."""
    i = before.attention_layers.index(head.layer)
    place, length = [(head.layer, head.head)], work.token_set.tokens.shape[1]
    in_stream = {j: head.cuts[name] for j, name in enumerate(head.parts) if name in head.cuts}
    named = [j for j in head.named() if j in in_stream]
    others = [j for j in in_stream if j not in head.named() and head.parts[j] != SLOT]
    first_keys = torch.cat(found.first_keys[head.layer])

    def row(cut: str, draws: Sequence[Sequence[int]], is_direct: bool) -> dict[str, Cell]:
        alphas = []
        for chosen in draws:
            edits = [in_stream[j] for j in chosen]
            if is_direct:
                edits = [path_edit({head.layer: first_keys[:, chosen].sum(1)}, place, length)]
            report = work.report(*edits)
            alphas.append(alpha_of(report, on_slot)[0][:, i, head.head])
        return cut_row(head, cut, torch.stack(alphas).mean(0))

    if named:
        name = " + ".join(head.parts[j] for j in named)
        drawn = [work.drawn(others, len(named)) for _ in range(DRAWS)] if len(others) >= len(named) else []
        for way, is_direct in WAYS.items() if not on_slot else [(IN_STREAM, False)]:
            yield row(f"{name}, {way}", [named], is_direct)
            if drawn:
                yield row(f"{RANDOM}, {way}", drawn, is_direct)


def path_and_cuts(
    work: Work, write: Write, found: Decomposed, before: Report
) -> tuple[Path, Sequence[dict[str, Cell]]]:
    """The path of the massive activation, and the rows of what cutting it does."""
    subject, tokens = work.subject, work.token_set.tokens
    made, whole, keys = ({n: torch.cat(x) for n, x in kept.items()} for kept in (found.made, found.whole, found.keys))
    readers = readers_of(made, whole)
    neurons = None
    if write.kind == "MLP" and isinstance(subject, HuggingFaceSubject):
        neurons = neurons_of(subject, tokens, write.at, write.dim)
        work.count()
    n_heads = len(made) * subject.shape.n_heads
    path = path_of(write, readers, n_heads, neurons)
    if not readers:
        return path, ()
    cuts: dict[str, tuple[Edit, ...]] = {
        "none": (),
        "path: the readers' first keys": (path_edit(keys, list(readers), tokens.shape[1]),),
        "whole write": (write.cut(),),
        "control: random vectors as long": (path_edit(as_long(keys, work.generator), list(readers), tokens.shape[1]),),
    }
    rows = [
        _path_row(name, work.report(*edits) if edits else before, before, list(readers)) for name, edits in cuts.items()
    ]
    return path, rows


def _path_row(cut: str, report: Report, before: Report, readers: Sequence[Head]) -> dict[str, Cell]:
    losses = [r.extra(NEXT_TOKEN_LOSS).nanmean(1) for r in (before, report)]
    layers = [report.attention_layers.index(layer) for layer, _ in readers]
    alpha = report.alpha()[:, layers, [head for _, head in readers]].mean(1)
    row: dict[str, Cell] = {CUT: cut, **estimate_cells(f"{ALPHA_1} of readers", estimate(alpha))}
    row |= estimate_cells(f"{ALPHA_1} of all heads", estimate(report.alpha().mean((1, 2))))
    row |= mean_cells("loss", losses[1])
    return row | estimate_cells("change of loss", difference(losses[0], losses[1], paired=True))
