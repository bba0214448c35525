"""A pattern that an edit set: weights that are given, not computed."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import InputError
from .scoring import Scoring
from .shapes import HeadOutput, KeyIndex, KeyMass, Pattern, Rows, SomePairs
from .visibility import ALL


@dataclass(frozen=True, eq=False)
class SetPattern:
    """Dense weights of one layer, and the scoring whose weights they replace; the methods of `KernelWeights`.

    The slot's column comes first where there is a slot. heads: those whose weights differ from what their scores give;
    None for all. For small T. Raises InputError where the shape of the weights
    is not that of the pattern they replace.
    """

    layer: int
    weights: Pattern
    replaced: Scoring
    heads: Bool[Tensor, " head"] | None = None
    is_fused = False

    def __post_init__(self) -> None:
        columns = self.replaced.k.shape[2] + (self.replaced.slot is not None)
        shape = (*self.replaced.q.shape[:3], columns)
        if tuple(self.weights.shape) != shape:
            raise InputError(f"a pattern of layer {self.layer} has the shape {shape}; got {tuple(self.weights.shape)}")

    def check_replaces(self, call: Any) -> None:
        """Raises InputError where a call has other scores than those whose weights were replaced.

        An edit of the scores would otherwise be lost, since the weights no longer depend on them.
        """
        if any(getattr(call, field.name) is not getattr(self.replaced, field.name) for field in fields(Scoring)):
            raise self._lost()

    def check_computes(self, heads: Bool[Tensor, " head"]) -> None:
        """Raises InputError unless the weights of these heads are still those that their scores give."""
        if self.heads is None or (self.heads & heads).any():
            raise self._lost()

    def _lost(self) -> InputError:
        return InputError(
            f"the pattern of layer {self.layer} was set by an edit before, so its scores no longer matter; "
            "give edits of scores first, and one for all heads that it is to change"
        )

    def also(self, heads: Bool[Tensor, " head"] | None) -> Bool[Tensor, " head"] | None:
        """The heads whose weights were set, and these."""
        return None if heads is None or self.heads is None else self.heads | heads

    @cached_property
    def is_normalised(self) -> bool:
        """Whether rows are non-negative and sum to one up to 1e-5, slots counted."""
        totals = self.weights.sum(-1)
        return bool((self.weights >= 0).all() and ((totals - 1).abs() < 1e-5).all())

    def shares(self) -> Pattern:
        """|w| / sum |w| of every row; zeros where a row has no weight."""
        size = self.weights.abs()
        return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)

    def fused_output(self) -> HeadOutput | None:
        """None: no fused kernel takes weights."""
        return None

    def pattern(self) -> Pattern:
        """All weights; the slot's column comes first where there is a slot."""
        return self.weights

    def log_normaliser(self) -> Rows:
        """Raises InputError: weights that were set have no normaliser."""
        raise InputError(f"the pattern of layer {self.layer} was set by an edit, so its normaliser is not defined")

    def at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """The weights of a run of queries on the chosen keys (default all)."""
        tokens = self.weights[:, :, rows, -self.replaced.k.shape[2] :]
        return tokens if keys is None else tokens[..., keys]

    def of_slot(self) -> Rows | None:
        """Every query's weight on the slot; None without a slot."""
        return None if self.replaced.slot is None else self.weights[..., 0]

    def column_mass(self, keys: KeyIndex) -> KeyMass:
        """The weights on each chosen key, summed over queries."""
        return self.weights[..., -self.replaced.k.shape[2] :].sum(2)[..., keys]
