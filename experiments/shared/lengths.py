"""Sink_1 over the length of sequences, for several thresholds."""

from collections.abc import Iterable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkinterp.metrics.estimates import estimate_cells, intervals
from sinkinterp.plots.theme import PERCENT, add_curve, colour, escaped, themed, unique_values
from sinkinterp.report.report import Report
from sinkinterp.table import EPSILON, LENGTH, MODEL, NULL, SINK_1, Table

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def sinks_by_length(reports: Iterable[Report], epsilons: Sequence[float] = THRESHOLDS) -> Table:
    """Sink_1 over T for several epsilons beside uniform attention's, a report per length (Gu et al. 2025, Figure 3)."""
    in_order = sorted(reports, key=lambda report: report.protocol.length)
    rows = tuple(
        {
            MODEL: report.protocol.model,
            LENGTH: report.protocol.length,
            EPSILON: epsilon,
            **estimate_cells(SINK_1, report.sink_rate(0, epsilon)),
            NULL: report.null_sink_rate(0, epsilon),
            "n": report.protocol.sequences,
        }
        for epsilon in epsilons
        for report in in_order
    )
    protocols = [report.protocol for report in in_order]
    sources = "; ".join(dict.fromkeys(f"{protocol.model}: {protocol.line('length')}" for protocol in protocols))
    lengths, varied = (", ".join(map(str, dict.fromkeys(row[name] for row in rows))) for name in (LENGTH, EPSILON))
    most = intervals(max(protocol.sequences for protocol in protocols))
    note = f"{sources}; T={lengths}, epsilon={varied}; {most}"
    return Table.of("Sink_1 over the length of sequences", note, rows, over_length)


def over_length(table: Table) -> go.Figure:
    """Sink_1 over the length of sequences, a line per epsilon, uniform attention dotted; `sinks_by_length`."""
    models = unique_values(table, MODEL)
    figure = make_subplots(1, len(models), subplot_titles=list(map(escaped, models)), shared_yaxes=True)
    for column, model in enumerate(models):
        for i, epsilon in enumerate(unique_values(table, EPSILON)):
            rows = table.where(**{MODEL: model, EPSILON: epsilon})
            place = {"legendgroup": f"{epsilon}", "row": 1, "col": column + 1}
            add_curve(figure, rows, LENGTH, SINK_1, i, name=f"epsilon {epsilon}", **place)
            dotted = {"color": colour(i), "dash": "dot", "width": 1.5}
            uniform = {"name": f"uniform, {epsilon}", "mode": "lines", "showlegend": False, "line": dotted}
            add_curve(figure, rows, LENGTH, NULL, i, **uniform, **place)
    ticks = sorted(unique_values(table, LENGTH), key=lambda t: float(t or 0))
    figure.update_xaxes(title="T, tokens per sequence", type="log", tickvals=ticks, ticktext=list(map(str, ticks)))
    figure.update_yaxes(title="Sink_1, share of heads", col=1)
    figure.update_yaxes(**PERCENT)
    caption = "Sink rate of the first position over the length of the sequences; dotted: under uniform attention."
    return themed(figure, table.title, caption=f"{caption} {table.note}")
