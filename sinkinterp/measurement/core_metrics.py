"""The metrics that every report holds in fields of its own, and their answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import KeyIndex
from ..attention.sites import CALL, RESIDUAL
from ..metrics.importance import (
    Convention,
    hidden_queries,
    importance_and_raw,
    off_sequence,
    slot_importance,
    uniform_and_content_free,
    uniform_slot_importance,
)
from ..metrics.metric import Metric
from ..metrics.residuals import vector_norms

_IMPORTANCES, _NULLS = "importances", "nulls"
_SLOT_IMPORTANCE = Metric("slot_importance", CALL, slot_importance)
_SLOT_NULL = Metric("slot_null", CALL, uniform_slot_importance)
_OFF_SEQUENCE = Metric("off_sequence", CALL, off_sequence)
_HIDDEN_QUERIES = Metric("hidden_queries", CALL, hidden_queries)
_KEY_NORMS = Metric("key_norms", CALL, lambda call: vector_norms(call.k))
_VALUE_NORMS = Metric("value_norms", CALL, lambda call: vector_norms(call.v))
_RESIDUAL_NORMS = Metric("residual_norms", RESIDUAL, vector_norms)


@dataclass(frozen=True)
class _AtPositions:
    """A read of some positions, on whichever device its layer is."""

    read: Callable[[AttentionCall, KeyIndex, Convention], Tensor]
    positions: KeyIndex
    convention: Convention

    def __call__(self, call: AttentionCall) -> Tensor:
        positions = self.positions.to(call.k.device)  # every layer may be on another device
        return self.read(call, positions, self.convention)


def core_metrics(positions: KeyIndex, convention: Convention) -> tuple[Metric, ...]:
    """The metrics of every report, with importance at `positions`."""
    return (
        Metric(_IMPORTANCES, CALL, _AtPositions(importance_and_raw, positions, convention)),
        Metric(_NULLS, CALL, _AtPositions(uniform_and_content_free, positions, convention)),
        _SLOT_IMPORTANCE,
        _SLOT_NULL,
        _OFF_SEQUENCE,
        _HIDDEN_QUERIES,
        _KEY_NORMS,
        _VALUE_NORMS,
        _RESIDUAL_NORMS,
    )


def hides_first_key(answers: Mapping[str, Tensor]) -> bool:
    """Tells if a window hides the first key from some query, in the answers to `core_metrics`."""
    return bool(answers[_HIDDEN_QUERIES.name].any())


def core_fields(answers: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a report that the answers to `core_metrics` fill, by name.

    A model without a slot answers with zeros there: its report holds None.
    """
    importance, raw_importance = answers[_IMPORTANCES].unbind(2)
    null, bias_null = answers[_NULLS].unbind(2)
    has_slot = bool(answers[_SLOT_NULL.name].any())
    return {
        "importance": importance.contiguous(),
        "raw_importance": raw_importance.contiguous(),
        "null": null.contiguous(),
        "bias_null": bias_null.contiguous(),
        **{name: answers[name] if has_slot else None for name in (_SLOT_IMPORTANCE.name, _SLOT_NULL.name)},
        **{metric.name: answers[metric.name] for metric in (_OFF_SEQUENCE, _RESIDUAL_NORMS, _KEY_NORMS, _VALUE_NORMS)},
    }
