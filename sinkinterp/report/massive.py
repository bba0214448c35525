"""Massive activations: the largest entries of the residual stream, by block and in one block (Sun et al. 2024)."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..checks import whole_number
from ..metrics.bootstrap import SIZES, mean_cells
from ..metrics.residuals import ALL_ENTRIES, KURTOSIS, MASSIVE_ENTRIES, PEAK_OVER_MEDIAN, TOP_ENTRIES, Entries, lifetime
from ..plots.series import add_curve, positive_axis
from ..plots.theme import MAGNITUDE, escaped, themed
from ..table import Cell, Table
from .columns import BLOCK, POSITION
from .readings import Readings, TokenText, of_report, protocol_note

PEAK = "max |x|"
OVER_MEDIAN = "max / median"
BY_CHANNEL = "kurtosis"
USUAL_ENTRY = "usual entry"
PANELS = {PEAK: "largest |x|", OVER_MEDIAN: "largest / median |x|", BY_CHANNEL: "kurtosis over channels"}
MOST_ON_SURFACE = 12  # entries of a surface that its table shows
_CAMERA = {"eye": {"x": 1.0, "y": -1.6, "z": 0.75}, "center": {"x": 0, "y": 0, "z": -0.15}}


@dataclass(frozen=True, repr=False)
class Surface:
    """`|x|` of one sequence's residual at one block, the largest of every run of `run` channels; `note`: of what."""

    sizes: Float[np.ndarray, "pos run"]
    tokens: tuple[str, ...]
    channels: tuple[int, ...]
    run: int
    block: int
    note: str

    def __repr__(self) -> str:
        return f"<Surface of block {self.block}: {len(self.tokens)} tokens x {len(self.channels)} runs of channels>"


@of_report
def largest_entries(
    report: Readings, epsilon: float = 0.3, token_text: TokenText = str, block: int | None = None, most: int = 12
) -> Table:
    """The largest residual entries of a block (default: the tallest), by (position, channel), most frequent first.

    Of every sequence the five largest count. Raises InputError where the instrument MASSIVE was not measured.
    """
    tops = Entries.unstacked(report.extra(TOP_ENTRIES))
    tallest = int(tops.values[:, :, 0].abs().mean(0).argmax())
    block = tallest if block is None else whole_number(block, "a block", 0, report.residual_norms.shape[1] - 1)
    found: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)  # value and token id
    for value, position, channel, token_id in _top_entries(report, tops, block):
        found[position, channel].append((value, token_id))
    most_frequent = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    rows = [_entry_row(*place, entries, token_text) for place, entries in most_frequent]
    note = f"{protocol_note(report, epsilon)}; block 0 is the embedding"
    return Table(f"Largest residual entries of block {block}", note, tuple(rows))


@of_report
def residual_surface(
    report: Readings, token_text: TokenText = str, block: int | None = None, sequence: int = 0, most: int = 512
) -> Surface:
    """Residual magnitudes of a block (default: with the largest entry) over tokens and channels, of one sequence.

    More than `most` channels are shown in runs, the largest of each. Raises InputError where the instrument RESIDUALS
    was not measured, and for a block or sequence that is not there.
    """
    residuals = report.extra(ALL_ENTRIES).abs()  # sequence block channel pos
    sequence = whole_number(sequence, "a sequence", 0, len(residuals) - 1)
    tallest = int(residuals[sequence].nan_to_num(0).amax((1, 2)).argmax())
    block = tallest if block is None else whole_number(block, "a block", 0, residuals.shape[1] - 1)
    length = int((report.tokens[sequence] >= 0).sum())
    x = residuals[sequence, block, :, :length].numpy()
    run = math.ceil(len(x) / most)
    starts = range(0, len(x), run)
    return Surface(
        sizes=np.stack([x[start : start + run].max(0) for start in starts], -1),
        tokens=tuple(map(token_text, report.tokens[sequence, :length].tolist())),
        channels=tuple(starts),
        run=run,
        block=block,
        note=f"{report.protocol.model}: sequence {sequence} of {report.protocol.line()}",
    )


