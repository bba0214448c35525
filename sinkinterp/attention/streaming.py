"""The weights that a kernel makes of scores: any part of the pattern, without the rest of the T x T map."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from . import dense, flash, fused
from .scoring import Scoring
from .shapes import HeadOutput, KeyIndex, KeyMass, Pattern, Rows, SomePairs, Values
from .similarities import SignedLog
from .visibility import ALL


@dataclass(frozen=True, eq=False)
class KernelWeights:
    """The attention weights of a call that its kernel computes. `SetPattern` has the same methods."""

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
        return fused.off_cpu(self.scoring, self.v) if self._fused is None else self._fused[0]

    @cached_property
    def _fused(self) -> tuple[HeadOutput, Rows] | None:
        return fused.with_log_sum(self.scoring, self.v)

    def pattern(self) -> Pattern:
        """All weights; the slot's column comes first where there is a slot."""
        return dense.pattern(self.scoring)

    def log_normaliser(self) -> Rows:
        """log Z of every row."""
        return self._log_normaliser

    @cached_property
    def _log_normaliser(self) -> Rows:
        if self._fused is not None:
            return self._fused[1]
        return self.scoring.kernel.log_normaliser(self._signed_logs(), self.scoring.queries())

    def _signed_logs(self) -> Iterator[SignedLog]:
        scoring, queries = self.scoring, self.scoring.queries()
        slot = scoring.slot_scores()
        if slot is not None:
            yield scoring.kernel.signed_log(slot, queries)
        for keys in flash.key_blocks(torch.arange(scoring.k.shape[2], device=scoring.k.device)):
            log_sim, sign = scoring.kernel.signed_log(scoring.scores(keys), queries)
            yield log_sim.masked_fill(~scoring.visibility.allowed(keys), -torch.inf), sign

    def at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """The weights of a run of queries on the chosen keys (default all)."""
        return self.scoring.kernel.alpha * self._allowed_weights(keys, rows)

    def of_slot(self) -> Rows | None:
        """Every query's weight on the slot; None without a slot."""
        scores = self.scoring.slot_scores()
        if scores is None:
            return None
        kernel = self.scoring.kernel
        return kernel.alpha * kernel.weights_over_alpha(scores, self.log_normaliser(), self.scoring.queries())[..., 0]

    def column_mass(self, keys: KeyIndex) -> KeyMass:
        """The weights on each chosen key, summed over queries."""
        return torch.cat([self._block_mass(block) for block in flash.key_blocks(keys)], -1)

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
