"""Smaller caches: what a rolling cache loses of a text without first tokens, and how many each head needs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.colors import sample_colorscale
from torch import Tensor

from ..attention import AttentionCall, Edit
from ..backends.subject import Subject
from ..checks import different_numbers, finite_number, whole_number
from ..data.progress import OnProgress, Progress, counting, no_progress, reported, silent
from ..data.tokens import Tokens, TokensLike
from ..interventions.attention_layers import Evict, First, KeepHeaviest
from ..measurement.measure import ModelLike, answers_of, equal_inputs_of, run_note
from ..measurement.quantities import TokenLosses, token_losses
from ..metrics.estimates import Estimate, estimate, intervals, mean_cells
from ..metrics.metric import PerSequence
from ..plots.theme import LIGHT, heat_map, sweep_figure, themed, unique_values
from ..table import ADDED, HEAD, LAYER, Cell, Table, high_of, low_of, no_estimate

CACHE = "cache"
FIRST_TOKENS = (0, 1, 2, 4, 8)
KEPT, WINDOW, FEWEST = "first tokens kept", "window", "fewest first tokens"
CONTROL = "control added loss"
NATS = "nats a token after eviction begins"
ENOUGH = 0.01  # nats a token that more first tokens may still gain


@dataclass(frozen=True)
class Losses:
    """The loss that every cache adds, by window and first tokens kept.

    added, control: of each text, in nats a token above the full cache, after eviction has begun. The control has kept
    as many random tokens.
    """

    added: dict[tuple[int, int], PerSequence]
    control: dict[tuple[int, int], PerSequence]
    note: str

    def table(self) -> Table:
        """One row per window and number of first tokens."""
        rows = []
        for (window, n), added in self.added.items():
            cells = mean_cells(ADDED, added) | mean_cells(CONTROL, self.control[window, n])
            rows.append({WINDOW: window, KEPT: n, **cells})
        note = f"{self.note}; {NATS}; null: 0, the full cache; control: as many random tokens kept, not the first"
        return Table.of("What does a cache lose without its first tokens?", note, tuple(rows), losses_figure)

    def answer(self) -> str:
        """How many first tokens to keep, in one sentence: the fewest beside which more gain less than `ENOUGH`.

        It says so where the texts do not tell: their interval includes no gain at all, or a gain of every more tokens.
        """
        window = max(window for window, _ in self.added)
        by_kept = {n: added for (w, n), added in self.added.items() if w == window}
        fewest, likely = _fewest(by_kept, is_sure=True), _fewest(by_kept, is_sure=False)
        texts, most = len(by_kept[0]), max(by_kept)
        kept = likely if fewest == most else fewest  # nothing was tried that could reject the most
        said = "1 first token" if kept == 1 else f"{kept or 'no'} first tokens"
        costs = self._costs(window, kept)
        if texts < 2 or kept < fewest or (kept and estimate(by_kept[0] - by_kept[kept]).low <= 0):
            who = f"These {texts} texts do" if texts > 1 else "One text does"
            return f"{who} not tell; give more. With {said} {costs}."
        if kept == most:
            return f"Keep {said}, or more, which were not tried: {costs}."
        fewer = f" By the means alone {likely} will do; these texts do not exclude more." if likely < kept else ""
        return f"Keep {said}: {costs}; more first tokens gain less than {ENOUGH:g}.{fewer}"

    def _costs(self, window: int, kept: int) -> str:
        there, none = (estimate(self.added[window, n]) for n in (kept, 0))
        costs = f"a window of {window} then adds {there} nats a token to the loss of the full cache"
        return f"{costs}, and without any {none}" if kept else costs


def first_token_losses(
    subject: ModelLike,
    tokens: TokensLike | Any,
    windows: Sequence[int],
    kept: Sequence[int] = FIRST_TOKENS,
    progress: Progress = silent,
) -> Losses:
    """The loss that a rolling cache adds to the full one, for every window and number of first tokens.

    Eviction is a mask in one pass; tokens keep the positions of the text. The control keeps as many random tokens,
    never the first. Without any first token is always tried. Raises InputError where a window evicts nothing.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    kept = sorted({0, *different_numbers(kept, "kept, numbers of first tokens,", 0)})
    windows = different_numbers(windows, "windows", 1)
    for window in windows:
        check_window(tokens, window)
    full, added, control = token_losses(subject, tokens), {}, {}
    places = [(window, n) for window in windows for n in kept if n < window]
    for window, n in reported(places, progress, "evicting first tokens"):
        edits = Evict(window, n), KeepHeaviest(window, n, First.EVICTED, seed=0)
        above = [(token_losses(subject, tokens, [edit]) - full)[:, window:].mean(1) for edit in edits]
        added[window, n], control[window, n] = above
    return Losses(added, control, _note(subject, tokens))