@of_report
def entries_of_surface(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> Table:
    """The largest entries of the first sequence's `residual_surface`, by size; the figure is that surface."""
    surface = residual_surface(report, token_text)
    order = np.argsort(-surface.sizes, axis=None)[:MOST_ON_SURFACE]
    rows = tuple(
        {
            POSITION: int(i),
            "token": surface.tokens[i],
            "channel": surface.channels[j],
            "|x|": float(surface.sizes[i, j]),
        }
        for i, j in zip(*np.unravel_index(order, surface.sizes.shape), strict=True)
    )
    title = f"Residual magnitudes at block {surface.block}"
    return Table(title, surface.note, rows, lambda table: surface_figure(surface, title))


def _top_entries(report: Readings, tops: Entries, block: int) -> Iterator[tuple[float, int, int, int]]:
    """Value, position, channel and token id of every sequence's largest entries."""
    positions = tops.positions[:, block]
    columns = (tops.values[:, block], positions, tops.channels[:, block], report.tokens.gather(1, positions))
    yield from zip(*(column.flatten().tolist() for column in columns), strict=True)


def _entry_row(
    position: int, channel: int, entries: Sequence[tuple[float, int]], token_text: TokenText
) -> dict[str, Cell]:
    values, token_ids = [value for value, _ in entries], {token_id for _, token_id in entries}
    return {
        POSITION: position,
        "channel": channel,
        "token": token_text(min(token_ids)) if len(token_ids) == 1 else f"{len(token_ids)} different",
        "in sequences": len(values),
        "mean value": math.fsum(values) / len(values),
        "largest |value|": max(map(abs, values)),
    }


def surface_figure(surface: Surface, title: str) -> go.Figure:
    """Residual magnitudes over positions and channels."""
    texts = np.array([[escaped(token)] * len(surface.channels) for token in surface.tokens])
    figure = go.Figure().add_surface(
        z=surface.sizes,
        x=list(surface.channels),
        y=list(range(len(surface.tokens))),
        text=texts,
        colorscale=MAGNITUDE,
        cmin=0,
        colorbar={"title": "|x|", "len": 0.7},
        contours={"z": {"highlight": False}},
        hovertemplate="position %{y} (%{text}), channel %{x}: %{z:.4g}<extra></extra>",
    )
    axes = {"xaxis": "channel", "yaxis": "position", "zaxis": "|x|, magnitude"}
    scene = {axis: {"title": {"text": text}} for axis, text in axes.items()}
    figure.update_layout(scene={**scene, "camera": _CAMERA, "aspectratio": {"x": 1.6, "y": 1, "z": 0.7}})
    caption = "Magnitude of every residual entry; of a run of channels, the largest."
    themed(figure, title, 560, f"{caption} {surface.note}")
    return figure.update_layout(margin={"l": 0, "r": 0, "t": 60, "b": 0})


def by_block(table: Table) -> go.Figure:
    """Largest entry, its multiple of the median, and kurtosis over channels; from `massive_by_block`."""
    figure = make_subplots(1, len(PANELS), subplot_titles=list(PANELS.values()), horizontal_spacing=0.09)
    for i, (column, title) in enumerate(PANELS.items()):
        place = {"row": 1, "col": i + 1}
        hover: dict[str, Any] = {"text": list(map(escaped, table.column(USUAL_ENTRY))), **place}
        hover["hovertemplate"] = "%{y:.4g}, %{text}<extra></extra>"
        add_curve(figure, table, BLOCK, column, name=title, showlegend=False, **hover)
        figure.update_yaxes(**positive_axis(table.numbers(column)), **place)
    figure.update_xaxes(title="block (0: embedding)")
    caption = "Largest residual entry of a sequence, over the median entry, and the kurtosis of the channels."
    return themed(figure, table.title, 380, f"{caption} {table.note}")


@of_report
def massive_by_block(report: Readings, epsilon: float = 0.3) -> Table:
    """Massive activations by block (Sun et al. 2024): by their criterion, and without any threshold.

    The usual entry is the (position, channel) that is largest most often. Raises InputError where the instrument
    MASSIVE was not measured.
    """
    top = Entries.unstacked(report.extra(TOP_ENTRIES))
    ratio, kurtosis = report.extra(PEAK_OVER_MEDIAN), report.extra(KURTOSIS)
    massive = report.extra(MASSIVE_ENTRIES)

    def row(block: int) -> dict[str, Cell]:
        return {
            BLOCK: block,
            **mean_cells(PEAK, top.values[:, block, 0].abs(), SIZES),
            **mean_cells(OVER_MEDIAN, ratio[:, block], SIZES),
            **mean_cells(BY_CHANNEL, kurtosis[:, block], SIZES),
            "massive entries": massive[:, block].float().mean().item(),
            USUAL_ENTRY: _usual_entry(top, block),
        }

    life = lifetime(massive.gt(0).float().mean(0) > 0.5)
    criterion = "|x| > 100 and at least 1,000 x the median"
    blocks = "in no block" if life is None else f"in {life.blocks} blocks, from {life.first} to {life.last}"
    note = f"{protocol_note(report, epsilon)}; massive ({criterion}) in most sequences {blocks}"
    return Table("Massive activations by block", note, tuple(map(row, range(massive.shape[1]))), by_block)


def _usual_entry(top: Entries, block: int) -> str:
    positions, channels = (index[:, block, 0].tolist() for index in (top.positions, top.channels))
    (position, channel), times = Counter(zip(positions, channels, strict=True)).most_common(1)[0]
    return f"position {position}, channel {channel} ({times / len(positions):.0%})"
