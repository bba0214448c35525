"""Pages of results: tables and arrays handed to the views that draw them."""

from . import tabulate
from .demo import Result
from .report import Report
from .tabulate.places import Word
from .views import curves, heatmaps
from .views.page import Section, page


def measurement_page(report: Report, epsilon: float, word: Word = str) -> str:
    """The page that `sinkinterp measure --html` writes: summary first, protocol last. `word` gives ids their text."""
    note = tabulate.note(report, epsilon)
    summary, *tables = tabulate.overview(report, word, epsilon)
    heads = tabulate.heads(report, epsilon)
    positions = tabulate.positions(report, epsilon)
    norms = tabulate.residuals({report.protocol.model: report})
    protocol = "; ".join(f"{name}: {value}" for name, value in vars(report.protocol).items())
    sections = [
        Section(summary.title, note, tables=[summary]),
        Section("Heads", note, [heatmaps.heads_overview(heads)]),
        Section(
            "Positions",
            f"{note}. Few queries see the last positions, so recent tokens score high there.",
            [curves.by_position(positions)],
        ),
        Section("Thresholds", note, [curves.over_epsilon(tabulate.grid(report, epsilon))]),
        Section("Residual norms", norms.note, [curves.residual_norms(norms)]),
        *(Section(table.title, table.note, tables=[table]) for table in tables),
        Section("Every head in numbers", note, tables=[heads]),
        Section("Protocol", protocol),
    ]
    lead = f"Attention sinks of {report.protocol.model}. Positions count from 0; Sink_1 is position 0."
    return page(f"sinkinterp: {report.protocol.model}", lead, sections)


def demo_page(result: Result) -> str:
    """The page that `sinkinterp demo` writes."""
    maps = {name: pattern.numpy() for name, pattern in result.maps.items()}
    sections = [
        Section(
            "Where attention goes",
            "Mean attention map over sequences; sigmoid: proxy scores, rows divided by their sum; * is the learned "
            "key k* of the K-bias model. The last query predicts nothing, so its row is untrained. "
            f"{result.twins.note}",
            [heatmaps.attention_maps(maps, "Mean attention maps of three twins")],
        ),
        Section(result.swaps.title, result.swaps.note, [curves.swaps(result.swaps)]),
        Section(result.residuals.title, result.residuals.note, [curves.residual_norms(result.residuals)]),
        Section(result.training.title, result.training.note, [curves.training(result.training)]),
        Section(result.twins.title, result.twins.note, tables=[result.twins]),
    ]
    lead = (
        "Three one-layer language models learn the same task to the same loss. Softmax attention parks what it does "
        "not need on the first position; sigmoid attention need not, and a learned key k* takes the sink over."
    )
    return page("First light: a sink, and two ways to be without it", lead, sections)
