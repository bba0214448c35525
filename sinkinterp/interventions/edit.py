"""The base of every intervention."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall

PositionIds = Int[Tensor, " pos"]
Residual = Float[Tensor, "sequence pos d_model"]
Output = Float[Tensor, "sequence head pos d_value"]


@dataclass(frozen=True)
class Edit:
    """What changes while a model runs. Override the method of the site that changes; the others pass through.

    Edits are applied in the order they are given in, and reads see what they leave. A method returns what it was given,
    the very same object, where nothing changes.
    """

    def position_ids(self, ids: PositionIds) -> PositionIds:
        """Rows of the position table that the tokens are given, by position in the sequence."""
        return ids

    def residual(self, block: int, x: Residual) -> Residual:
        """The input of a block: block 0 reads token embedding plus position, block `n_layers` is the last output."""
        return x

    def call(self, call: AttentionCall) -> AttentionCall:
        """What an attention layer consumes; `FixedPattern.of` sets the pattern itself."""
        return call

    def output(self, call: AttentionCall, z: Output) -> Output:
        """What an attention layer's heads return, before they are mixed."""
        return z
