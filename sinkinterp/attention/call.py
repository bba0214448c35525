"""AttentionCall: what one attention operation consumes, in every architecture and every backend."""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import dense
from .kernels import SOFTMAX, Kernel
from .scoring import Scoring
from .set_pattern import SetPattern
from .shapes import Allowed, HeadOutput, KeyIndex, KeyMass, Keys, Pattern, Queries, Rows, SomeAllowed, SomePairs, Values
from .slots import Slot
from .streaming import KernelWeights
from .visibility import ALL


@dataclass(frozen=True, repr=False)
class AttentionCall:
    """Queries, keys and values after norms and rotation; keys are not repeated for grouped queries.

    layer: index among all blocks of the model.
    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    bias: added to the scaled scores (ALiBi, T5). softcap: scores become softcap * tanh(score / softcap).
    slot: a column left of the first key that belongs to no token.
    set_pattern: weights that an edit set, in place of those that the kernel computes; see `with_pattern`.

    Edits change a call by `dataclasses.replace`. Where the pattern was set, replacing anything that scores are made of
    raises InputError.
    """

    layer: int
    q: Queries
    k: Keys
    v: Values
    scale: float
    mask: Allowed | None = None
    bias: Float[Tensor, "#batch #head query key"] | None = None
    softcap: float | None = None
    slot: Slot = None
    kernel: Kernel = SOFTMAX
    set_pattern: SetPattern | None = None

    def __repr__(self) -> str:
        batch, n_heads, n_queries, d_head = self.q.shape
        heads = f"{n_heads} heads ({self.k.shape[1]} kv) of {d_head}"
        return f"<AttentionCall of layer {self.layer}: {batch} x {n_queries} queries, {self.k.shape[2]} keys, {heads}>"

    def __post_init__(self) -> None:
        if self.set_pattern is not None:
            self.set_pattern.check_replaces(self)

    def with_pattern(self, weights: Pattern | None, heads: Bool[Tensor, " head"] | None = None) -> "AttentionCall":
        """The call with these weights, dense, the slot's column first; with None, with those its kernel computes.

        heads: those whose weights differ from the call's; default all. Scores of the others can still be edited.
        Raises InputError where the shape of the weights is not that of the call's pattern.
        """
        if weights is None:
            return replace(self, set_pattern=None)
        if self.set_pattern is not None:
            heads = self.set_pattern.also(heads)
        return replace(self, set_pattern=SetPattern(self.layer, weights.float(), self.scoring, heads))

    @cached_property
    def scoring(self) -> Scoring:
        """What the weights are made of."""
        return Scoring(**{field.name: getattr(self, field.name) for field in fields(Scoring)})

    @cached_property
    def _weights(self) -> KernelWeights | SetPattern:
        return KernelWeights(self.scoring, self.v) if self.set_pattern is None else self.set_pattern

    @property
    def keys(self) -> KeyIndex:
        """Indices of all keys."""
        return torch.arange(self.k.shape[2], device=self.k.device)

    def scores(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Scores of a run of queries with the chosen keys (default all), masked pairs included; fp32."""
        return self.scoring.scores(keys, rows)

    def allowed(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomeAllowed:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        return self.scoring.visibility.allowed(keys, rows)

    def watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        return self.scoring.visibility.watchers(keys)

    def columns_seen(self) -> Int[Tensor, "#batch #head query"]:
        """How many columns each query can see, its slot included."""
        return self.scoring.visibility.n_visible + (self.slot is not None)

    def pattern(self) -> Pattern:
        """Dense attention weights, the slot's column first where there is a slot. For small T."""
        return self._weights.pattern()

    def mix(self, pattern: Pattern) -> HeadOutput:
        """Values averaged by a pattern, whose extra first column, if any, is the slot's."""
        return dense.mix(pattern, self.v, self.slot)

    def output(self) -> HeadOutput:
        """What the heads return, by a fused kernel where one computes the same thing."""
        z = self._weights.fused_output()
        return self.mix(self.pattern()) if z is None else z

    @property
    def is_fused(self) -> bool:
        """Whether `output` and `log_normaliser` come from one fused kernel."""
        return self._weights.is_fused

    @property
    def is_normalised(self) -> bool:
        """Whether rows of the pattern are non-negative and sum to one, slots counted."""
        return self._weights.is_normalised

    def proxy(self) -> "AttentionCall":
        """The call whose weights are |w| / sum |w|, slots counted."""
        if self.set_pattern is None:
            return replace(self, kernel=self.kernel.proxy)
        return self.with_pattern(self.set_pattern.shares())

    def log_normaliser(self) -> Rows:
        """log Z of every row: what divides its weights. For softmax, the log-sum-exp of its scores; fp32.

        Raises InputError where an edit set the pattern.
        """
        return self._weights.log_normaliser()

    def weights_at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """A run of queries' attention to the chosen keys (default all): part of the pattern, made without the rest."""
        return self._weights.at(keys, rows)

    def slot_weights(self) -> Rows | None:
        """Every query's attention to the slot; None without a slot."""
        return self._weights.of_slot()

    def column_mass(self, keys: KeyIndex | None = None) -> KeyMass:
        """Attention that each chosen key (default all) receives, summed over queries; no T x T map is made."""
        return self._weights.column_mass(self.keys if keys is None else keys)

    def slot_mass(self) -> Float[Tensor, "batch head"]:
        """Attention that the slot receives, summed over queries; 0 without a slot."""
        weights = self.slot_weights()
        return self.q.new_zeros(self.q.shape[:2]).float() if weights is None else weights.sum(2)
