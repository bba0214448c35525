"""What a model loses when its cache forgets first tokens: tables and figures of losses, of heads and of generation."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

import numpy as np
import plotly.graph_objects as go

from ..metrics.bootstrap import estimate, mean_cells
from ..metrics.metric import PerSequence
from ..plots.series import sweep_figure, unique_values
from ..plots.theme import MAGNITUDE, themed
from ..report.columns import HEAD, LAYER
from ..table import Cell, Table, high_of

KEPT, WINDOW, PLACES, CACHE = "first tokens kept", "window", "positions", "cache"
FEWEST = "fewest first tokens"
ADDED, CONTROL, PAIRED = "added loss", "control added loss", "above the first + last"
GENERATED, ALPHA = "generated tokens", "alpha_1"
STAYS, MOVED, SINKS = "sink on the first", "sink elsewhere", "sinks a head"
IN_TEXT, IN_CACHE = "of the text", "of the cache"
NATS = "nats a token after eviction begins"
BITS, SCALES, ROUNDED, CHANGE = "bits", "one scale for each", "rounded tokens", "above all rounded"
ALL, BUT_FIRST, BUT_SECOND = "all", "all but the first", "all but the second"
ENOUGH = 0.01  # nats a token that more first tokens may still gain


@dataclass(frozen=True)
class Losses:
    """The loss that every cache adds, by window, positions and first tokens kept; and why others are missing.

    added, control: of each text, in nats a token above the full cache, after eviction has begun. The control has kept
    as many random tokens, by window and their number.
    """

    added: dict[tuple[int, str, int], PerSequence]
    control: dict[tuple[int, int], PerSequence]
    missing: str
    note: str

    def table(self) -> Table:
        """One row per window, positions and number of first tokens."""
        rows = []
        for (window, places, n), added in self.added.items():
            cells = mean_cells(ADDED, added) | mean_cells(CONTROL, self.control[window, n])
            rows.append({WINDOW: window, PLACES: places, KEPT: n, **cells})
        note = f"{self.note}; {NATS}; null: 0, the full cache; control: as many random tokens kept, not the first"
        missing = f"; no positions of the cache: {self.missing}" if self.missing else ""
        return Table("What does a cache lose without its first tokens?", note + missing, tuple(rows), losses_figure)

    def answer(self) -> str:
        """How many first tokens to keep, in one sentence: the fewest beside which more gain less than `ENOUGH`.

        It says so where the texts do not tell: their interval includes no gain at all, or a gain of every more tokens.
        """
        window = max(window for window, _, _ in self.added)
        by_kept = {n: added for (w, places, n), added in self.added.items() if (w, places) == (window, IN_TEXT)}
        fewest, likely = _fewest(by_kept, _upper), _fewest(by_kept, lambda gain: estimate(gain).mean)
        texts, most = len(by_kept[0]), max(by_kept)
        kept = likely if fewest == most else fewest  # nothing was tried that could reject the most
        said = "1 first token" if kept == 1 else f"{kept or 'no'} first tokens"
        costs = self._costs(window, kept)
        if texts < 2 or kept < fewest or (kept and estimate(by_kept[0] - by_kept[kept]).low <= 0):
            who = f"These {texts} texts do" if texts > 1 else "One text does"
            return f"{who} not tell; give more. With {said} {costs}."
        if kept == most:
            return f"Keep {said} or more, of which none were tried: {costs}."
        return f"Keep {said}: {costs}; more first tokens gain less than {ENOUGH:g}."

    def _costs(self, window: int, kept: int) -> str:
        there, none = (estimate(self.added[window, IN_TEXT, n]) for n in (kept, 0))
        costs = f"a window of {window} then adds {there} nats a token to the loss of the full cache"
        return f"{costs}, and without any {none}" if kept else costs


def _fewest(by_kept: Mapping[int, PerSequence], size: Callable[[PerSequence], float]) -> int:
    """The fewest first tokens beside which all that are more gain less than `ENOUGH`."""
    gains = {n: [size(added - by_kept[m]) for m in by_kept if m > n] for n, added in by_kept.items()}
    return min(n for n, more in gains.items() if all(gain < ENOUGH for gain in more))


def _upper(added: PerSequence) -> float:
    """The upper end of the interval of a mean, or the mean where there is none."""
    found = estimate(added)
    return found.mean if len(added) < 2 else found.high


def largest_window_first(losses: Table) -> Table:
    """The rows of `Losses.table` with those of its answer first: the largest window, positions of the text."""
    return losses.with_rows(sorted(losses.rows, key=lambda row: (-int(row[WINDOW] or 0), row[PLACES] != IN_TEXT)))


def needs_table(heads: Table) -> Table:
    """How many heads need how many first tokens."""
    needed = Counter("more" if n is None else str(n) for n in heads.column(FEWEST))
    rows: list[dict[str, Cell]] = []
    for name in sorted(needed, key=lambda name: (len(name), name)):
        rows.append({FEWEST: name, "heads": needed[name], "share": needed[name] / needed.total()})
    return Table(heads.title, heads.note, tuple(rows))


def losses_figure(table: Table) -> go.Figure:
    """The added loss over the first tokens kept: a line for every window and counting of positions."""
    named = table.with_rows({CACHE: f"window {row[WINDOW]}, positions {row[PLACES]}", **row} for row in table.rows)
    return sweep_figure(named, KEPT, (ADDED,), by=CACHE)


def memory_figure(table: Table) -> go.Figure:
    """The added loss of every rule of eviction, as a mark with its interval, and the paired difference."""
    return sweep_figure(table, CACHE, (ADDED, PAIRED))


def quantised_figure(table: Table) -> go.Figure:
    """The added loss of every way to round, a colour for which tokens are rounded, and the paired difference."""
    named = table.with_rows({CACHE: f"int{row[BITS]}, {row[SCALES]}", **row} for row in table.rows)
    return sweep_figure(named, CACHE, (ADDED, CHANGE), by=ROUNDED)


def quantised_answer(table: Table) -> str:
    """What rounding to every number of bits costs with the best scales, and what sparing the first token changes."""
    costs, gains = [], []
    for bits in dict.fromkeys(table.column(BITS)):
        of = [table.where(**{BITS: bits, ROUNDED: tokens}) for tokens in (ALL, BUT_FIRST)]
        pairs = [zip(rows.numbers(ADDED), rows.column(SCALES), strict=True) for rows in of]
        _, best = min(chain(*pairs), key=itemgetter(0))
        rounded, spared = (rows.where(**{SCALES: best}) for rows in of)
        gains += spared.numbers(high_of(CHANGE))
        change = f"; to leave the first token as it is changes that by {spared.display_rows()[0][CHANGE]}"
        costs.append(
            f"{rounded.display_rows()[0][ADDED]} at {bits} bits (one scale for each {best}"
            f"{change if gains[-1] < 0 else ''})"
        )
    said = f"Rounded keys and values add, in nats a token and with the best scales, {_listed(costs)}."
    if all(high >= 0 for high in gains):
        return f"{said} To leave the first token as it is gains nothing that these texts show."
    return said


def _listed(items: Sequence[str]) -> str:
    *firsts, last = items
    return f"{', '.join(firsts)} and {last}" if firsts else last


def generation_figure(table: Table) -> go.Figure:
    """The first token's attention and the shares of heads with sinks, by part of the generated text."""
    return sweep_figure(table, GENERATED, (ALPHA, STAYS, MOVED, SINKS))


def heads_figure(table: Table) -> go.Figure:
    """The fewest first tokens of every head as a map; white where even the most that were tried are not enough."""
    layers, heads = unique_values(table, LAYER), unique_values(table, HEAD)
    fewest = np.array(table.numbers(FEWEST)).reshape(len(layers), len(heads))
    tried = np.unique(fewest[np.isfinite(fewest)])
    z = np.where(np.isfinite(fewest), np.searchsorted(tried, fewest), np.nan)
    scale = {"tickvals": [*range(len(tried))], "ticktext": [f"{n:g}" for n in tried], "title": "first tokens"}
    map_of_heads = {"x": heads, "y": layers, "colorscale": MAGNITUDE, "zmin": 0, "zmax": max(1, len(tried) - 1)}
    figure = go.Figure(go.Heatmap(z=z, **map_of_heads, colorbar=scale))
    figure.update_xaxes(title=HEAD, type="category").update_yaxes(title=LAYER, type="category", autorange="reversed")
    return themed(figure, table.title, 240 + max(200, 16 * len(layers)), f"{FEWEST}; empty: more. {table.note}")