def heads_table(
    subject: ModelLike,
    tokens: TokensLike | Any,
    window: int,
    tolerance: float = 0.1,
    kept: Sequence[int] = FIRST_TOKENS,
) -> Table:
    """The fewest first tokens with which each head's output stays within `tolerance` of that from all keys.

    The error is the length of the change over the length of the output, root mean square over the queries from
    `window` on, mean over texts. Queries, keys and values are those of the full cache. The control keeps one random
    token instead of the first.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    check_window(tokens, window)
    finite_number(tolerance, "tolerance, a share of an output's length,", above=0)
    fitting = [n for n in different_numbers(kept, "kept, numbers of first tokens,", 0) if n < window]
    edits = [*(Evict(window, n) for n in fitting), KeepHeaviest(window, 1, First.EVICTED, seed=0)]
    (errors_of,) = answers_of(subject, tokens, {"errors": partial(_output_errors, edits=edits, window=window)})
    rows: list[dict[str, Cell]] = []
    for layer, heads in zip(subject.shape.attention_layers, errors_of.nanmean(0).tolist(), strict=True):
        for head, (*errors, control) in enumerate(heads):
            by_kept = dict(zip(fitting, errors, strict=True))
            fewest = next((n for n, error in by_kept.items() if error <= tolerance), None)
            cells = {f"error with {n}": error for n, error in by_kept.items()}
            rows.append({LAYER: layer, HEAD: head, FEWEST: fewest, **cells, "control error with 1": control})
    note = f"{_note(subject, tokens)}; window {window}; tolerance {tolerance:g}; control: 1 random token, not the first"
    return Table.of("How many first tokens does each head need?", note, tuple(rows), heads_figure)


def _output_errors(call: AttentionCall, edits: Sequence[Edit], window: int) -> Float[Tensor, "batch head edit"]:
    full = call.output()[..., window:, :].float()
    outputs = torch.stack([edit.call(call).output()[..., window:, :].float() for edit in edits], -3)
    return (outputs - full[..., None, :, :]).norm(dim=(-2, -1)) / full.norm(dim=(-2, -1))[..., None]


def _note(subject: Subject, tokens: Tokens) -> str:
    return f"{run_note(subject, tokens)}; {intervals(len(tokens))}"


def _fewest(by_kept: Mapping[int, PerSequence], is_sure: bool) -> int:
    """The fewest first tokens beside which all that are more gain less than `ENOUGH`, in the mean.

    is_sure: at the upper end of their interval, if they have one.
    """

    def is_enough(gain: Estimate) -> bool:
        return (gain.high if is_sure and isfinite(gain.high) else gain.mean) < ENOUGH

    gains = {n: [estimate(added - by_kept[m]) for m in by_kept if m > n] for n, added in by_kept.items()}
    return min(n for n, more in gains.items() if all(map(is_enough, more)))


def needs_table(heads: Table) -> Table:
    """How many heads need how many first tokens."""
    needed = Counter("more" if n is None else str(n) for n in (row[FEWEST] for row in heads.records()))
    rows: list[dict[str, Cell]] = []
    for name in sorted(needed, key=lambda name: (len(name), name)):
        rows.append({FEWEST: name, "heads": needed[name], "share": needed[name] / needed.total()})
    return Table.of(heads.title, heads.note, tuple(rows))


def losses_figure(table: Table) -> go.Figure:
    """The added loss over the first tokens kept: a line for every window."""
    named = table.with_rows({CACHE: f"window {row[WINDOW]}", **row} for row in table.records())
    return sweep_figure(named, KEPT, (ADDED,), by=CACHE)


def heads_figure(table: Table) -> go.Figure:
    """The fewest first tokens of every head as a map: a colour for each number, and one for more than were tried."""
    counts = sorted({int(n) for n in table.frame[FEWEST].dropna()})
    names = [*map(str, counts), "more"]
    steps = {FEWEST: [len(counts) if row[FEWEST] is None else counts.index(row[FEWEST]) for row in table.records()]}
    stepped = replace(table, frame=table.frame.assign(**steps))
    ends = [i / len(names) for i in range(len(names) + 1)]
    colours = sample_colorscale(list(LIGHT.sequential), [i / max(1, len(counts)) for i in range(len(names))])
    scale = [(end, each) for i, each in enumerate(colours) for end in ends[i : i + 2]]
    bar = {"title": "first tokens", "tickvals": [*range(len(names))], "ticktext": names}
    figure = heat_map(stepped, FEWEST, zmin=-0.5, zmax=len(counts) + 0.5, colorscale=scale, colorbar=bar)
    height = 240 + max(200, 16 * len(unique_values(table, LAYER)))
    return themed(figure, table.title, height, f"{FEWEST}. {table.note}")


def check_window(tokens: Tokens, window: int) -> None:
    """Raises InputError for a window that evicts nothing of these tokens, and for what is not a window."""
    whole_number(window, f"a window that evicts some of {tokens.shape[1]} tokens", 1, tokens.shape[1] - 2)


def streaming_table(
    subject: ModelLike,
    tokens: TokensLike | Any,
    *,
    window: int,
    sinks: Sequence[int] = (0, 1, 2, 4, 8),
    on_progress: OnProgress = no_progress,
) -> Table:
    """Perplexity before and after eviction begins, per number of sinks, beside full attention.

    A mask hides from each query what the cache would have evicted before it, in one pass a text. Before the first
    eviction, all rows are the same computation. `added loss` is the loss after it, less that of full attention, token
    by token. The window counts the token that is read. Tokens keep the positions of the text, and keys of deeper layers
    stay as they were made, from tokens that may have been evicted since. Raises InputError where nothing is evicted,
    and for more tokens than the model has positions.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    check_window(tokens, window)
    sinks = different_numbers(sinks, "sinks", 0, window - 1)
    full = token_losses(subject, tokens)
    rows = [_row("all", None, full, full, window)]
    for count in counting(sinks, on_progress):
        loss = torch.cat([token_losses(subject, text, [Evict(window, count)]) for text in tokens.split(1)])
        rows.append(_row(f"{count} + {window - count}", count, loss, full, window))
    return Table.of("What does a rolling cache lose?", _streaming_note(subject, tokens, window), tuple(rows))


