"""Statistics of what was read: sink rates, norm ratios, and steps of the residual's norm."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..checks import finite_number
from ..metrics import sink
from ..metrics.bootstrap import Estimate, estimate
from ..metrics.norms import Steps, norm_ratio, steps
from .readings import Readings


@dataclass(frozen=True)
class Statistics(Readings):
    """Readings with the numbers that are computed from them."""

    def sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) above epsilon, strictly; 0..1."""
        return self.sink(position, epsilon).mean

    def sink(self, position: int = 0, epsilon: float = 0.3) -> Estimate:
        """`sink_rate` with its 95% bootstrap interval over sequences."""
        return estimate(sink.sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate under uniform attention."""
        return sink.sink_rate(self.null_alpha(position), epsilon).nanmean().item()

    def bias_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate by position bias, mask and learned sink logits alone."""
        return sink.sink_rate(self.bias_alpha(position), epsilon).nanmean().item()

    def slot_rate(self, epsilon: float = 0.3) -> Estimate | None:
        """Sink_*^epsilon, the slot's sink rate; None where no layer has a slot."""
        return None if self.slot_importance is None else estimate(sink.sink_rate(self.slot_importance, epsilon))

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
        """The blocks between which the first token's residual stands out, by its ratio's mean over sequences."""
        return steps(self.residual_ratio().mean(0), finite_number(least, "the least ratio of a step"))
