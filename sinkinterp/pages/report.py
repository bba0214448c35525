"""The pages of a measurement and of the demo: which tables and figures they show, in which order."""

from collections.abc import Callable, Iterator

import plotly.graph_objects as go

from .. import tables
from ..measurement.report import Report
from ..plots import curves, heatmaps, massive, norms, qk, training
from ..tables.positions import Word
from .demo import Result
from .page import Section, page

Sections = Iterator[Section]


def measurement_page(report: Report, epsilon: float, word: Word = str) -> str:
    """The page that `sinkinterp measure --html` writes: the summary first, the protocol last.

    `word` gives token ids their text. Figures of what was not measured are left out.
    """
    summary, *others = tables.overview(report, word, epsilon)
    protocol = tables.protocol(report, epsilon)
    sections = [
        Section(summary.title, summary.note, tables=[summary]),
        *_sinks(report, epsilon),
        *_norms(report, epsilon, word),
        *_extras(report, epsilon, word),
        *(Section(table.title, table.note, tables=[table]) for table in others),
        Section("Every head in numbers", summary.note, tables=[tables.heads(report, epsilon)]),
        Section(protocol.title, "Positions count from 0; Sink_1 and alpha_1 are position 0.", tables=[protocol]),
    ]
    return page(f"sinkinterp: {report.protocol.model}", tables.verdict(report, epsilon), sections)


def demo_page(result: Result) -> str:
    """The page that `sinkinterp demo` writes."""
    maps = {name: pattern.numpy() for name, pattern in result.maps.items()}
    note = (
        "Sigmoid: proxy scores, rows divided by their sum; * is the learned key k* of the K-bias model. The last query "
        f"predicts nothing, so its row is untrained. {result.twins.note}"
    )
    figures = {
        "Where attention goes": heatmaps.attention_maps(maps, "Mean attention maps of three twins", note),
        result.swaps.title: curves.swaps(result.swaps),
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
    yield _drawn("Heads", heatmaps.heads_overview(tables.heads(report, epsilon)))
    if len(report.positions) > 1:
        yield _drawn("Positions", curves.by_position(tables.positions(report, epsilon)))
    yield _drawn("Thresholds", curves.over_epsilon(tables.grid(report, epsilon)))


def _norms(report: Report, epsilon: float, word: Word) -> Sections:
    ratios = norms.ratios(tables.residuals({report.protocol.model: report}))
    yield _drawn("Norms", norms.by_kind(tables.norms(report, word, epsilon)), ratios)


def _angles(report: Report, epsilon: float, word: Word) -> Sections:
    yield _drawn("Angle or length?", qk.by_layer(tables.contrasts(report, epsilon)))


def _pairs(report: Report, epsilon: float, word: Word) -> Sections:
    layer, head = tables.strongest_head(report)
    yield _drawn(
        "Pairs of queries and keys in the head that looks at the first token most",
        qk.distributions(tables.distributions(report, layer, head, epsilon)),
    )


def _massive(report: Report, epsilon: float, word: Word) -> Sections:
    entries = tables.entries(report, word, epsilon=epsilon)
    yield _drawn("Massive activations", massive.by_block(tables.massive(report, epsilon)))
    yield Section(entries.title, entries.note, tables=[entries])


def _surface(report: Report, epsilon: float, word: Word) -> Sections:
    surface = tables.surface(report, word)
    yield _drawn("Residual stream", surface_figure(surface, f"Residual magnitudes at block {surface.block}"))


def surface_figure(surface: tables.Surface, title: str) -> go.Figure:
    """The surface of one block's residual."""
    return massive.surface(surface.sizes, surface.channels, surface.tokens, title, surface.note)


_SECTIONS: dict[str, Callable[[Report, float, Word], Sections]] = {
    "qk_angles": _angles,
    "angle_counts": _pairs,
    "massive_entries": _massive,
    "residuals": _surface,
}  # what a report must hold -> the sections that show it


def _extras(report: Report, epsilon: float, word: Word) -> Sections:
    """The sections of what some instruments measured."""
    for needed, sections in _SECTIONS.items():
        if report.has(needed):
            yield from sections(report, epsilon, word)
