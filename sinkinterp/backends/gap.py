"""How far numbers are from those that they should be, beside the size of these: tolerances are shares of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of logits; else 0.1


def tolerance_of(dtype: torch.dtype) -> float:
    """Which share of the largest logit the others may be off, in a model of this dtype."""
    return TOLERANCE.get(dtype, 0.1)


@dataclass(frozen=True)
class Gap:
    """The largest difference between two tensors, and the largest entry of the one that is right."""

    difference: float
    size: float

    @staticmethod
    def of(given: Tensor, right: Tensor) -> "Gap":
        """The gap between what is given and what is right; infinite where the shapes differ, or NaNs are at odds."""
        if given.shape != right.shape or not given.isnan().equal(right.isnan()):
            return Gap(torch.inf, 0.0)
        if not right.numel():
            return Gap(0.0, 0.0)
        difference = torch.where(given == right, 0, (given - right).abs()).nan_to_num(0, torch.inf)
        return Gap(difference.max().item(), right.abs().nan_to_num(0).max().item())

    def is_within(self, tolerance: float) -> bool:
        """Whether the difference is at most this share of the size."""
        return self.difference <= tolerance * self.size

    def __str__(self) -> str:
        return f"off by {self.difference:.3g} where the largest is {self.size:.3g}"
