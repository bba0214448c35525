"""Which positions and which tokens are sinks, at which threshold, and what each position costs."""

from collections.abc import Iterable

import plotly.graph_objects as go
import torch
from jaxtyping import Bool
from torch import Tensor

from ..data.tokens import PAD
from ..metrics.estimates import estimate_cells
from ..metrics.sinks import epsilons_of, sink_grid, sink_tokens
from ..plots.theme import PERCENT, SHARE, sweep_figure
from ..table import EPSILON, NULL, POSITION, SINK_1, SINK_RATE, Cell, Table
from .readings import Readings, TokenText, protocol_note

FOLLOWERS = 8  # queries that can see a later position, its own among them, for it to be judged
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ALPHA, NULL_ALPHA, LARGEST_OTHER = "alpha", "null alpha", "largest other"
_LAST = "few queries see the last positions, so numbers are high there, also under uniform attention"


def sinks_by_position(report: Readings, epsilon: float = 0.3) -> Table:
    """Sink rate and mean importance of every measured position, beside the null."""

    def row(position: int) -> dict[str, Cell]:
        return {
            POSITION: position,
            "paper": f"Sink_{position + 1}",
            **estimate_cells(SINK_RATE, report.sink_rate(position, epsilon)),
            "null rate": report.null_sink_rate(position, epsilon),
            ALPHA: report.alpha(position).nanmean().item(),
            NULL_ALPHA: report.null_alpha(position).nanmean().item(),
        }

    rows = tuple(map(row, report.positions))
    return Table.of("Sink rate by position", f"{protocol_note(report, epsilon)}; {_LAST}", rows, by_position)


def sinks_by_epsilon(report: Readings, epsilon: float = 0.3, epsilons: Iterable[float] | float = EPSILONS) -> Table:
    """Sink_1 over epsilon beside uniform attention's (Gu et al. 2025, Figure 3): how much the threshold decides."""
    thresholds = epsilons_of(epsilons)
    rates, nulls = (sink_grid(values, thresholds) for values in (report.importance, report.null))
    first = report.column_of(0)

    def row(i: int) -> dict[str, Cell]:
        others = [rate for j, rate in enumerate(rates[i].tolist()) if j != first]
        return {
            EPSILON: thresholds[i],
            **estimate_cells(SINK_1, report.sink_rate(0, thresholds[i])),
            NULL: nulls[i, first].item(),
            LARGEST_OTHER: max(others, default=None),
        }

    rows = tuple(map(row, range(len(thresholds))))
    return Table.of("Sink_1 over epsilon", f"{protocol_note(report, epsilon)}; {_LAST}", rows, over_epsilon)


def followed(report: Readings) -> Bool[Tensor, "sequence pos"]:
    """The tokens that at least `FOLLOWERS` queries of their own sequence can follow, their own query among them."""
    lengths = (report.tokens >= 0).sum(1, keepdim=True)
    return torch.arange(report.tokens.shape[1]) <= lengths - FOLLOWERS


def sinks_by_token(report: Readings, epsilon: float = 0.3, token_text: TokenText = str, most: int = 10) -> Table:
    """The tokens that are sinks most often, those at the first position and later ones apart.

    A token's share is that of its (occurrence, layer, head) above epsilon. Later positions count where at least
    `FOLLOWERS` queries of their sequence can follow them: at the very end, a token's own query decides alone. Raises
    InputError where some positions were not measured.
    """
    report.alpha(report.protocol.length - 1)
    end = max(2, report.protocol.length - FOLLOWERS + 1)
    always = 2 if end == 2 else 1  # where all texts are short, the second position counts all the same
    counts = followed(report) | (torch.arange(report.tokens.shape[1]) < always)
    ids = report.tokens.masked_fill(~counts, PAD)
    rows: list[dict[str, Cell]] = []
    for place, chosen in (("first", slice(0, 1)), ("later", slice(1, end))):
        tokens = sink_tokens(report.importance[..., chosen], ids[:, chosen], epsilon)
        null_of_those = report.null.masked_fill(~counts[:, None, None], torch.nan)[..., chosen]
        null = sink_grid(null_of_those, (epsilon,)).nanmean().item()
        for sink in [sink for sink in tokens if sink.share > 0][:most]:
            rows.append({"place": place, "token": sink.token, "text": token_text(sink.token)})
            rows[-1] |= {"occurrences": sink.occurrences, "share of heads": sink.share, NULL: null}
    places = f"null: that place under uniform attention; later: positions 1 to {end - 1}"
    places += "" if always == 2 else f", where {FOLLOWERS} queries of a text can follow them"
    return Table.of("Which tokens are sinks?", f"{protocol_note(report, epsilon)}; {places}", tuple(rows))


def by_position(table: Table) -> go.Figure:
    """Importance of every position beside the null, and its sink rate; from `sinks_by_position`."""
    return sweep_figure(table, POSITION, (ALPHA, SINK_RATE)).update_yaxes(**SHARE)


def over_epsilon(table: Table) -> go.Figure:
    """Sink_1 over its threshold beside uniform attention's, and the largest other rate; from `sinks_by_epsilon`."""
    return sweep_figure(table, EPSILON, (SINK_1, LARGEST_OTHER)).update_yaxes(**PERCENT)
