"""Patches as edits: what a site holds in one run is put into another, of other inputs or of another checkpoint.

site = ChangeResidual(layers=[3], positions=[0])
report = si.measure(twin, tokens, edits=[patch(site, sink_model, tokens)])
table = si.sweep(twin, tokens, patches(ChangeResidual(), sink_model, tokens), metric=importance)
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import per_sequence
from ..backends.subject import Subject
from ..checks import accepting, instance_of, whole_number
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import Change, Edits, Operation, Put, edits_of
from .measure import ModelLike, answers_of, equal_inputs_of, passes

Score = Callable[[Float[Tensor, "sequence pos vocab"], Tokens], Float[Tensor, " sequence"]]
Activations = dict[int, Tensor]  # by layer: `sequence pos d_model`, or `sequence head pos d_head`


def activations(site: Change, subject: ModelLike, tokens: TokensLike | Any, edits: Edits = ()) -> Activations:
    """Returns what the layers of a site hold while `subject` reads `tokens`, at all heads and positions.

    Raises InputError for embeddings, which are not read.
    """
    instance_of(site, Change, "site is a change of one site, such as ChangeResidual(layers=[3], positions=[0])")
    subject, tokens = equal_inputs_of(subject, tokens)
    site.check_site(subject.shape, tokens.shape[1])
    (stacked,) = answers_of(subject, tokens, {"site": site.read()}, edits_of(edits))
    return _by_layer(site, subject, stacked)


def patch(site: Change, source: ModelLike, tokens: TokensLike | Any, edits: Edits = ()) -> Change:
    """The edit that puts into a site its activation while `source` read `tokens`.

    It is for runs on as many sequences of the same length. If shapes differ, between checkpoints or inputs, it
    raises InputError when it runs.
    """
    return replace(site, operation=Put(activations(site, source, tokens, edits)))


def patches(site: Change, source: ModelLike, tokens: TokensLike | Any, edits: Edits = ()) -> list[Change]:
    """One edit per layer and position of a site, and per head where it has heads, from a single run of `source`."""
    source, tokens = equal_inputs_of(source, tokens)
    put = Put(activations(site, source, tokens, edits))
    positions = range(tokens.shape[1]) if site.positions is None else site.positions
    places: list[dict[str, Any]] = [{"layers": (layer,)} for layer in put.values]
    if site.selector:
        choices = site.choices(source.shape, tokens.shape[1])[site.selector]
        heads = [pair for pair in choices if pair[0] in put.values]
        places = [{"layers": None, site.selector: (pair,)} for pair in site.pairs or heads]
    return [replace(site, operation=put, positions=(p,), **place) for place in places for p in positions]


def mean_patch(site: Change, subject: ModelLike, tokens: TokensLike | Any, first: int = 1) -> Change:
    """The edit that puts into a site its mean over sequences.

    Each of the first `first` positions has its own mean; all others share one. Set-mean of Sun et al. 2024
    (arXiv:2402.17762), with the buckets of Owen et al. 2025 (arXiv:2503.22329).
    """

    first = whole_number(first, "first", 0)

    def mean(x: Tensor) -> Tensor:
        over_sequences = x.mean(0, keepdim=True)
        later = over_sequences[..., first:, :]
        shared = later.mean(-2, keepdim=True).expand_as(later)
        return torch.cat((over_sequences[..., :first, :], shared), -2)

    means = {layer: mean(x) for layer, x in activations(site, subject, tokens).items()}
    return replace(site, operation=Put(means))


def attribution(
    site: Change, subject: ModelLike, tokens: TokensLike | Any, source: Activations, score: Score
) -> Activations:
    """To first order, how much each place's patch from `source` changes a score; by layer `sequence [head] pos`.

    One pass forward and one back for all places: gradient of the score times what a patch would add, summed over
    dimensions (Nanda 2023, attribution patching). `score(logits, tokens)` gives a number per sequence. Layers of
    `source` that the site does not name are left out.
    """
    put, (present, gradient) = Put(source), _with_gradients(site, subject, tokens, score)
    return {n: (gradient[n] * (put(n, x) - x)).sum(-1) for n, x in present.items() if n in source}


def gradients(site: Change, subject: ModelLike, tokens: TokensLike | Any, score: Score) -> Activations:
    """The gradient of a score by what the layers of a site hold, `sequence [head] pos d`.

    `score(logits, tokens)` gives a number per sequence, and each sequence has the gradient of its own.
    """
    return _with_gradients(site, subject, tokens, score)[1]


@dataclass(frozen=True, eq=False)
class _AddZeros(Operation):
    """Adds zeros to the activations of each layer, and keeps them: their gradients are those of the activations."""

    zeros: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        self.zeros[layer] = torch.zeros_like(x, requires_grad=True)
        return x + self.zeros[layer]


def _with_gradients(
    site: Change, subject: ModelLike, tokens: TokensLike | Any, score: Score
) -> tuple[Activations, Activations]:
    """What a site holds, and the score's gradient there. One pass forward and one back."""
    accepting(score, "score, a function of logits and tokens,", None, None)
    subject, tokens = equal_inputs_of(subject, tokens)
    site.check_site(subject.shape, tokens.shape[1])
    held: list[Activations] = []
    found: list[Activations] = []
    for _, batch in passes(subject, tokens):
        add = _AddZeros()
        reads, edit = {"site": site.read()}, replace(site, operation=add)
        trace = subject.run(batch, reads=reads, edits=[edit], gradients=True)
        total = per_sequence(score(trace.logits, batch.to(trace.logits.device)), len(batch), "the score").sum()
        of_zeros = torch.autograd.grad(total, [*add.zeros.values()])
        held.append(_by_layer(site, subject, trace.answers["site"].detach()))
        found.append(dict(zip(add.zeros, of_zeros, strict=True)))
    present, gradient = ({n: torch.cat([part[n] for part in parts]) for n in parts[0]} for parts in (held, found))
    return present, gradient


def _by_layer(site: Change, subject: Subject, stacked: Tensor) -> Activations:
    layers = site.site.layers(subject.shape)
    return {layer: stacked[:, i] for i, layer in enumerate(layers) if site.acts_in(layer)}
