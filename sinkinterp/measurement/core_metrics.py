"""The metrics that every report holds in fields of its own, and their answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import KeyIndex
from ..metrics.importance import Convention, hidden_queries, importance_and_raw, off_sequence, slot_importance
from ..metrics.metric import CallMetric, Metric, ResidualMetric
from ..metrics.norms import vector_norms
from ..metrics.nulls import uniform_and_content_free, uniform_slot_importance
from ..metrics.shapes import Alpha, PerHead

_IMPORTANCES, _NULLS = "importances", "nulls"
_SLOT_IMPORTANCE = CallMetric("slot_importance", slot_importance)
_SLOT_NULL = CallMetric("slot_null", uniform_slot_importance)
_OFF_SEQUENCE = CallMetric("off_sequence", off_sequence)
_HIDDEN_QUERIES = CallMetric("hidden_queries", hidden_queries)
_KEY_NORMS = CallMetric("key_norms", lambda call: vector_norms(call.k))
_VALUE_NORMS = CallMetric("value_norms", lambda call: vector_norms(call.v))
_RESIDUAL_NORMS = ResidualMetric("residual_norms", vector_norms)


@dataclass(frozen=True)
class _AtPositions:
    """A read of some positions. It is a value and no closure, so that it can be pickled with its class."""

    read: Callable[[AttentionCall, KeyIndex, Convention], Tensor]
    positions: KeyIndex
    convention: Convention

    def __call__(self, call: AttentionCall) -> Tensor:
        positions = self.positions.to(call.k.device)  # every layer may be on another device
        return self.read(call, positions, self.convention)


def core_metrics(positions: KeyIndex, convention: Convention) -> tuple[Metric, ...]:
    """The metrics of every report, with importance at `positions`."""
    return (
        CallMetric(_IMPORTANCES, _AtPositions(importance_and_raw, positions, convention)),
        CallMetric(_NULLS, _AtPositions(uniform_and_content_free, positions, convention)),
        _SLOT_IMPORTANCE,
        _SLOT_NULL,
        _OFF_SEQUENCE,
        _HIDDEN_QUERIES,
        _KEY_NORMS,
        _VALUE_NORMS,
        _RESIDUAL_NORMS,
    )


def hides_first_key(answers: Mapping[str, Tensor]) -> bool:
    """Whether a window hides the first key from some query, in the answers to `core_metrics`."""
    return bool(answers[_HIDDEN_QUERIES.name].any())


@dataclass(frozen=True)
class Core:
    """The answers to `core_metrics`, of attention layers and query heads only; fields of every report.

    importance: alpha_k at the measured positions, of proxy scores where rows do not sum to one; 0..1.
    raw_importance: the same of the weights that multiply the values.
    null: importance under uniform attention over visible columns.
    bias_null: importance by position bias, mask and learned sink logits alone; `null` where there are none.
    slot_importance, slot_null: alpha_* and its null; None where no layer has a slot.
    off_sequence: 1 - row sum over tokens, mean over queries.
    residual_norms: inputs of all blocks, then the last block's output before the final norm.
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

    @staticmethod
    def of(answers: Mapping[str, Tensor]) -> "Core":
        """The core among the answers to many metrics, which come by name."""
        importance, raw_importance = answers[_IMPORTANCES].unbind(2)
        null, bias_null = answers[_NULLS].unbind(2)
        has_slot = bool(answers[_SLOT_NULL.name].any())
        return Core(
            importance=importance.contiguous(),
            raw_importance=raw_importance.contiguous(),
            null=null.contiguous(),
            bias_null=bias_null.contiguous(),
            slot_importance=answers[_SLOT_IMPORTANCE.name] if has_slot else None,
            slot_null=answers[_SLOT_NULL.name] if has_slot else None,
            off_sequence=answers[_OFF_SEQUENCE.name],
            residual_norms=answers[_RESIDUAL_NORMS.name],
            key_norms=answers[_KEY_NORMS.name],
            value_norms=answers[_VALUE_NORMS.name],
        )
