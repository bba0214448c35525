"""Attention maps: the cells of many heads, read in one forward pass, and the figure that shows them."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import AttentionCall, CallRead, Edit, description, maps
from ..backends.load import subject_of
from ..backends.subject import Subject
from ..checks import InputError
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import Edits, edits_of
from ..metrics.importance import first_importance
from ..plots.theme import escaped
from ..report import patterns
from ..report.maps import HeadMaps, Heads, attention_figure, detail, which_heads
from ..report.patterns import holds_attention, patterns_of
from ..report.readings import short_name
from ..table import Table
from .measure import ModelLike, check_text, check_unedited, equal_inputs_of
from .quantities import chosen_heads

_SEVERAL = (list, tuple, Mapping)
MOST = 6  # maps side by side


def attention_map(
    model: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike] | Any,
    text: TokensLike | Any = None,
    *,
    layers: int | Sequence[int] | None = None,
    heads: Heads | None = None,
    edits: Edits = (),
) -> go.Figure:
    """A plotly figure of where heads look, with menus of heads, scores, cosines and norm products::

        si.attention_map("gpt2", "The cat sat on the mat.", heads=[(5, 1), (5, 6)])

    With `edits`, each map is drawn before them and after them. A list of models or of texts, or a mapping from names to
    them, gives maps side by side, of the heads that all models have. `heads` are pairs (layer, head); `layers`
    takes all heads of some. Without both the figure has those that look at the first token most, as many as it can
    show pair by pair in 2 MB. A longer text is shown in cells, which hold the largest value of several tokens.
    Weights are proxies where rows do not sum to one. Takes what `measure` takes; rows of token ids of one length
    give mean maps. In place of a model, it takes the attention weights that `si.sinks` takes, with or without the
    tokens as texts or ids. Raises InputError also for heads that are not there, and for more than six maps side by
    side.
    """
    models = _models_of(model)
    if not models:
        check_unedited(edits)
        return _held_map(model, text, layers, heads)
    check_text(text, "attention_map")
    given_edits = edits_of(edits)
    texts, subjects = _texts_of(text), {name: subject_of(each) for name, each in models.items()}
    inputs = {
        " · ".join(filter(None, (model_name, text_name))): equal_inputs_of(subject, given)
        for (model_name, subject), (text_name, given) in product(subjects.items(), texts.items())
    }
    asked = _heads_of_all(list(subjects.values()), layers, heads)
    runs: dict[str, Sequence[Edit]] = {"before": (), "after": given_edits} if given_edits else {"": ()}
    n_panels = len(runs) * len(inputs)
    if n_panels > MOST:
        raise InputError(f"{MOST} maps stand side by side at most; got {n_panels}")
    before = _alphas(*next(iter(inputs.values())), asked)
    n, lengths = len(next(iter(inputs.values()))[1]), sorted({tokens.shape[1] for _, tokens in inputs.values()})
    every = layers is not None or heads is not None
    shown, side = detail(before, lengths[-1], n_panels, all_of_them=every)
    panels = {
        f"{name or short_name(subject.name)} {run}".strip(): head_maps(subject, tokens, shown, given, side)
        for (name, (subject, tokens)), (run, given) in product(inputs.items(), runs.items())
    }
    names = ", ".join(subject.name for subject in subjects.values())
    title = ", ".join(name or short_name(subject.name) for name, subject in subjects.items())
    changes = f"; {', '.join(map(description, given_edits))}" if given_edits else ""
    note = f"n={n}, T={' and '.join(map(str, lengths))}{changes}"
    title = f"{title}: attention of {which_heads(shown, len(asked))}"
    figure = attention_figure(panels, title, f"{names}: {note}", every)
    return figure.update_layout(title_subtitle={"text": escaped(note), "font": {"size": 12}})


def _models_of(given: Any) -> dict[str, Any]:
    """Models by the name of their panel: one alone has none, and those of a list have their own. Empty for weights."""
    if not holds_attention(given):
        return {"": given}
    models = list(given.values() if isinstance(given, Mapping) else given) if isinstance(given, _SEVERAL) else []
    if not all(isinstance(model, str | torch.nn.Module | Subject) for model in models):
        return {}
    if isinstance(given, Mapping):
        return {str(name): model for name, model in given.items()}
    subjects = [subject_of(model) for model in models]
    names = [subject.name for subject in subjects]
    numbered = [f"{name} {i}" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
    return dict(zip(numbered, subjects, strict=True))


def _texts_of(given: Any) -> dict[str, Any]:
    """Texts by the name of their panel: one alone has none, and those of a list their beginnings."""
    if isinstance(given, list | tuple) and len(given) > 1 and all(isinstance(text, str) for text in given):
        return {f"{i} {textwrap.shorten(text, 28, placeholder='…')}": text for i, text in enumerate(given, 1)}
    is_named = isinstance(given, Mapping) and given and all(isinstance(text, str) for text in given.values())
    return {str(name): text for name, text in given.items()} if is_named else {"": given}


def _heads_of_all(subjects: Sequence[Subject], layers: Any, heads: Any) -> Heads:
    """The heads that are meant and that every model has. Raises InputError where there are none."""
    first, *others = (heads_of(each, layers, heads) for each in subjects)
    shared = [head for head in first if all(head in other for other in others)]
    if not shared:
        names = " and ".join(each.name for each in subjects)
        raise InputError(f"{names} have no layer with attention in common")
    return shared


def _held_map(patterns: Any, tokens: Any, layers: Any, heads: Any) -> go.Figure:
    """The figure of attention weights that someone holds."""
    held = patterns_of(patterns, rows_of(tokens))
    n, n_heads, length, _ = next(iter(held.values())).shape
    asked = chosen_heads(dict.fromkeys(held, n_heads), layers, heads)
    alphas = {(layer, head): held[layer][:, head, :, 0].mean().item() for layer, head in asked}
    every = layers is not None or heads is not None
    shown, side = detail(alphas, length, 1, all_of_them=every)
    weights = torch.stack([held[layer][:, head].mean(0) for layer, head in shown])
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    unseen = later & (not weights[:, later].any())  # a model that reads both ways, as BERT does, has them all
    values = maps.pooled(weights.masked_fill(unseen, torch.nan), side).numpy()
    alpha, words = tuple(alphas[head] for head in shown), _words_held(tokens, n, length)
    drawn = HeadMaps(shown, {maps.WEIGHT.name: values}, length, side=side, alpha=alpha, words=words)
    title = f"Attention: {which_heads(shown, len(asked))}"
    return attention_figure({"": drawn}, title, f"n={n}, T={length}", every)


def sinks(
    model: ModelLike | Any,
    text: TokensLike | Any = None,
    *,
    position: int = 0,
    epsilon: float = 0.3,
    attention_mask: Any = None,
) -> Table:
    """The sinks of a model on texts of one length, or of attention weights, with or without their tokens.

    A model alone reads what `measure` reads then. Returns the table of `report.patterns.sinks`, which says what weights
    may be. Raises InputError as it does, and as `measure` does.
    """
    if text is None and not isinstance(model, str | Path | torch.nn.Module | Subject):
        return patterns.sinks(model, position, epsilon, attention_mask)
    if holds_attention(model):
        first = next(iter(patterns_of(model, rows_of(text)).values()))
        _words_held(text, len(first), first.shape[-1])
        if attention_mask is None:
            attention_mask = torch.ones(len(first), first.shape[-1])
        return patterns.sinks(model, position, epsilon, attention_mask)
    subject, tokens = equal_inputs_of(model, text)
    weights = subject.run(tokens, reads={"weights": AttentionCall.weights_at}, logits=False)["weights"].unbind(1)
    named = {f"blocks.{i}.hook_pattern": each for i, each in zip(subject.shape.attention_layers, weights, strict=True)}
    return patterns.sinks(named, position, epsilon, attention_mask)


def rows_of(tokens: Any) -> int | None:
    """How many sequences tokens are of: the rows of a tensor or of lists, else one; None without tokens."""
    if tokens is None:
        return None
    is_table = isinstance(tokens, Tensor | np.ndarray) and tokens.ndim == 2
    return len(tokens) if is_table or (isinstance(tokens, list) and tokens and isinstance(tokens[0], list)) else 1


def _words_held(tokens: Any, n: int, length: int) -> list[str] | None:
    """Tokens as texts; None without them, or for several sequences. Raises InputError unless each position has one."""
    if tokens is None:
        return None
    rows = np.asarray(tokens.cpu() if isinstance(tokens, Tensor) else tokens)
    if rows.dtype.kind not in "iuU" or rows.shape not in ((length,), (n, length)):
        got = f"{rows.shape[-1]} tokens" if rows.ndim and rows.shape[-1] != length else f"{tokens!r:.40}"
        raise InputError(f"tokens are the {length} texts or ids that the weights belong to; got {got}")
    return [str(token) for token in rows.reshape(-1).tolist()] if n == 1 else None


def head_maps(
    model: ModelLike, tokens: TokensLike | Any, heads: Heads | None = None, edits: Edits = (), side: int = 1
) -> HeadMaps:
    """Maps of some heads, by default of all, mean over sequences: weights, scores, cosines and norm products.

    Weights are proxies where rows do not sum to one. A cell of several pairs, `side` x `side`, holds the largest.
    Maps of one sequence have the texts of its tokens.
    Raises InputError for heads that are not there, and for sequences of different lengths.
    """
    subject, rows = equal_inputs_of(model, tokens)
    chosen = ChosenHeads(heads_of(subject, None, heads))
    reads = chosen.cells(maps.QUANTITIES, side, 1, rows.shape[1])
    reads["alpha"] = chosen.read(lambda call: first_importance(call)[..., None], 1)
    trace = subject.run(rows, reads=reads, edits=edits_of(edits), logits=False)
    layers = subject.shape.attention_layers
    answers = {name: chosen.of_maps(answer.mean(0), layers)[:, 0] for name, answer in trace.answers.items()}
    slot, alpha = answers.pop("slot"), answers.pop("alpha")
    slots = None if np.isnan(slot).all() else slot
    words = list(map(subject.label, rows[0].tolist())) if len(rows) == 1 else None
    return HeadMaps(chosen.maps, answers, rows.shape[1], slots, side, tuple(alpha.tolist()), words)


def _alphas(subject: Subject, tokens: Tokens, heads: Heads) -> dict[tuple[int, int], float]:
    """Importance of the first token in each head."""
    alpha = subject.run(tokens, reads={"alpha": first_importance}, logits=False)["alpha"].mean(0).tolist()
    layers = subject.shape.attention_layers
    return {(layer, head): alpha[layers.index(layer)][head] for layer, head in heads}


def heads_of(subject: Subject, layers: Any, heads: Any) -> Heads:
    """The heads of a model that are chosen, as `chosen_heads` returns them."""
    return chosen_heads(dict.fromkeys(subject.shape.attention_layers, subject.shape.n_heads), layers, heads)


class ChosenHeads:
    """The chosen heads of each layer. A trace stacks layers, so answers are as wide as the layer with most heads."""

    def __init__(self, heads: Heads) -> None:
        self.maps = tuple(heads)
        self.heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self.heads.setdefault(layer, []).append(head)
        self.width = max(map(len, self.heads.values()))

    def read(self, read: CallRead, *shape: int) -> CallRead:
        """The read of the chosen heads only: `batch width *shape`, NaN in places of no head."""

        def of_chosen(call: AttentionCall) -> Tensor:
            answer = call.q.new_full((len(call.q), self.width, *shape), torch.nan, dtype=torch.float)
            heads = self.heads.get(call.layer)
            if heads is not None:
                answer[:, : len(heads)] = read(maps.of_heads(call, heads))
            return answer

        return of_chosen

    def cells(self, quantities: Sequence[maps.Quantity], side: int, stats: int, length: int) -> dict[str, CallRead]:
        """Reads of the cells of quantities, by their names, and of the slot's: the first `stats` numbers of each."""
        n = -(-length // side)

        def of(quantity: maps.Quantity) -> CallRead:
            return self.read(lambda call: maps.cells(call, side, quantity)[:, :, :stats], stats, n, n)

        slot = self.read(lambda call: maps.slot_cells(call, side)[:, :, :stats], stats, n)
        return {quantity.name: of(quantity) for quantity in quantities} | {"slot": slot}

    def of_maps(self, answers: Float[Tensor, "layer width *shape"], layers: Sequence[int]) -> np.ndarray:
        """The answers, one for each map."""
        rows = [layers.index(layer) for layer, _ in self.maps]
        columns = [self.heads[layer].index(head) for layer, head in self.maps]
        return answers[rows, columns].cpu().numpy()
