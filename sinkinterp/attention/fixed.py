"""An attention call whose pattern is given rather than computed: what an edit of the pattern leaves behind."""

from dataclasses import dataclass, fields
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .call import ALL, AttentionCall

Pattern = Float[Tensor, "batch head query column"]
Index = Int[Tensor, " some_key"]


_SCORED = ("q", "k", "scale", "mask", "bias", "softcap", "slot", "kernel")  # what a pattern is made of


@dataclass(frozen=True)
class FixedPattern(AttentionCall):
    """A call with the weights `weights`, dense, the slot's column first where there is a slot. For small T."""

    weights: Tensor | None = None
    made_of: AttentionCall | None = None

    def __post_init__(self) -> None:
        if any(getattr(self, name) is not getattr(self.made_of, name) for name in _SCORED):
            raise InputError(
                f"the pattern of layer {self.layer} was set by an edit before, so its scores no longer matter; "
                "give edits of scores first, and one for all heads that it is to change"
            )

    @staticmethod
    def of(call: AttentionCall, weights: Pattern) -> "FixedPattern":
        """`call` with other weights. Raises InputError where their shape is not that of its pattern."""
        columns = call.k.shape[2] + (call.slot is not None)
        shape = (*call.q.shape[:3], columns)
        if tuple(weights.shape) != shape:
            raise InputError(f"a pattern of layer {call.layer} has the shape {shape}; got {tuple(weights.shape)}")
        return FixedPattern(**_fields(call), weights=weights.float(), made_of=call)

    @property
    def computed(self) -> AttentionCall:
        """The call whose weights are computed again."""
        return AttentionCall(**_fields(self))

    def pattern(self) -> Pattern:
        return self._weights_given

    def output(self) -> Float[Tensor, "batch head query d_value"]:
        return self.mix(self._weights_given)

    @property
    def is_fused(self) -> bool:
        return False

    def log_normaliser(self) -> Float[Tensor, "batch head query"]:
        """Raises InputError: weights that were set have no normaliser."""
        raise InputError(f"the pattern of layer {self.layer} was set by an edit, so it has no normaliser")

    def weights_at(
        self, keys: Index | None = None, rows: slice = ALL
    ) -> Float[Tensor, "batch head some_query some_key"]:
        tokens = self._weights_given[:, :, rows, -self.k.shape[2] :]
        return tokens if keys is None else tokens[..., keys]

    def slot_weights(self) -> Float[Tensor, "batch head query"] | None:
        return None if self.slot is None else self._weights_given[..., 0]

    def column_mass(self, keys: Index | None = None) -> Float[Tensor, "batch head some_key"]:
        mass = self._weights_given[..., -self.k.shape[2] :].sum(2)
        return mass if keys is None else mass[..., keys]

    @property
    def _weights_given(self) -> Tensor:
        assert self.weights is not None
        return self.weights


def _fields(call: AttentionCall) -> dict[str, Any]:
    return {field.name: getattr(call, field.name) for field in fields(AttentionCall)}
