"""The pages of a measurement and of the demo: which tables and figures they show, in which order."""

from collections.abc import Iterator

import plotly.graph_objects as go

from .. import tables
from ..measurement.report import Report
from ..metrics.massive import ALL_ENTRIES
from ..plots import curves, heatmaps, massive, norms, swaps, training
from ..tables import TokenText
from .demo import Result
from .page import Section, page

Sections = Iterator[Section]


def measurement_page(report: Report, epsilon: float, word: TokenText = str) -> str:
    """The page that `sinkinterp measure --html` writes: the summary first, the protocol last.

    `word` gives token ids their text. Figures of what was not measured are left out.
    """
    summary, *others = tables.overview_tables(report, epsilon, word)
    protocol = tables.protocol_table(report, epsilon)
    sections = [
        Section(summary.title, summary.note, tables=[summary]),
        *_sinks(report, epsilon),
        *_norms(report, epsilon, word),
        *_exhibits(report, epsilon, word),
        *_surface(report, word),
        *(Section(table.title, table.note, tables=[table]) for table in others),
        Section("Every head in numbers", summary.note, tables=[tables.sinks_by_head(report, epsilon)]),
        Section(
            protocol.title,
            "Positions count from 0; Sink_1 and alpha_1 are those of position 0, the first token.",
            tables=[protocol],
        ),
    ]
    return page(
        f"{tables.short_name(report.protocol.model)}: attention sinks", tables.sink_verdict(report, epsilon), sections
    )


def demo_page(result: Result) -> str:
    """The page that `sinkinterp demo` writes."""
    maps = {name: pattern.numpy() for name, pattern in result.maps.items()}
    note = (
        "Sigmoid: proxy scores, rows divided by their sum; * is the learned key k* of the K-bias model. The last query "
        f"predicts nothing, so its row is untrained. {result.twins.note}"
    )
    figures = {
        "Where attention goes": heatmaps.attention_maps(maps, "Mean attention maps of three twins", note),
        result.swaps.title: swaps.swap_chart(result.swaps),
        result.residuals.title: norms.residual_norms(result.residuals),
        result.training.title: training.training(result.training),
    }
    sections = [_drawn(title, figure) for title, figure in figures.items()]
    sections.append(Section(result.twins.title, result.twins.note, tables=[result.twins]))
    lead = (
        "Three one-layer language models learn the same task to the same loss. Softmax attention parks what it does "
        "not need on the first position; sigmoid attention need not, and a learned key k* takes the sink over."
    )
    return page("First light: a sink, and two ways to be without it", lead, sections)


def _drawn(title: str, *figures: go.Figure) -> Section:
    """A section of figures. Their captions say what they show."""
    return Section(title, "", figures)


def _sinks(report: Report, epsilon: float) -> Sections:
    yield _drawn("Heads", heatmaps.heads_overview(tables.sinks_by_head(report, epsilon)))
    if len(report.positions) > 1:
        yield _drawn("Positions", curves.by_position(tables.sinks_by_position(report, epsilon)))
    yield _drawn("Thresholds", curves.over_epsilon(tables.sinks_by_epsilon(report, epsilon)))


def _norms(report: Report, epsilon: float, word: TokenText) -> Sections:
    ratios = norms.ratios(tables.residual_norms_by_block({report.protocol.model: report}))
    yield _drawn("Norms", norms.by_kind(tables.norms_by_kind(report, epsilon, word)), ratios)


def _exhibits(report: Report, epsilon: float, word: TokenText) -> Sections:
    for exhibit in tables.exhibits_of(report):
        if exhibit.on_page:
            table = exhibit.table(report, epsilon, word)
            heading = exhibit.heading or table.title
            if exhibit.figure is None:
                yield Section(heading, table.note, tables=[table])
            else:
                yield _drawn(heading, exhibit.figure(table))


def _surface(report: Report, word: TokenText) -> Sections:
    if report.has(ALL_ENTRIES):
        surface = tables.residual_surface(report, word)
        yield _drawn("Residual stream", surface_figure(surface, f"Residual magnitudes at block {surface.block}"))


def surface_figure(surface: tables.Surface, title: str) -> go.Figure:
    """The surface of one block's residual."""
    return massive.surface(surface.sizes, surface.channels, surface.tokens, title, surface.note)
