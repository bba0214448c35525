"""Scalings: a factor for all scores of a query, which may depend on where it stands and on how many keys it sees."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..spec import Spec
from .shapes import Scores
from .visibility import QueryRun


@dataclass(frozen=True)
class Scaling(Spec):
    """Multiplies the scores of every query, a slot's included, before the similarity; an inverse temperature."""

    def __call__(self, scores: Scores, queries: QueryRun) -> Scores:
        """The scaled scores of a run of queries with any columns."""
        return scores * self.factor(queries)[..., None]

    def factor(self, queries: QueryRun) -> Float[Tensor, "#batch #head some_query"]:
        """The factor of each query."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Scores as they are."""

    def __call__(self, scores: Scores, queries: QueryRun) -> Scores:
        return scores


@dataclass(frozen=True)
class LogLength(Scaling):
    """s * log(n) for a query that sees n keys: with softmax, SSMax with a fixed s (Nakanishi 2025, arXiv:2501.19399).

    A query that sees one key or none has a factor of 0.
    """

    s: float = 1.0

    def factor(self, queries: QueryRun) -> Float[Tensor, "#batch #head some_query"]:
        return self.s * queries.n_visible.clamp(min=1).log()
