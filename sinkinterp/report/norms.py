"""Norms of residuals, keys and values by block and by kind of token, and massive activations.

Source: Gu et al. 2025, Figures 2 top and 11 to 14; Sun et al. 2024.
"""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pandas
import plotly.graph_objects as go
import torch
from einops import reduce
from jaxtyping import Bool
from plotly.subplots import make_subplots
from torch import Tensor

from ..metrics.estimates import SIZES, intervals, mean_cells
from ..metrics.residuals import KURTOSIS, MASSIVE_ENTRIES, PEAK_OVER_MEDIAN, TOP_ENTRIES, lifetime
from ..plots.theme import GREY, add_curve, colour, escaped, model_numbers, positive_axis, themed, unique_values
from ..table import BLOCK, MODEL, POSITION, QUANTITY, Cell, Table
from .heads import followed
from .readings import Readings, TokenText, protocol_note

Mask = Bool[Tensor, "sequence pos"]
SHARE = 0.1  # of the heads that must look at a later token for it to be called a sink
KIND = "tokens"
NORM = "norm"
RESIDUAL = "residual"
FIRST_TOKEN = "first token"
OTHER_TOKENS = "other tokens"
RATIO = "ratio"
BLOCK_AXIS = "block (0: embedding)"
CHANNEL = "channel"
LARGEST_VALUE = "largest |value|"
MOST_SHOWN = 12  # entries of a table


