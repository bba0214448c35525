"""Massive activations: the largest entries of the residual stream, by block and in one block (Sun et al. 2024)."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..checks import whole_number
from ..metrics.bootstrap import SIZES, mean_cells
from ..metrics.residuals import KURTOSIS, MASSIVE_ENTRIES, PEAK_OVER_MEDIAN, TOP_ENTRIES, Entries, lifetime
from ..plots.theme import add_curve, escaped, positive_axis, themed
from ..table import BLOCK, POSITION, Cell, Table
from .readings import Readings, TokenText, of_report, protocol_note

PEAK = "max |x|"
OVER_MEDIAN = "max / median"
BY_CHANNEL = "kurtosis"
USUAL_ENTRY = "usual entry"
PANELS = {PEAK: "largest |x|", OVER_MEDIAN: "largest / median |x|", BY_CHANNEL: "kurtosis over channels"}


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