def _row(cache: str, sinks: int | None, loss: TokenLosses, full: TokenLosses, window: int) -> dict[str, Cell]:
    return {
        CACHE: cache,
        "sinks": sinks,
        **_perplexity_cells("perplexity before", loss[:, :window], window),
        **_perplexity_cells("perplexity after", loss[:, window:], window),
        "tokens after": loss[:, window:].numel(),
        **(no_estimate(ADDED) if sinks is None else _mean_cells(ADDED, (loss - full)[:, window:], window)),
    }


def _perplexity_cells(column: str, loss: TokenLosses, window: int) -> dict[str, Cell]:
    cells = _mean_cells(column, loss, window)
    return {name: None if nats is None else _exp(float(nats)) for name, nats in cells.items()}


def _exp(nats: float) -> float:
    """e^nats, infinite above 709 nats, where `math.exp` raises an error."""
    return torch.tensor(nats, dtype=torch.float64).exp().item()


def _mean_cells(column: str, loss: TokenLosses, window: int) -> dict[str, Cell]:
    """The mean over tokens and its interval: over sequences, or over blocks of `window` tokens of a single sequence.

    One block alone has no interval. Without tokens there is no mean either.
    """
    if not loss.numel():
        return no_estimate(column)
    blocks = loss.split(1) if len(loss) > 1 else loss.tensor_split(max(1, loss.shape[1] // window), 1)
    of_blocks = estimate(torch.stack([block.mean() for block in blocks]))
    low, high = (of_blocks.low, of_blocks.high) if len(blocks) > 1 else (None, None)
    return {column: loss.double().mean().item(), low_of(column): low, high_of(column): high}


def _streaming_note(subject: Subject, tokens: Tokens, window: int) -> str:
    unit = "sequences" if len(tokens) > 1 else f"blocks of {window} tokens"
    return (
        f"{run_note(subject, tokens)}, window {window} "
        "(sinks + last tokens, the one that is read included), positions are places in the text; before: tokens "
        f"1 to {window}, alike for all; after: eviction has begun; added loss: after, over all keys; "
        f"{intervals(max(len(tokens), tokens.shape[1] // window), unit)}"
    )
