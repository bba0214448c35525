"""Readings: everything that was read of one model on some tokens, as a frozen value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from jaxtyping import Int
from torch import Tensor

from ..checks import nearest, whole_number
from ..errors import InputError
from ..metrics.metric import Metric
from ..metrics.shapes import PerHead
from .core_metrics import Core
from .provenance import Protocol

EXTRA = "extra."  # before the names of instruments' answers, among all tensors


@dataclass(frozen=True)
class Readings(Core):
    """What one model's attention calls and residuals were on some tokens, and how they were measured.

    tokens: what the model read; -1 past the end of a sequence shorter than the longest, where numbers are NaN.
    positions: those that importance and nulls were measured at, their last axis.
    attention_layers: the layers' indices among all blocks.
    extras: answers of the instruments, by the names of their metrics; `extra` reads them.
    """

    tokens: Int[Tensor, "batch pos_all"]
    positions: tuple[int, ...]
    attention_layers: tuple[int, ...]
    protocol: Protocol
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def extra(self, metric: Metric) -> Tensor:
        """The answer to an instrument's metric. Raises InputError where it was not measured."""
        if not isinstance(metric, Metric):
            fix = "give the metric itself, such as sinkinterp.metrics.loss.NEXT_TOKEN_LOSS, or read report.extras"
            raise InputError(f"{metric!r:.40} is no metric{nearest(metric, self.extras)}; {fix}")
        if not self.has(metric):
            raise InputError(
                f"{metric.name} was not measured; measure with instruments=sinkinterp.measurement.instruments.ALL"
            )
        return self.extras[metric.name]

    def has(self, metric: Metric) -> bool:
        """Whether a metric of an instrument was measured."""
        return metric.name in self.extras

    def column_of(self, position: int) -> int:
        """Where a position stands among those that were measured. Raises InputError where it was not."""
        if whole_number(position, "a position") not in self.positions:
            raise InputError(
                f"position {position} was not measured; positions count from 0 and here are "
                f"{_listed(self.positions)} of a sequence of {self.protocol.length}"
            )
        return self.positions.index(position)

    def alpha(self, position: int = 0) -> PerHead:
        """Importance of one position. Raises InputError where it was not measured."""
        return self.importance[..., self.column_of(position)]

    def raw_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, of the weights that multiply the values."""
        return self.raw_importance[..., self.column_of(position)]

    def null_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, under uniform attention over visible columns."""
        return self.null[..., self.column_of(position)]

    def bias_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, by position bias, mask and learned sink logits alone."""
        return self.bias_null[..., self.column_of(position)]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was read, by field; instruments' answers as "extra.NAME"."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return own | {EXTRA + name: value for name, value in self.extras.items()}


def _listed(positions: Sequence[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 3 else ", ".join(map(str, positions))
