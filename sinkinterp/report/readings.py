"""Readings: everything that was read of one model on some tokens, as a frozen value, with its statistics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from ..checks import finite_number, whole_number
from ..errors import InputError
from ..guesses import Told, keywords, nearest
from ..metrics import sink
from ..metrics.bootstrap import Estimate, intervals, rate
from ..metrics.metric import Alpha, AnyMetric, PerHead
from ..metrics.residuals import Steps, norm_ratio, steps
from .protocol import Protocol, public_name

P, T = ParamSpec("P"), TypeVar("T")
EXTRA = "extra."  # before the names of instruments' answers, among all tensors
TokenText = Callable[[int], str]  # from a token id to its text


@dataclass(frozen=True, repr=False, eq=False)
class Readings(metaclass=Told):
    """The measurements of one model's attention calls and residuals on some tokens, and their protocol.

    Numbers are those of attention layers and query heads only.

    importance: alpha_k at the measured positions, of proxy scores where rows do not sum to one; 0..1.
    raw_importance: the same of the weights that multiply the values.
    null: importance under uniform attention over visible columns.
    bias_null: importance by position bias, mask and learned sink logits alone; `null` without them.
    slot_importance, slot_null: alpha_* and its null; None where no layer has a slot.
    off_sequence: 1 - row sum over tokens, mean over queries.
    residual_norms: inputs of all blocks, then the last block's output before the final norm.
    tokens: what the model read; -1 past the end of a sequence shorter than the longest, where numbers are NaN.
    positions: those that importance and nulls were measured at, their last axis.
    attention_layers: the layers' indices among all blocks.
    extras: answers of the instruments, by the names of their metrics; `extra` reads them.
    """

    importance: Alpha
    raw_importance: Alpha
    null: Alpha
    bias_null: Alpha
    slot_importance: PerHead | None
    slot_null: PerHead | None
    off_sequence: PerHead
    residual_norms: Float[Tensor, "batch block pos_all"]
    key_norms: Float[Tensor, "batch layer kv_head key"]
    value_norms: Float[Tensor, "batch layer kv_head key"]
    tokens: Int[Tensor, "batch pos_all"]
    positions: tuple[int, ...]
    attention_layers: tuple[int, ...]
    protocol: Protocol
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def extra(self, metric: AnyMetric | str) -> Tensor:
        """The answer to an instrument's metric, or to that of a name. Raises InputError where it was not measured."""
        if isinstance(metric, str) and metric in self.extras:
            return self.extras[metric]
        if not isinstance(metric, AnyMetric):
            fix = "give the metric itself, such as sinkinterp.metrics.loss.NEXT_TOKEN_LOSS, or read report.extras"
            raise InputError(f"{metric!r:.40} is not a metric{nearest(metric, self.extras)}; {fix}")
        if not self.has(metric):
            raise InputError(f"{metric.name} was not measured; measure with instruments=si.measurement.instruments.ALL")
        return self.extras[metric.name]

    def has(self, metric: AnyMetric) -> bool:
        """Whether a metric of an instrument was measured."""
        return metric.name in self.extras

    def column_of(self, position: int) -> int:
        """The index of a position among the measured ones. Raises InputError where it was not."""
        if whole_number(position, "a position") not in self.positions:
            raise InputError(
                f"position {position} was not measured; positions count from 0 and here are "
                f"{_listed(self.positions)} of a sequence of {self.protocol.length}"
            )
        return self.positions.index(position)

    @keywords
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

    def __len__(self) -> int:
        """How many sequences were measured."""
        return len(self.tokens)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its name among `tensors` or `extras`. Raises InputError for another name."""
        known = {**self.tensors(), **self.extras}
        if not isinstance(name, str) or name not in known:
            names = ", ".join([*self.tensors(), *self.extras])
            raise InputError(f"nothing that was read is named {name!r:.40}{nearest(name, known)}; there are {names}")
        return known[name]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was read, by field; instruments' answers as "extra.NAME"."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return own | {EXTRA + name: value for name, value in self.extras.items()}

    @keywords
    def sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) above epsilon, strictly; 0..1."""
        return self.sink(position, epsilon).mean

    @keywords
    def sink(self, position: int = 0, epsilon: float = 0.3) -> Estimate:
        """`sink_rate` with its 95% interval over sequences."""
        return rate(sink.sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate under uniform attention."""
        return sink.sink_rate(self.null_alpha(position), epsilon).nanmean().item()

    def bias_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate by position bias, mask and learned sink logits alone."""
        return sink.sink_rate(self.bias_alpha(position), epsilon).nanmean().item()

    def slot_rate(self, epsilon: float = 0.3) -> Estimate | None:
        """Sink_*^epsilon, the slot's sink rate; None where no layer has a slot."""
        return None if self.slot_importance is None else rate(sink.sink_rate(self.slot_importance, epsilon))

    def residual_ratio(self) -> Float[Tensor, "batch block"]:
        """||h_1|| over the mean norm of the other tokens, per block."""
        return norm_ratio(self.residual_norms)

    def key_ratio(self) -> Float[Tensor, "batch layer kv_head"]:
        """||k_1|| over the mean of the others."""
        return norm_ratio(self.key_norms)

    def value_ratio(self) -> Float[Tensor, "batch layer kv_head"]:
        """||v_1|| over the mean of the others."""
        return norm_ratio(self.value_norms)

    def steps(self, least: float = 2.0) -> Steps | None:
        """The blocks between which the first token's residual is long, by its ratio's mean over sequences."""
        return steps(self.residual_ratio().mean(0), finite_number(least, "the least ratio of a step"))


def of_report(function: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The function of a report, which then raises InputError where its first argument is anything else."""

    @wraps(function)
    def checked(report: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        check_report(report, function.__name__)
        return function(report, *args, **kwargs)

    return checked


def check_report(report: Any, what: str) -> None:
    """Raises InputError, which says that `what` takes a report, for anything else."""
    if not isinstance(report, Readings):
        raise InputError(f"{what} takes a report, which si.measure returns; got a {type(report).__name__}")


def check_reports(reports: Any, what: str) -> None:
    """Raises InputError, which says that `what` takes reports by name, for anything else."""
    if not isinstance(reports, Mapping) or not reports:
        raise InputError(f"{what} takes a dictionary of reports by name; got {reports!r:.40}")
    for report in reports.values():
        check_report(report, what)


@of_report
def protocol_note(report: Readings, epsilon: float) -> str:
    """The protocol in a line: model, n, T, BOS, dtype, source, edits, epsilon; the divisor where windows matter."""
    divisor = f"; {report.protocol.divisor_note}" if report.protocol.divisor_note else ""
    name = public_name(report.protocol.model)
    return f"{name}: {report.protocol.line()}, epsilon={epsilon}; {intervals_note(report)}{divisor}"


@of_report
def intervals_note(report: Readings) -> str:
    """Says what the intervals of a report are. A report of one sequence has none."""
    return intervals(report.protocol.sequences)


def _listed(positions: Sequence[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 3 else ", ".join(map(str, positions))
