"""The metrics of a report: those that every report holds in fields of its own, and instruments, which one may add.

A new metric of a family needs no line here: it joins METRICS in its family's file. Any tuple of metrics is an
instrument, as in `si.measure(subject, tokens, instruments=[(Metric("first", RESIDUAL, first),)])`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..attention import CALL, RESIDUAL, AttentionCall, KeyIndex
from . import importance, metric, qk, residuals
from .residuals import vector_norms

Instrument = tuple[metric.AnyMetric, ...]
Instruments = Instrument | Sequence[Any]  # one, or several in a list
ReadOfPositions = Callable[[AttentionCall, KeyIndex, importance.Convention], Tensor]

GEOMETRY: Instrument = (*qk.METRICS, *residuals.RANKS)
MASSIVE: Instrument = residuals.METRICS
RESIDUALS: Instrument = (residuals.ALL_ENTRIES,)
"""Every residual entry, `sequence block channel pos`: for a few short sequences."""
MAPS: Instrument = (importance.PATTERNS, *qk.MAPS)
"""Every head's attention, scores, cosines and norm products, `sequence layer head query key`: for short sequences."""
SPECTRUM: Instrument = residuals.SPECTRA
"""Matrix entropy and anisotropy of the residuals, and their nulls."""
LOSS: Instrument = metric.METRICS
ALL = (GEOMETRY, MASSIVE, LOSS)
INSTRUMENTS = {"GEOMETRY": GEOMETRY, "MASSIVE": MASSIVE, "SPECTRUM": SPECTRUM, "LOSS": LOSS}
INSTRUMENTS |= {"RESIDUALS": RESIDUALS, "MAPS": MAPS}


# The metrics of every report

_IMPORTANCES, _NULLS = "importances", "nulls"
_OF_SLOTS = (
    metric.Metric("slot_importance", CALL, importance.slot_importance),
    metric.Metric("slot_null", CALL, importance.uniform_slot_importance),
)
_HIDDEN_QUERIES = metric.Metric("hidden_queries", CALL, importance.hidden_queries)
_AS_THEY_ARE = (
    metric.Metric("off_sequence", CALL, importance.off_sequence),
    metric.Metric("key_norms", CALL, lambda call: vector_norms(call.k)),
    metric.Metric("value_norms", CALL, lambda call: vector_norms(call.v)),
    metric.Metric("residual_norms", RESIDUAL, vector_norms),
)


def core_metrics(positions: KeyIndex, convention: importance.Convention) -> tuple[metric.Metric, ...]:
    """The metrics of every report, with importance at `positions`."""

    def at_positions(read: ReadOfPositions) -> Callable[[AttentionCall], Tensor]:
        def of_call(call: AttentionCall) -> Tensor:
            seen = call.visibility  # every layer may be on another device
            return read(call, seen.once(positions, lambda: positions.to(seen.device)), convention)

        return of_call

    return (
        metric.Metric(_IMPORTANCES, CALL, at_positions(importance.importance_and_raw)),
        metric.Metric(_NULLS, CALL, at_positions(importance.uniform_and_content_free)),
        *(*_OF_SLOTS, *_AS_THEY_ARE, _HIDDEN_QUERIES),
    )


def hides_first_key(answers: Mapping[str, Tensor]) -> bool:
    """Tells if a window hides the first key from some query, in the answers to `core_metrics`."""
    return bool(answers[_HIDDEN_QUERIES.name].any())


def core_fields(answers: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a report that the answers to `core_metrics` fill, by name.

    A model without a slot answers with zeros there: its report holds None.
    """
    fields: dict[str, Any] = {metric.name: answers[metric.name] for metric in _AS_THEY_ARE}
    for pair, names in ((_IMPORTANCES, ("importance", "raw_importance")), (_NULLS, ("null", "bias_null"))):
        fields |= {name: half.contiguous() for name, half in zip(names, answers[pair].unbind(2), strict=True)}
    has_slot = bool(answers["slot_null"].any())
    return fields | {metric.name: answers[metric.name] if has_slot else None for metric in _OF_SLOTS}
