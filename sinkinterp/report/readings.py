"""Readings: everything that was read of one model on some tokens, as a frozen value, and the protocol of it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError, finite_number, instance_of, whole_number
from ..guesses import Told, fix_of, keywords, nearest
from ..metrics.bootstrap import Estimate, intervals, rate
from ..metrics.importance import VISIBLE, sink_rate
from ..metrics.metric import Alpha, AnyMetric, PerHead
from ..metrics.residuals import Steps, norm_ratio, steps


@dataclass(frozen=True)
class Protocol:
    """How a report's numbers were made."""

    model: str
    sequences: int
    length: int
    dtype: str
    bos: str
    source: str
    source_sha256: str
    texts_too_short: int
    edits: tuple[str, ...]
    divisor: str
    revision: str
    versions: Mapping[str, str]
    shortest: int | None = None  # where sequences differ in length; `length` is then the longest
    encoder: str = ""  # what the encoder of an encoder-decoder model was given
    hides_first_key: bool = False  # whether a window hides the first key from some query
    attention: str = ""  # the implementation that the model ran: sdpa or eager; empty in reports of before
    attention_note: str = ""  # what to know about it
    ended: str = ""  # why fewer sequences were measured than there are; empty where all were

    @property
    def divisor_note(self) -> str:
        """What to know about the divisor of importance; empty where all conventions divide alike."""
        if not self.hides_first_key:
            return ""
        is_default = self.divisor == VISIBLE.description
        other = "the paper divides by T - k + 1" if is_default else f"the default is {VISIBLE.description}"
        return f"a window hides keys from later queries: importance is divided by {self.divisor}; {other}"

    @property
    def lengths(self) -> str:
        """T, or the shortest and the longest where sequences differ."""
        return str(self.length) if self.shortest is None else f"{self.shortest} to {self.length}"

    def line(self, *varying: str) -> str:
        """The part of the protocol that belongs beside every number, without the fields that vary from row to row."""
        parts = {
            "sequences": f"n={self.sequences}" + (f" ({self.ended})" if self.ended else ""),
            "length": f"T={self.lengths}",
            "bos": f"BOS {self.bos}",
            "encoder": self.encoder and f"encoder {self.encoder}",
            "dtype": self.dtype,
            "attention": self.attention_note,
            "source": self.source,
            "texts_too_short": self._skipped(),
            "revision": self.revision and f"weights: {self.revision}",
            "edits": self.edits and f"edits {'; '.join(self.edits)}",
        }
        return ", ".join(str(part) for name, part in parts.items() if part and name not in varying)

    def _skipped(self) -> str:
        count = self.texts_too_short
        return f"{count} {'text' if count == 1 else 'texts'} too short" if count else ""

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Protocol":
        """The inverse of `dataclasses.asdict`, through JSON or not."""
        return Protocol(**{**plain, "edits": tuple(plain["edits"])})


def public_name(model: str) -> str:
    """The name of a model as pages show it: of a folder on this machine, the last part of its path."""
    is_path = model.startswith(("/", "./", "../", "~")) or "\\" in model or model.count("/") > 1
    return short_name(model) if is_path else model


def short_name(model: str) -> str:
    """The last part of a model's name, for titles."""
    return next((part for part in reversed(re.split(r"[/\\]", model)) if part), model)


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
            fix = "give the metric itself, such as sinkinterp.metrics.metric.NEXT_TOKEN_LOSS, or read report.extras"
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
            fix = fix_of(name[0] if isinstance(name, tuple) and name else name, "report", known)
            raise InputError(f"nothing that was read is named {name!r:.40}{fix}; there are {names}")
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
        return rate(sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate under uniform attention."""
        return sink_rate(self.null_alpha(position), epsilon).nanmean().item()

    def bias_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate by position bias, mask and learned sink logits alone."""
        return sink_rate(self.bias_alpha(position), epsilon).nanmean().item()

    def slot_rate(self, epsilon: float = 0.3) -> Estimate | None:
        """Sink_*^epsilon, the slot's sink rate; None where no layer has a slot."""
        return None if self.slot_importance is None else rate(sink_rate(self.slot_importance, epsilon))

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
    instance_of(report, Readings, f"{what} takes a report, which si.measure returns")


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
