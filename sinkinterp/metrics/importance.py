"""Importance and sink rates (Gu et al. 2025, section 3.2).

Importance is how much attention a key receives, by one of three conventions. Its nulls are what a position has by mask
and bias alone. A sink rate is the share of heads that give a position, or a token, more than epsilon.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import CALL, AttentionCall, KeyIndex, Pattern, SinkLogit, key_blocks
from ..checks import check_count, finite_number
from ..data.tokens import Tokens
from .metric import Metric, PerSequence

Importance = Float[Tensor, "batch head pos"]  # of one attention layer
QueryCounts = Int[Tensor, "#batch #head pos"]
Alpha = Float[Tensor, "batch layer head pos"]  # importance in all attention layers
PerHead = Float[Tensor, "batch layer head"]


def queries_that_see(call: AttentionCall, positions: KeyIndex) -> QueryCounts:
    """How many queries can see each position; 1 where none can, so that its importance is 0."""
    seen = call.visibility
    return seen.once(("watchers or 1", positions), lambda: seen.watchers(positions).clamp(min=1))


def queries_from(call: AttentionCall, positions: KeyIndex) -> QueryCounts:
    """T - k + 1 for position k, counted from 1: how many queries are at the position or after it."""
    return call.visibility.causal.watchers(positions)


def hidden_queries(call: AttentionCall) -> Int[Tensor, " batch"]:
    """How many queries cannot see the first key, at most over heads: above 0 behind a window narrower than T."""
    seen, first = call.visibility, call.keys[:1]
    n_hidden = seen.once("hidden queries", lambda: (queries_from(call, first) - call.watchers(first)).amax((1, 2)))
    return n_hidden.expand(len(call.q))


@dataclass(frozen=True, repr=False)
class Convention:
    """How a column of the pattern becomes an importance. Three conventions are in use; their numbers differ.

    description: for protocols. divisor: what the column's sum is divided by. past_only: whether queries
    before the key are left out where a prefix mask lets them see it. dtype: that of weights, quotients and sums.
    """

    description: str
    divisor: Callable[[AttentionCall, KeyIndex], QueryCounts]
    past_only: bool = False
    dtype: torch.dtype = torch.float32

    def __repr__(self) -> str:
        return f"<Convention: {self.description}>"

    def importance(self, call: AttentionCall, positions: KeyIndex) -> Importance:
        """alpha_k of the weights that `call` computes. In half precision, or under a prefix mask, for small T."""
        looks_ahead = self.past_only and call.mask is not None and call.visibility.looks_ahead
        if self.dtype is torch.float32 and not looks_ahead:
            return call.column_mass(positions) / self.divisor(call, positions)
        weights = call.pattern()[..., -call.k.shape[2] :]
        weights = (weights * self._causal(call) if self.past_only else weights)[..., positions].to(self.dtype)
        return (weights / self.divisor(call, positions)[:, :, None].to(self.dtype)).sum(2).float()

    def uniform(self, call: AttentionCall, positions: KeyIndex) -> Importance:
        """The null: alpha_k if every query attended equally to all columns that it can see; H_T / T for key 0."""
        what = (self, "uniform", positions, call.slot is None)
        alpha = call.visibility.once(what, lambda: self._uniform(call, positions))
        return alpha.expand(*call.q.shape[:2], -1)

    def _uniform(self, call: AttentionCall, positions: KeyIndex) -> Float[Tensor, "#batch #head pos"]:
        share = 1 / call.columns_seen().clamp(min=1).double()
        if call.mask is None:
            first = (positions + call.q.shape[2] - call.k.shape[2]).clamp(min=0)
            mass = share.flip(-1).cumsum(-1).flip(-1)[..., first]
        else:
            seen = call.mask & self._causal(call) if self.past_only else call.mask
            mass = torch.cat([(seen[..., keys] * share[..., None]).sum(2) for keys in key_blocks(positions)], -1)
        return (mass / self.divisor(call, positions)).float()

    def _causal(self, call: AttentionCall) -> Bool[Tensor, "1 1 query key"]:
        return call.visibility.causal.allowed()


VISIBLE = Convention("queries that can see the key", queries_that_see)
PAPER = Convention("T - k + 1, queries from the key on", queries_from, past_only=True)
RELEASED = Convention("T - k + 1, in bfloat16", queries_from, dtype=torch.bfloat16)  # the release's own models


def importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """alpha_k: the mean attention, or proxy score, that each position receives from the queries that can see it."""
    return convention.importance(call.proxy(), positions)


def raw_importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """As `importance`, of the weights that really multiply the values."""
    return convention.importance(call, positions)


def importance_and_raw(
    call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE
) -> Float[Tensor, "batch 2 head pos"]:
    """`importance` beside `raw_importance`, computed once where they are the same."""
    alpha = importance(call, positions, convention)
    if call.is_normalised:
        return alpha[:, None].expand(-1, 2, -1, -1)
    return torch.stack((alpha, raw_importance(call, positions, convention)), 1)


def first_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """Mean attention weight on the first token, over the queries that can see it."""
    return importance(call, call.keys[:1])[..., 0]


def slot_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """alpha_*: the mean attention that the slot receives from all queries; 0 without a slot."""
    return call.zeros() if call.slot is None else call.proxy().slot_mass() / call.q.shape[2]


def off_sequence(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """1 - row sum over tokens, mean over queries: what a slot takes, or no column gets; below 0 if rows exceed 1."""
    if call.is_normalised:
        return call.zeros() if call.slot is None else call.slot_mass() / call.q.shape[2]
    return 1 - call.column_mass().sum(-1) / call.q.shape[2]


def uniform_importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """Importance if every query attended equally to all columns that it can see; H_T / T for causal key 0."""
    return convention.uniform(call, positions)


def content_free_importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """Importance if position bias, mask and learned sink logits alone made every score.

    The uniform null where there is neither bias nor logit. The release's bucket-index positions give alpha_1 = 0.334
    at T = 64 this way, with nothing learned.
    """
    if not is_biased(call):
        return convention.uniform(call, positions)
    shared = all(part is None or len(part) == 1 for part in (call.bias, call.mask))
    sequences = slice(1 if shared else None)
    q, k, v = call.q[sequences], call.k[sequences], call.v[sequences]
    empty = replace(call.with_pattern(None), q=torch.zeros_like(q), k=torch.zeros_like(k), v=v)
    return importance(empty, positions, convention).expand(*call.q.shape[:2], -1)


def uniform_and_content_free(
    call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE
) -> Float[Tensor, "batch 2 head pos"]:
    """`uniform_importance` beside `content_free_importance`."""
    uniform = uniform_importance(call, positions, convention)
    if not is_biased(call):
        return uniform[:, None].expand(-1, 2, -1, -1)
    return torch.stack((uniform, content_free_importance(call, positions, convention)), 1)


def is_biased(call: AttentionCall) -> bool:
    """Tells if anything but content and mask moves attention: a position bias, or a learned sink logit."""
    return call.bias is not None or isinstance(call.slot, SinkLogit)


def uniform_slot_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The null of `slot_importance`; 0 without a slot."""
    if call.slot is None:
        return call.zeros()
    share = call.visibility.once("slot null", lambda: (1 / call.columns_seen().clamp(min=1)).mean(-1))
    return share.expand(*call.q.shape[:2])


