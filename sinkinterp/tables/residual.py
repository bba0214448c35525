"""Tables with a row per block: the residual stream's norms and massive activations."""

from collections import Counter
from collections.abc import Mapping

from ..measurement.report import Report
from ..metrics.bootstrap import estimate, estimate_cells
from ..metrics.massive import KURTOSIS, MASSIVE_ENTRIES, PEAK_OVER_MEDIAN, TOP_ENTRIES, Entries, lifetime
from ..plots import massive as figures
from ..plots.columns import BLOCK, MODEL
from ..plots.norms import FIRST_TOKEN, OTHER_TOKENS, RATIO
from ..table import Cell, Table
from .exhibits import Exhibit, whole
from .note import intervals_note, protocol_note


def residual_norms_by_block(reports: Mapping[str, Report]) -> Table:
    """Norm of the first token's residual against the others', per block and model."""
    rows = tuple(
        _residual_row(name, report, block)
        for name, report in reports.items()
        for block in range(report.residual_norms.shape[1])
    )
    first = next(iter(reports.values()))
    note = (
        f"{first.protocol.line()}; {intervals_note(first)}; block 0 is the embedding, block b the output of layer b - 1"
    )
    return Table("Residual norms by block", note, rows)


def massive_by_block(report: Report, epsilon: float = 0.3) -> Table:
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
            **estimate_cells(figures.PEAK, estimate(top.values[:, block, 0].abs())),
            **estimate_cells(figures.PEAK_OVER_MEDIAN, estimate(ratio[:, block])),
            **estimate_cells(figures.KURTOSIS, estimate(kurtosis[:, block])),
            "massive entries": massive[:, block].float().mean().item(),
            figures.USUAL_ENTRY: _usual_entry(top, block),
        }

    life = lifetime(massive.gt(0).float().mean(0) > 0.5)
    criterion = "|x| > 100 and at least 1,000 x the median"
    blocks = "in no block" if life is None else f"in {life.blocks} blocks, from {life.first} to {life.last}"
    note = f"{protocol_note(report, epsilon)}; massive ({criterion}) in most sequences {blocks}"
    return Table("Massive activations by block", note, tuple(map(row, range(massive.shape[1]))))


def _usual_entry(top: Entries, block: int) -> str:
    positions, channels = (index[:, block, 0].tolist() for index in (top.positions, top.channels))
    (position, channel), times = Counter(zip(positions, channels, strict=True)).most_common(1)[0]
    return f"position {position}, channel {channel} ({times / len(positions):.0%})"


def _residual_row(name: str, report: Report, block: int) -> dict[str, Cell]:
    return {
        MODEL: name,
        BLOCK: block,
        FIRST_TOKEN: report.residual_norms[:, block, 0].mean().item(),
        OTHER_TOKENS: report.residual_norms[:, block, 1:].nanmean().item(),
        **estimate_cells(RATIO, estimate(report.residual_ratio()[:, block])),
    }


EXHIBITS = (
    Exhibit(
        MASSIVE_ENTRIES,
        lambda report, epsilon, text: massive_by_block(report, epsilon),
        in_terminal=whole,
        in_json=True,
        on_page=True,
        heading="Massive activations",
        figure=figures.by_block,
    ),
)
