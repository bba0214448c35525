"""Activation patching: what a site holds in one run is put into another, of other inputs or of another checkpoint.

site = ChangeResidual(layers=[3], positions=[0])
report = si.measure(twin, tokens, edits=[patch(site, sink_model, tokens)])
table = si.sweep(twin, tokens, patches(ChangeResidual(), sink_model, tokens), metric=si.measurement.sweep.importance)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..backends.subject import Subject
from ..interventions.change import Change
from ..interventions.edit import Edit
from ..interventions.operations import Add, Put, Zero
from ..interventions.selectors import OnHeads
from ..interventions.sites import ChangeOutputs, ChangeResidual, ChangeTokenEmbedding
from .batching import sequences_per_pass

Tokens = Int[Tensor, "sequence pos"]
Score = Callable[[Float[Tensor, "sequence pos vocab"], Tokens], Float[Tensor, " sequence"]]
Taken = dict[int, Tensor]  # by layer: `sequence pos d_model`, or `sequence head pos d_head`
Site = TypeVar("Site", bound=Change)


def taken(site: Change, subject: Subject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Taken:
    """What the layers of a site hold while `subject` reads `tokens`, all heads and positions of them.

    Raises InputError for embeddings, which are not read.
    """
    site.check(subject.shape, tokens.shape[1])
    parts = []
    for batch in tokens.split(sequences_per_pass(subject, tokens.shape[1])):
        parts.append(subject.run(batch, **site.reads("site"), edits=edits).answers["site"])
    return _by_layer(site, subject, torch.cat(parts))


def patch(site: Site, source: Subject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Site:
    """The site with what it held while `source` read `tokens`: an edit for runs on as many sequences, as long.

    Where shapes differ, between checkpoints or inputs, the edit raises InputError when it runs.
    """
    return replace(site, operation=Put(taken(site, source, tokens, edits)))


def patches(site: Site, source: Subject, tokens: Tokens, edits: Sequence[Edit] = ()) -> list[Site]:
    """One edit per layer and position of a site, and per head where it has heads, from a single run of `source`."""
    put = Put(taken(site, source, tokens, edits))
    positions = range(tokens.shape[1]) if site.positions is None else site.positions
    places: list[dict[str, Any]] = [{"layers": (layer,)} for layer in put.values]
    if isinstance(site, OnHeads):
        every = [(layer, head) for layer in put.values for head in range(source.shape.n_heads)]
        places = [{"layers": None, "heads": (one,)} for one in site.heads or every]
    return [replace(site, operation=put, positions=(p,), **place) for place in places for p in positions]


def mean_patch(site: Site, subject: Subject, tokens: Tokens, first: int = 1) -> Site:
    """The site with its mean over sequences, in buckets: each of the first `first` positions, and all others together.

    Set-mean of Sun et al. 2024 (arXiv:2402.17762), with the buckets of Owen et al. 2025 (arXiv:2503.22329).
    """

    def mean(x: Tensor) -> Tensor:
        whole = x.mean(0, keepdim=True)
        return torch.cat(
            (whole[..., :first, :], whole[..., first:, :].mean(-2, keepdim=True).expand_as(whole[..., first:, :])), -2
        )

    return replace(site, operation=Put({layer: mean(x) for layer, x in taken(site, subject, tokens).items()}))


def attribution(site: Change, subject: Subject, tokens: Tokens, source: Taken, score: Score) -> Taken:
    """To first order, how much each place's patch from `source` changes a score; by layer `sequence [head] pos`.

    One pass forward and one back for all places: gradient of the score times what a patch would add, summed over
    dimensions (Nanda 2023, attribution patching). `score(logits, tokens)` gives a number per sequence.
    """
    site.check(subject.shape, tokens.shape[1])
    parts: list[Taken] = []
    rows = torch.arange(len(tokens)).split(sequences_per_pass(subject, tokens.shape[1]))
    for some in rows:
        theirs = {layer: x[some].to(subject.device) for layer, x in source.items()}
        nothing = {layer: torch.zeros_like(x, requires_grad=True) for layer, x in theirs.items()}
        edits = [replace(site, operation=Add(nothing))]
        trace = subject.run(tokens[some], **site.reads("site"), edits=edits, gradients=True)
        own = _by_layer(site, subject, trace.answers["site"].detach())
        total = score(trace.logits, tokens[some].to(trace.logits.device)).sum()
        slopes = torch.autograd.grad(total, list(nothing.values()))
        parts.append(
            {layer: (s * (theirs[layer] - own[layer])).sum(-1) for layer, s in zip(nothing, slopes, strict=True)}
        )
    return {layer: torch.cat([part[layer] for part in parts]) for layer in source}


def swap_effective_position(subject: Subject, first: int, second: int, length: int) -> Edit:
    """Two tokens exchange their effective position embedding: p plus what the first feed-forward layer makes of it.

    Exchanged in the residual after block 0, as the GPT-2 circuit of arXiv:2604.14722 is tested.
    """
    return _exchange(subject, first, second, length, after=1)


def swap_raw_position(subject: Subject, first: int, second: int, length: int) -> Edit:
    """The control of `swap_effective_position`: in the same place, p alone is exchanged."""
    return _exchange(subject, first, second, length, after=0)


def _exchange(subject: Subject, first: int, second: int, length: int, after: int) -> Edit:
    """Positions of themselves, without tokens and without attention, as they are before block `after`."""
    tokens = torch.zeros(1, length, dtype=torch.long)
    alone = [ChangeTokenEmbedding(Zero()), ChangeOutputs(Zero(), layers=[0])]
    x = subject.run(tokens, residuals={"x": lambda x: x}, edits=alone).residuals["x"][:, after]
    added = torch.zeros_like(x)
    added[:, first] = x[:, second] - x[:, first]
    added[:, second] = -added[:, first]
    return ChangeResidual(Add({1: added}), layers=[1], positions=[first, second])


def _by_layer(site: Change, subject: Subject, whole: Tensor) -> Taken:
    layers = site.layers_of(subject.shape)
    return {layer: whole[:, i] for i, layer in enumerate(layers) if site.acts_in(layer)}