def token_kinds(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> dict[str, Mask]:
    """The tokens of each kind: the first token, other sinks, delimiters, other tokens. Every token has one kind.

    Kinds without tokens are left out. Another sink is a later token above `epsilon` in at least a tenth of the heads,
    if `FOLLOWERS` queries can follow it. Sinks are known only if all positions were measured. The text of a
    delimiter is punctuation or a line break.
    """
    real = report.tokens >= 0
    first = torch.zeros_like(real)
    first[:, 0] = True
    candidates = {
        FIRST_TOKEN: first,
        "other sinks": _other_sinks(report, epsilon),
        "delimiters": _delimiters(report, token_text),
        OTHER_TOKENS: real,
    }
    kinds: dict[str, Mask] = {}
    without_kind = real
    for name, mask in candidates.items():
        kinds[name], without_kind = without_kind & mask, without_kind & ~mask
    return {name: mask for name, mask in kinds.items() if mask.any()}


def norms_by_kind(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> Table:
    """Mean norm of residuals, keys and values, per block and kind of token; keys and values over kv heads."""
    layers = report.attention_layers
    quantities = {
        RESIDUAL: (range(report.residual_norms.shape[1]), report.residual_norms),
        "key": (layers, reduce(report.key_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
        "value": (layers, reduce(report.value_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
    }
    kinds = token_kinds(report, epsilon, token_text)
    rows: list[dict[str, Cell]] = []
    for name, (blocks, values) in quantities.items():
        for kind, mask in kinds.items():
            for i, block in enumerate(blocks):
                of_kind = values[:, i].masked_fill(~mask, torch.nan).nanmean(1)
                rows.append({QUANTITY: name, BLOCK: block, KIND: kind, **mean_cells(NORM, of_kind, SIZES)})
    counts = ", ".join(f"{kind} {int(mask.sum())}" for kind, mask in kinds.items())
    note = (
        f"{protocol_note(report, epsilon)}; tokens: {counts}; residuals: block 0 is the embedding, block b the output "
        f"of layer b - 1; other sinks: later tokens above epsilon in at least {SHARE:.0%} of the heads; delimiters: "
        "punctuation and line breaks"
    )
    return Table.of("Norms by block and kind of token", note, tuple(rows), by_kind)


def _other_sinks(report: Readings, epsilon: float) -> Mask:
    length = report.tokens.shape[1]
    if len(report.positions) < length:
        return torch.zeros_like(report.tokens, dtype=torch.bool)
    share = reduce((report.importance > epsilon).float(), "sequence layer head pos -> sequence pos", "mean")
    return (share >= SHARE) & followed(report)


def _delimiters(report: Readings, token_text: TokenText) -> Mask:
    texts = {i: token_text(i) for i in report.tokens[report.tokens >= 0].unique().tolist()}
    bare = [i for i, text in texts.items() if not any(c.isalnum() or c == "\ufffd" for c in text)]
    delimiters = [i for i in bare if texts[i].strip() or "\n" in texts[i]]
    return torch.isin(report.tokens, torch.tensor(delimiters, dtype=report.tokens.dtype))


def by_kind(table: Table) -> go.Figure:
    """Norms of residuals, keys and values by block, a line per kind of token; from `norms_by_kind`."""
    quantities = unique_values(table, QUANTITY)
    figure = make_subplots(1, len(quantities), subplot_titles=[f"{escaped(q)} norm" for q in quantities])
    for i, kind in enumerate(unique_values(table, KIND)):
        for j, quantity in enumerate(quantities):
            rows = table.where(**{QUANTITY: quantity, KIND: kind})
            add_curve(figure, rows, BLOCK, NORM, i, name=escaped(kind), legendgroup=escaped(kind), row=1, col=j + 1)
    for j, quantity in enumerate(quantities):
        rows, place = table.where(**{QUANTITY: quantity}), {"row": 1, "col": j + 1}
        figure.update_xaxes(title=BLOCK_AXIS if quantity == RESIDUAL else "layer", **_ticks(rows), **place)
        figure.update_yaxes(**positive_axis(rows.numbers(NORM)), **place)
    figure.update_yaxes(title="mean Euclidean norm", col=1)
    caption = "Mean norm of residuals, keys and values by kind of token; keys and values over kv heads."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def residual_norms(table: Table) -> go.Figure:
    """First token's residual norm, the others', and their ratio, by model; from `residual_norms_by_block`."""
    titles = ("norm: first token (solid), other tokens (dotted)", "ratio, with 95% interval")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.1)
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows, named = table.where(**{MODEL: model}), {"name": escaped(model), "legendgroup": str(model), "row": 1}
        dotted = {"color": colour(i), "dash": "dot"}
        add_curve(figure, rows, BLOCK, FIRST_TOKEN, i, **named, col=1)
        add_curve(figure, rows, BLOCK, OTHER_TOKENS, i, **named, col=1, line=dotted)
        add_curve(figure, rows, BLOCK, RATIO, i, **named, col=2)
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot"}, row=1, col=2)
    figure.update_xaxes(title=BLOCK_AXIS, **_ticks(table))
    norms = [*table.numbers(FIRST_TOKEN), *table.numbers(OTHER_TOKENS)]
    figure.update_yaxes(title="residual norm", **positive_axis(norms), row=1, col=1)
    figure.update_yaxes(title="first / others", **positive_axis([*table.numbers(RATIO), 1.0]), row=1, col=2)
    caption = "Mean norm of the residual stream by block, and the first token's over that of the others."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def _ticks(table: Table) -> dict[str, Any]:
    blocks = unique_values(table, BLOCK)
    return {"tickvals": blocks} if len(blocks) <= 16 else {"nticks": 12}


def residual_norms_by_block(reports: Mapping[str, Readings]) -> Table:
    """Norm of the first token's residual against the others', per block and model."""
    rows = tuple(
        {
            MODEL: name,
            BLOCK: block,
            FIRST_TOKEN: report.residual_norms[:, block, 0].mean().item(),
            OTHER_TOKENS: report.residual_norms[:, block, 1:].nanmean().item(),
            **mean_cells(RATIO, report.residual_ratio()[:, block]),
        }
        for name, report in reports.items()
        for block in range(report.residual_norms.shape[1])
    )
    first = next(iter(reports.values()))
    blocks = "block 0 is the embedding, block b the output of layer b - 1"
    note = f"{first.protocol.line()}; {intervals(first.protocol.sequences)}; {blocks}"
    return Table.of("Residual norms by block", note, rows, residual_norms)


PEAK = "max |x|"
OVER_MEDIAN = "max / median"
BY_CHANNEL = "kurtosis"
USUAL_ENTRY = "usual entry"
_FROM_0 = "block 0 is the embedding"
PANELS = {PEAK: "largest |x|", OVER_MEDIAN: "largest / median |x|", BY_CHANNEL: "kurtosis over channels"}


def largest_entries(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> Table:
    """The largest residual entries of the block with the tallest, by (position, channel), most frequent first.

    Of every sequence the five largest count. Raises InputError where the instrument MASSIVE was not measured.
    """
    tops = report.extra(TOP_ENTRIES)
    block = int(tops[:, :, 0, 0].abs().mean(0).argmax())
    values, positions, channels = tops[:, block].unbind(-1)
    places = {POSITION: positions.long(), CHANNEL: channels.long()}
    columns = places | {"value": values, "token": report.tokens.gather(1, places[POSITION])}
    entries = pandas.DataFrame({name: column.flatten().tolist() for name, column in columns.items()})

    def row(position: int, channel: int, of_place: pandas.DataFrame) -> dict[str, Cell]:
        ids = of_place["token"].unique().tolist()
        return {
            POSITION: position,
            CHANNEL: channel,
            "token": token_text(ids[0]) if len(ids) == 1 else f"{len(ids)} different",
            "in sequences": len(of_place),
            "mean value": fmean(of_place["value"]),
            LARGEST_VALUE: of_place["value"].abs().max(),
        }

    most_frequent = sorted(entries.groupby([*places]), key=lambda item: (-len(item[1]), item[0]))[:MOST_SHOWN]
    rows = [row(position, channel, of_place) for (position, channel), of_place in most_frequent]
    note = f"{protocol_note(report, epsilon)}; {_FROM_0}"
    return Table.of(f"Largest residual entries of block {block}", note, rows, entries_figure)


def entries_figure(table: Table) -> go.Figure:
    """The size of each entry, with its place; from `largest_entries`."""
    ranked = table.largest(LARGEST_VALUE)
    names = [escaped(f"position {row[POSITION]} ({row['token']}), channel {row[CHANNEL]}") for row in ranked.records()]
    figure = go.Figure().add_scatter(x=ranked.numbers(LARGEST_VALUE), y=names, mode="markers", marker={"size": 10})
    figure.update_xaxes(title=LARGEST_VALUE, type="log").update_yaxes(autorange="reversed")
    return themed(figure, table.title, 380, table.note)


def by_block(table: Table) -> go.Figure:
    """Largest entry, its multiple of the median, and kurtosis over channels; from `massive_by_block`."""
    figure = make_subplots(1, len(PANELS), subplot_titles=list(PANELS.values()), horizontal_spacing=0.09)
    hover: dict[str, Any] = {"text": list(map(escaped, table.frame[USUAL_ENTRY]))}
    hover["hovertemplate"] = "%{y:.4g}, %{text}<extra></extra>"
    for i, (column, title) in enumerate(PANELS.items(), 1):
        add_curve(figure, table, BLOCK, column, name=title, showlegend=False, **hover, row=1, col=i)
        figure.update_yaxes(**positive_axis(table.numbers(column)), row=1, col=i)
    figure.update_xaxes(title=BLOCK_AXIS)
    caption = "Largest residual entry of a sequence, over the median entry, and the kurtosis of the channels."
    return themed(figure, table.title, 380, f"{caption} {table.note}")


def massive_by_block(report: Readings, epsilon: float = 0.3) -> Table:
    """Massive activations by block (Sun et al. 2024): by their criterion, and without any threshold.

    The usual entry is the (position, channel) that is largest most often. Raises InputError where the instrument
    MASSIVE was not measured.
    """
    top = report.extra(TOP_ENTRIES)
    ratio, kurtosis = report.extra(PEAK_OVER_MEDIAN), report.extra(KURTOSIS)
    massive = report.extra(MASSIVE_ENTRIES)

    def row(block: int) -> dict[str, Cell]:
        return {
            BLOCK: block,
            **mean_cells(PEAK, top[:, block, 0, 0].abs(), SIZES),
            **mean_cells(OVER_MEDIAN, ratio[:, block], SIZES),
            **mean_cells(BY_CHANNEL, kurtosis[:, block], SIZES),
            "massive entries": massive[:, block].float().mean().item(),
            USUAL_ENTRY: _usual_entry(top, block),
        }

    life = lifetime(massive.gt(0).float().mean(0) > 0.5)
    criterion = "|x| > 100 and at least 1,000 x the median"
    blocks = "in no block" if life is None else f"in {life.blocks} blocks, from {life.first} to {life.last}"
    note = f"{protocol_note(report, epsilon)}; massive ({criterion}) in most sequences {blocks}; {_FROM_0}"
    return Table.of("Massive activations by block", note, tuple(map(row, range(massive.shape[1]))), by_block)


def _usual_entry(top: Tensor, block: int) -> str:
    places = map(tuple, top[:, block, 0, 1:].long().tolist())
    (position, channel), times = Counter(places).most_common(1)[0]
    return f"position {position}, channel {channel} ({times / len(top):.0%})"
