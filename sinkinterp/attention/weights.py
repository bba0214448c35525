"""The attention weights of a call: those that its kernel computes from scores, or those that an edit set.

`KernelWeights` gives any part of the pattern without the rest of the T x T map. `SetPattern` holds a dense pattern.
Both have the same methods.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import InputError
from . import columns, paths
from .kernels import SignedLog
from .masks import ALL, BLOCK, key_blocks
from .scoring import Scoring
from .shapes import HeadOutput, KeyIndex, KeyMass, Pattern, PerQuery, SomePairs, Values


@dataclass(frozen=True, eq=False)
class KernelWeights:
    """The weights that a kernel computes from scores."""

    scoring: Scoring
    v: Values

    @property
    def is_normalised(self) -> bool:
        """Whether rows are non-negative and sum to one, slots counted."""
        return self.scoring.kernel.is_normalised

    @property
    def is_fused(self) -> bool:
        """Whether `fused_output` and `log_normaliser` come from one fused kernel."""
        return self._fused is not None

    def fused_output(self) -> HeadOutput | None:
        """What the heads return; None where no fused kernel computes it."""
        return paths.output_alone(self.scoring, self.v) if self._fused is None else self._fused[0]

    @cached_property
    def _fused(self) -> tuple[HeadOutput, PerQuery] | None:
        return paths.attended(self.scoring, self.v)

    def pattern(self) -> Pattern:
        """All weights; the slot's column comes first where there is a slot."""
        return self.scoring.pattern()

    def pattern_without(self, columns: Bool[Tensor, " column"]) -> Pattern:
        """All weights where the scores of some columns are left out."""
        return self.scoring.pattern(columns)

    def log_normaliser(self) -> PerQuery:
        """log Z of every row."""
        return self._log_normaliser

    @cached_property
    def _log_normaliser(self) -> PerQuery:
        if self._fused is not None:
            return self._fused[1]
        return self.scoring.kernel.log_normaliser(self._signed_logs(), self.scoring.queries())

    def _signed_logs(self) -> Iterator[SignedLog]:
        scoring, queries = self.scoring, self.scoring.queries()
        slot = scoring.slot_scores()
        if slot is not None:
            yield scoring.kernel.signed_log(slot, queries)
        for keys in key_blocks(torch.arange(scoring.k.shape[2], device=scoring.k.device)):
            log_sim, sign = scoring.kernel.signed_log(scoring.scores(keys), queries)
            yield log_sim.masked_fill(~scoring.visibility.allowed(keys), -torch.inf), sign

    def at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """The weights of a run of queries on the chosen keys (default all)."""
        return self.scoring.kernel.alpha * self._allowed_weights(keys, rows)

    def of_slot(self) -> PerQuery | None:
        """Every query's weight on the slot; None without a slot."""
        scores = self.scoring.slot_scores()
        if scores is None:
            return None
        kernel = self.scoring.kernel
        return kernel.alpha * kernel.weights_over_alpha(scores, self.log_normaliser(), self.scoring.queries())[..., 0]

    def column_mass(self, keys: KeyIndex) -> KeyMass:
        """The weights on each chosen key, summed over queries."""
        scoring = self.scoring
        if len(keys) > BLOCK and columns.takes(scoring):
            masses = columns.masses(scoring.q, scoring.k, self.log_normaliser(), scoring.scale)
            if masses is not None:
                return masses.index_select(-1, keys)
        return torch.cat([self._block_mass(block) for block in key_blocks(keys)], -1)

    def _block_mass(self, keys: KeyIndex) -> KeyMass:
        sees_some, sees_all = self.scoring.visibility.regions(keys)  # drawn at `Visibility.regions`
        triangle = self._allowed_weights(keys, sees_some)
        rectangle = self._weights(keys, sees_all)
        return self.scoring.kernel.alpha * (triangle.sum(2) + rectangle.sum(2))

    def _allowed_weights(self, keys: KeyIndex | None, rows: slice) -> SomePairs:
        return self._weights(keys, rows).masked_fill_(~self.scoring.visibility.allowed(keys, rows), 0)

    def _weights(self, keys: KeyIndex | None, rows: slice) -> SomePairs:
        """Weights over alpha of every pair, masked or not."""
        scores, log_z = self.scoring.scores(keys, rows), self.log_normaliser()[..., rows]
        return self.scoring.kernel.weights_over_alpha(scores, log_z, self.scoring.queries(rows))


@dataclass(frozen=True, eq=False)
class SetPattern:
    """Dense weights of one layer that an edit set, and the scoring whose weights they replace. For small T.

    weights: the slot's column comes first where there is a slot. heads: those whose weights differ from what their
    scores give; None for all. Raises InputError where the shape of the weights is not that of the pattern they replace.
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

    def pattern_without(self, columns: Bool[Tensor, " column"]) -> Pattern:
        """All weights but those of some columns; of heads whose weights were set, those columns become 0."""
        kept = self.weights * ~columns
        if self.heads is None:
            return kept
        return torch.where(self.heads.to(kept.device)[:, None, None], kept, self.replaced.pattern(columns))

    def log_normaliser(self) -> PerQuery:
        """Raises InputError: weights that were set have no normaliser."""
        raise InputError(f"the pattern of layer {self.layer} was set by an edit, so its normaliser is not defined")

    def at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """The weights of a run of queries on the chosen keys (default all)."""
        tokens = self.weights[:, :, rows, -self.replaced.k.shape[2] :]
        return tokens if keys is None else tokens[..., keys]

    def of_slot(self) -> PerQuery | None:
        """Every query's weight on the slot; None without a slot."""
        return None if self.replaced.slot is None else self.weights[..., 0]

    def column_mass(self, keys: KeyIndex) -> KeyMass:
        """The weights on each chosen key, summed over queries."""
        return self.weights[..., -self.replaced.k.shape[2] :].sum(2)[..., keys]
