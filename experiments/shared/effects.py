"""Measures the sink and the loss under edits: a row per named edit, for experiments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from sinkinterp.attention.sites import Edit
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import InputError
from sinkinterp.data.progress import OnProgress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.estimates import mean_cells, rate_cells
from sinkinterp.metrics.instruments import LOSS
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, PerSequence
from sinkinterp.metrics.sinks import PerHead, sink_rate
from sinkinterp.report.report import Report
from sinkinterp.table import EDIT, Cell

Runs = Sequence[Sequence[Edit]]  # each list of edits is made in a run of its own; the mean over the runs counts
NONE, SLOT_RATE, LOSS_VALUE, LOSS_CHANGE, REASON = "none", "Sink_*", "loss", "loss change", "empty because"


@dataclass(frozen=True)
class Effects:
    """The readings of every run: sinks of `positions` (from 0) over the heads of `layers` (default: all), and loss.

    The predictions that are made at `positions` do not count in the loss: an edit there changes them directly, and
    not by what others attend to. more: other quantities of every sequence, by name.
    """

    positions: tuple[int, ...] = (0,)
    layers: tuple[int, ...] | None = None
    epsilon: float = 0.3
    more: Mapping[str, Callable[[Report], PerSequence]] = field(default_factory=dict)

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
        the untouched model, with its loss, where it is known.
        """
        untouched = self._values(report or self._report(subject, token_set, []))
        rows = [_row(NONE, untouched, untouched)]
        for name, runs in edits.items():
            on_run(len(rows), len(edits) + 1)
            try:
                rows.append(_row(name, self._mean_values(subject, token_set, runs), untouched))
            except InputError as error:
                empty: dict[str, Cell] = dict.fromkeys(rows[0])
                rows.append(empty | {EDIT: name, REASON: str(error).partition(";")[0]})
        on_run(len(rows), len(rows))
        return rows

    def _mean_values(self, subject: Subject, token_set: TokenSet, runs: Runs) -> dict[str, PerSequence]:
        values = [self._values(self._report(subject, token_set, run)) for run in runs]
        return {name: torch.stack([of_run[name] for of_run in values]).mean(0) for name in values[0]}

    def _report(self, subject: Subject, token_set: TokenSet, edits: Sequence[Edit]) -> Report:
        return measure(subject, token_set, edits=edits, positions=self.positions, instruments=[LOSS])

    def _values(self, report: Report) -> dict[str, PerSequence]:
        """Every quantity of each sequence; the names of nulls begin with "null "."""
        chosen = [i for i, layer in enumerate(report.attention_layers) if self.layers is None or layer in self.layers]

        def rate(alpha: PerHead) -> PerSequence:
            return sink_rate(alpha[:, chosen], self.epsilon)

        values: dict[str, PerSequence] = {}
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
        return values | {LOSS_VALUE: self._loss(report)}

    def _loss(self, report: Report) -> PerSequence:
        losses = report.extra(NEXT_TOKEN_LOSS)
        predicting = [p for p in range(losses.shape[1]) if p not in self.positions]
        return losses[:, predicting].nanmean(1)


def _row(name: str, after: Mapping[str, PerSequence], before: Mapping[str, PerSequence]) -> dict[str, Cell]:
    row: dict[str, Cell] = {EDIT: name}
    for quantity, values in after.items():
        cells = rate_cells if quantity.startswith("Sink_") else mean_cells
        row |= {quantity: values.mean().item()} if quantity.startswith("null ") else cells(quantity, values)
    return row | mean_cells(LOSS_CHANGE, after[LOSS_VALUE] - before[LOSS_VALUE]) | {REASON: ""}


def without(rows: Sequence[Mapping[str, Cell]], *beginnings: str) -> list[dict[str, Cell]]:
    """The rows without the columns whose names begin so."""
    return [{name: cell for name, cell in row.items() if not name.startswith(beginnings)} for row in rows]
