"""Measures the sink and the loss under edits, and whether each edit did what its name says: a row per named edit.

The manipulation check of a row: the edited entries at each block behind the edit, the strongest alpha of any other
position, and the number of massive tokens. Rules name the check that they need, as `checked` of `rules` does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import InputError
from sinkinterp.data.progress import OnProgress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.estimates import mean_cells, rate_cells
from sinkinterp.metrics.importance import PerHead, sink_rate
from sinkinterp.metrics.instruments import LOSS
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, Metric, PerSequence
from sinkinterp.metrics.residuals import is_massive
from sinkinterp.report.report import Report
from sinkinterp.table import EDIT, REASON, Cell

Runs = Sequence[Sequence[Edit]]  # each list of edits is made in a run of its own; the mean over the runs counts
NONE, SLOT_RATE, LOSS_VALUE, LOSS_CHANGE = "none", "Sink_*", "loss", "loss change"
OTHER, OTHER_AT, OTHER_NULL, OTHER_RATE = "strongest other alpha", "its position", "its null", "its Sink"
OTHER_EXCESS = "strongest other alpha over its null"
MASSIVE_TOKENS, LEFT, ENTRIES = "massive tokens", "largest edited entry behind the edit", "edited entries by block"
CHECKS = (OTHER, OTHER_AT, OTHER_NULL, OTHER_RATE, OTHER_EXCESS, MASSIVE_TOKENS)
SEEN_BY = 4  # a quarter of the queries sees a position that may be the strongest other one
TOKENS_MASSIVE = Metric("massive_tokens", RESIDUAL, lambda x: is_massive(x).any(2).sum(1).float())
CHECK_NOTE = (
    "checks, mean over the same heads: strongest other alpha, of those positions that a quarter of the queries sees; "
    "massive tokens: with a massive entry, in the block that has most of them"
)


@dataclass(frozen=True)
class Entry:
    """An entry of the residual that edits change from a block on: its position and dimension, all from 0."""

    position: int
    dim: int
    block: int = 0


@dataclass(frozen=True)
class Effects:
    """The readings of every run: sinks of `positions` (from 0) over the heads of `layers` (default: all), and loss.

    The predictions that are made at `positions` do not count in the loss: an edit there changes them directly, and
    not by what others attend to. more: other quantities of every sequence, by name. entries: those that are edited.
    also: what reports measure besides.
    """

    positions: tuple[int, ...] = (0,)
    layers: tuple[int, ...] | None = None
    epsilon: float = 0.3
    more: Mapping[str, Callable[[Report], PerSequence]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    also: tuple[Metric, ...] = ()

    def rows(
        self,
        subject: Subject,
        token_set: TokenSet,
        edits: Mapping[str, Runs],
        on_run: OnProgress = lambda done, of: None,
        report: Report | None = None,
    ) -> list[dict[str, Cell]]:
        """A row per name after the untouched model's: sink rates, importance, slot, loss and its change in nats.

        Changes are by sequence. A row is empty, with the reason, where the model lacks what is edited. report: that of
        the untouched model, as `report` makes it, where it is known.
        """
        untouched = self._values(report or self.report(subject, token_set))
        rows = [self._row(NONE, untouched, untouched)]
        for name, runs in edits.items():
            on_run(len(rows), len(edits) + 1)
            try:
                rows.append(self._row(name, self._mean_values(subject, token_set, runs), untouched))
            except InputError as error:
                empty: dict[str, Cell] = dict.fromkeys(rows[0])
                rows.append(empty | {EDIT: name, REASON: str(error).partition(";")[0]})
        on_run(len(rows), len(rows))
        return rows

    def of_reports(self, reports: Mapping[str, Report]) -> list[dict[str, Cell]]:
        """The rows of edits whose reports were made before by `report`, the untouched model's first."""
        values = {name: self._values(report) for name, report in reports.items()}
        return [self._row(name, after, next(iter(values.values()))) for name, after in values.items()]

    def report(self, subject: Subject, token_set: TokenSet, edits: Sequence[Edit] = ()) -> Report:
        """The report of a run, with what rows and their checks need."""
        watched = [Metric("entries", RESIDUAL, self._watched)] if self.entries else []
        instruments = [LOSS, (TOKENS_MASSIVE, *watched, *self.also)]
        return measure(subject, token_set, edits=edits, instruments=instruments, progress=False)

    def _watched(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, entry.position, entry.dim].float() for entry in self.entries], 1)

    def _mean_values(self, subject: Subject, token_set: TokenSet, runs: Runs) -> dict[str, Tensor]:
        values = [self._values(self.report(subject, token_set, run)) for run in runs]
        return {name: torch.stack([of_run[name] for of_run in values]).mean(0) for name in values[0]}

    def _values(self, report: Report) -> dict[str, Tensor]:
        """Every quantity of each sequence; names of nulls begin with "null ", those of what checks read with "_"."""
        chosen = [i for i, layer in enumerate(report.attention_layers) if self.layers is None or layer in self.layers]

        def rate(alpha: PerHead) -> PerSequence:
            return sink_rate(alpha[:, chosen], self.epsilon)

        values: dict[str, Tensor] = {}
        for position in self.positions:
            alpha, null, raw = report.alpha(position), report.null_alpha(position), report.raw_alpha(position)
            values |= {
                f"Sink_{position + 1}": rate(alpha),
                f"null Sink_{position + 1}": rate(null),
                f"alpha_{position + 1}": alpha[:, chosen].mean((1, 2)),
                f"null alpha_{position + 1}": null[:, chosen].mean((1, 2)),
                f"raw alpha_{position + 1}": raw[:, chosen].mean((1, 2)),
            }
        slot = report.slot_importance
        values[SLOT_RATE] = torch.zeros(len(report.tokens)) if slot is None else rate(slot)
        values |= {name: quantity(report) for name, quantity in self.more.items()}
        every = report.importance[:, chosen]
        values |= {"_alpha": every.mean((1, 2)), "_null": report.null[:, chosen].mean((1, 2))}
        values |= {"_rate": (every > self.epsilon).float().mean((1, 2)), "_massive": report.extra(TOKENS_MASSIVE)}
        if self.entries:
            values["_entries"] = report.extras["entries"]
        return values | {LOSS_VALUE: self._loss(report)}

    def _loss(self, report: Report) -> PerSequence:
        losses = report.extra(NEXT_TOKEN_LOSS)
        predicting = [p for p in range(losses.shape[1]) if p not in self.positions]
        return losses[:, predicting].nanmean(1)

    def _row(self, name: str, after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Cell]:
        row: dict[str, Cell] = {EDIT: name}
        for quantity, values in after.items():
            cells = rate_cells if quantity.startswith("Sink_") else mean_cells
            if not quantity.startswith("_"):
                row |= {quantity: values.mean().item()} if quantity.startswith("null ") else cells(quantity, values)
        change = mean_cells(LOSS_CHANGE, after[LOSS_VALUE] - before[LOSS_VALUE])
        return row | change | self._checks(after) | {REASON: ""}

    def _checks(self, values: Mapping[str, Tensor]) -> dict[str, Cell]:
        """Says what became of what was edited, and whether another position took the sink over."""
        alpha, null, rate = (values[name].mean(0) for name in ("_alpha", "_null", "_rate"))
        others = alpha.clone()
        others[list(self.positions)] = -1
        at = int(others[: len(others) - len(others) // SEEN_BY + 1].argmax())
        found = (alpha[at].item(), at + 1, null[at].item(), rate[at].item(), (alpha[at] - null[at]).item())
        cells: dict[str, Cell] = dict(zip(CHECKS, (*found, values["_massive"].mean(0).max().item()), strict=True))
        if self.entries:
            entries = values["_entries"].mean(0)[:-1].T  # entry block, without the last output, which no layer reads
            behind = [of[entry.block :] for of, entry in zip(entries, self.entries, strict=True)]
            cells[LEFT] = max(of.abs().max().item() for of in behind)
            cells[ENTRIES] = "; ".join(
                f"token {entry.position + 1}, dimension {entry.dim}: {' '.join(f'{x:.3g}' for x in of.tolist())}"
                for entry, of in zip(self.entries, entries, strict=True)
            )
        return cells


def without(rows: Sequence[Mapping[str, Cell]], *beginnings: str) -> list[dict[str, Cell]]:
    """The rows without the columns whose names begin so."""
    return [{name: cell for name, cell in row.items() if not name.startswith(beginnings)} for row in rows]
