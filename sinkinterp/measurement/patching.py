"""The parts of patching: the activations of one run as an edit of another, and numbers that are read of runs.

The other run may read other inputs, or be one of another checkpoint:

    site = ChangeResidual(layers=[3], positions=[0])
    report = si.measure(twin, tokens, edits=[patch(site, sink_model, tokens)])
    table = si.sweep(twin, tokens, patches(ChangeResidual(), sink_model, tokens), metric=importance)
    table = si.activation_patching(model, clean, corrupted, metric=first_alpha())
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Reads, per_sequence
from ..backends.subject import Logits, Subject, Trace
from ..checks import InputError, accepting, different_numbers, instance_of, unicode_text, whole_number, whole_numbers
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import Change, Edits, Operation, Put, edits_of
from ..interventions.selectors import check_heads
from ..metrics.importance import check_epsilon, first_importance, sink_rate
from ..metrics.metric import PerSequence, target_loss
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


# Metrics of patched runs


@dataclass(frozen=True)
class Scene:
    """The arguments of a metric: a run, its tokens, and for every sequence the clean logits of its pair.

    pairs: which pair of prompts each sequence belongs to, of `n_pairs`.
    """

    trace: Trace
    tokens: Tokens
    clean: Logits
    pairs: Int[Tensor, " sequence"]
    n_pairs: int


@dataclass(frozen=True)
class PatchingMetric:
    """A number per sequence of a patched run.

    reads: its reads while the model runs. answers: of a difference of logits, the token ids and the position.
    all_logits: whether it takes logits of other positions than the last.
    """

    name: str
    number: Callable[[Scene], PerSequence]
    reads: Reads
    answers: tuple[Sequence[int], Sequence[int], int] | None = None
    all_logits: bool = True


def logit_difference(right: Sequence[int] | int, wrong: Sequence[int] | int, position: int = -1) -> PatchingMetric:
    """The logit of token `right` less that of `wrong`, at one position; a token for all pairs, or one for each."""
    rights, wrongs = (whole_numbers(given, "token ids", 0) for given in (right, wrong))
    position = whole_number(position, "a position")

    def logit_of(ids: Sequence[int], scene: Scene) -> PerSequence:
        logits = _at_position(scene.trace.logits, position).float()
        if len(ids) not in (1, scene.n_pairs) or max(ids) >= logits.shape[-1]:
            raise InputError(f"answers are one token id below {logits.shape[-1]}, or one for each pair; got {ids}")
        of_pairs = torch.tensor(ids, device=logits.device).expand(scene.n_pairs)[scene.pairs]
        return logits.gather(1, of_pairs[:, None])[:, 0]

    def number(scene: Scene) -> PerSequence:
        return logit_of(rights, scene) - logit_of(wrongs, scene)

    return PatchingMetric("logit difference", number, {}, (rights, wrongs, position), position != -1)


def _at_position(logits: Logits, position: int) -> Float[Tensor, "sequence vocab"]:
    length = logits.shape[1]
    return logits[:, whole_number(position, "a position of the prompts", -length, length - 1)]


def loss_at(positions: Sequence[int] | None = None) -> PatchingMetric:
    """Mean next-token loss of the clean prompt's tokens at `positions` (from 1; default all), in nats."""

    chosen = None if positions is None else different_numbers(positions, "positions, from 1,", 1)

    def number(scene: Scene) -> PerSequence:
        loss = target_loss(scene.trace.logits[:, :-1], scene.tokens[:, 1:])
        if chosen is None:
            return loss.mean(1)
        places = different_numbers(chosen, "positions of the prompts, from 1,", 1, loss.shape[1])
        return loss[:, [place - 1 for place in places]].mean(1)

    return PatchingMetric("loss", number, {})


def divergence_from_clean(position: int = -1) -> PatchingMetric:
    """KL divergence from the clean run's next-token distribution to the run's, at one position, in nats."""
    position = whole_number(position, "a position")

    def number(scene: Scene) -> PerSequence:
        ours, clean = (_at_position(x, position).float().log_softmax(-1) for x in (scene.trace.logits, scene.clean))
        return F.kl_div(ours, clean, log_target=True, reduction="none").sum(-1)

    return PatchingMetric("KL from the clean run", number, {}, all_logits=position != -1)


def first_alpha(layer: int | None = None, head: int | None = None, epsilon: float | None = None) -> PatchingMetric:
    """Importance of the first token, of one head or the mean over heads; with `epsilon`, the share of heads above it.

    `layer` counts the layers that attend. Defaults are all layers and all heads.
    """

    if epsilon is not None:
        check_epsilon(epsilon)
    layer, head = (None if place is None else whole_number(place, "a layer or a head", 0) for place in (layer, head))

    def number(scene: Scene) -> PerSequence:
        alpha = scene.trace["alpha"]
        check_heads([(layer or 0, head or 0)], range(alpha.shape[1]), alpha.shape[2], "head")
        chosen = alpha if layer is None else alpha[:, [layer]]
        chosen = chosen if head is None else chosen[:, :, [head]]
        return chosen.mean((1, 2)) if epsilon is None else sink_rate(chosen, epsilon)

    name = "alpha_1" if epsilon is None else f"Sink_1 at epsilon {epsilon}"
    place = "" if layer is None and head is None else f" of layer {layer}, head {head}"
    return PatchingMetric(f"{name}{place}", number, {"alpha": first_importance}, all_logits=False)


def answer_difference(subject: Subject, answer: str, instead: str, position: int = -1) -> PatchingMetric:
    """The logit of one text less that of another, each of one token, such as " Paris" and " Madrid"."""
    return logit_difference(answer_token(subject, answer), answer_token(subject, instead), position)


PatchingMetricLike = PatchingMetric | Callable[[Logits], PerSequence]


def metric_of(metric: Any) -> PatchingMetric:
    """The metric that was given, or that of a function of logits. Raises InputError for anything else."""
    if isinstance(metric, PatchingMetric):
        return metric
    if getattr(metric, "__module__", "") == __name__ and callable(metric):
        raise InputError(f"{metric.__name__} makes a metric; call it: metric={metric.__name__}(...)")
    accepting(metric, "a metric, such as sinkinterp.measurement.patching.first_alpha() or a function of logits,", None)
    return PatchingMetric(getattr(metric, "__name__", "metric"), lambda scene: metric(scene.trace.logits), {})


def answer_token(subject: Subject, text: Any) -> int:
    """The one token of a text. Raises InputError where it has several, and for anything but a text."""
    tokenizer, given = subject.tokenizer, instance_of(text, str, "an answer is a text of one token, such as ' Paris'")
    checked = unicode_text(given, "the answer")
    ids = [] if tokenizer is None else tokenizer(checked, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(f"{text!r} is {len(ids)} tokens of {subject.name}, not one")
    return int(ids[0])