def sink_logits(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The learned sink logit of every head; NaN in a layer without them."""
    if isinstance(call.slot, SinkLogit):
        return call.slot.logit.detach().float().expand(len(call.q), -1)
    return call.q.new_full(call.q.shape[:2], torch.nan).float()


def pattern(call: AttentionCall) -> Pattern:
    """Every head's pattern, proxy scores where rows do not sum to one; the slot's column first."""
    return call.proxy().pattern()


PATTERNS = Metric("patterns", CALL, pattern)


@dataclass(frozen=True)
class TokenSink:
    """How often a token id occurs, and the share of its (occurrence, layer, head) whose importance exceeds epsilon."""

    token: int
    occurrences: int
    share: float


def check_epsilon(epsilon: float) -> float:
    """Epsilon. Raises InputError unless it is a share of attention strictly between 0 and 1."""
    return finite_number(epsilon, "epsilon, a share of attention between 0 and 1,", above=0, below=1)


def epsilons_of(given: Any) -> list[float]:
    """The epsilons as Python's floats; a single one stands for itself. Raises InputError for none, and as above."""
    try:
        epsilons = [*given]
    except TypeError:
        epsilons = [given]
    check_count(epsilons, "epsilons, as in (0.3,)")
    return [check_epsilon(epsilon) for epsilon in epsilons]


def sink_rate(alpha: PerHead, epsilon: float) -> PerSequence:
    """Sink^epsilon of each sequence: the share of its heads whose importance exceeds epsilon, strictly; 0..1.

    NaN for a sequence that is too short to have the position.
    """
    check_epsilon(epsilon)
    return (alpha > epsilon).float().masked_fill(alpha.isnan(), torch.nan).mean((1, 2))


def sink_grid(alpha: Alpha, epsilons: Any) -> Float[Tensor, "epsilon pos"]:
    """Sink_k^epsilon of every position for every epsilon, in one pass over alpha; 0..1. Source: Gu et al. 2025, 3.2.

    `epsilons`: a number, or several in a list, a numpy array or a tensor, each between 0 and 1. Sequences that are
    too short for a position, NaN in alpha, do not count there. Raises InputError for an empty list, and for an epsilon
    that is not a share of attention.
    """
    edges, order = torch.tensor(epsilons_of(epsilons), dtype=alpha.dtype, device=alpha.device).sort()
    n, n_pos = len(edges) + 1, alpha.shape[-1]
    exceeded = torch.bucketize(alpha.nan_to_num(0), edges)  # how many epsilons lie strictly below
    bins = exceeded + n * torch.arange(n_pos, device=alpha.device)
    counts = torch.bincount(bins.flatten(), minlength=n * n_pos).reshape(n_pos, n)
    above = counts.flip(-1).cumsum(-1).flip(-1)[:, 1:].T
    return above[order.argsort()] / (~alpha.isnan()).sum((0, 1, 2))


def control_positions(length: int) -> tuple[int, ...]:
    """The first position and eight controls behind it, in the first half, where many queries see them."""
    return (0, *range(1, max(length // 2, 2), max(1, length // 16)))


def above_controls(excess: Alpha) -> PerSequence:
    """The share of each sequence's heads whose importance of the first position no chance explains; 0..1.

    excess: importance over its uniform null, of the first position and of controls behind it. Chance is the 99th
    percentile of the controls, over heads and sequences, so it gives .01. Source: arXiv 2606.02378.
    """
    first, controls = excess[..., 0], excess[..., 1:]
    known = controls[~controls.isnan()]
    bound = known.kthvalue(max(1, round(0.99 * len(known)))).values
    return (first > bound).float().masked_fill(first.isnan(), torch.nan).mean((1, 2))


def sink_positions(alpha: Alpha, null: Alpha, epsilon: float, share: float) -> Int[Tensor, " some_pos"]:
    """Positions (from 0) whose sink rate exceeds that of uniform attention, `null`, by more than `share`.

    Raises InputError unless 0 <= share < 1 and epsilon is a share of attention.
    """
    finite_number(share, "share, a part of the heads,", least=0, below=1)
    (rate,), (null_rate,) = (sink_grid(values, (epsilon,)) for values in (alpha, null))
    return (rate - null_rate > share).nonzero()[:, 0]


def sink_tokens(alpha: Alpha, tokens: Tokens, epsilon: float) -> list[TokenSink]:
    """Every token id that occurs, the largest share first, then the most frequent. Ids below 0 are padding.

    Raises InputError unless epsilon is a share of attention.
    """
    check_epsilon(epsilon)
    heads = (alpha > epsilon).sum((1, 2)).flatten()
    ids, id_of_place, occurrences = tokens.to(alpha.device).unique(return_inverse=True, return_counts=True)
    hits = torch.zeros_like(occurrences).index_add(0, id_of_place.flatten(), heads)
    shares = hits / (occurrences * alpha.shape[1] * alpha.shape[2])
    sinks = map(TokenSink, ids.tolist(), occurrences.tolist(), shares.tolist())
    return sorted((sink for sink in sinks if sink.token >= 0), key=lambda s: (-s.share, -s.occurrences, s.token))
