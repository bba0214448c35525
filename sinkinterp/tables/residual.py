"""Tables with a row per block: the residual stream's norms and massive activations."""

from collections import Counter
from collections.abc import Mapping

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, cells, estimate
from ..metrics.massive import lifetime
from ..table import Cell, Table
from .note import note


def residuals(reports: Mapping[str, Report]) -> Table:
    """Norm of the first token's residual against the others', per block and model."""
    rows = tuple(
        _residual_row(name, report, block)
        for name, report in reports.items()
        for block in range(report.residual_norms.shape[1])
    )
    notes = next(iter(reports.values()))
    text = f"{notes.protocol.line()}; {BY_SEQUENCE}; block 0 is the embedding, block b the output of layer b - 1"
    return Table("Residual norms by block", text, rows)


def massive(report: Report, epsilon: float = 0.3) -> Table:
    """Massive activations by block (Sun et al. 2024): by their criterion, and without any threshold.

    The usual entry is the (position, channel) that is largest most often. Raises InputError where they were not
    measured.
    """
    top, psi, kurtosis = report.extra("top_entries"), report.extra("peak_over_median"), report.extra("kurtosis")
    entries = report.extra("massive_entries")

    def row(block: int) -> dict[str, Cell]:
        places = Counter((int(p), int(c)) for _, p, c in top[:, block, 0].tolist())
        (position, channel), times = places.most_common(1)[0]
        return {
            "block": block,
            **cells("max |x|", estimate(top[:, block, 0, 0].abs())),
            **cells("max / median", estimate(psi[:, block])),
            **cells("kurtosis", estimate(kurtosis[:, block])),
            "massive entries": entries[:, block].float().mean().item(),
            "usual entry": f"position {position}, channel {channel} ({times / len(top):.0%})",
        }

    rows = tuple(row(block) for block in range(top.shape[1]))
    life = lifetime(entries.gt(0).float().mean(0) > 0.5)
    criterion = "|x| > 100 and at least 1,000 x the median"
    span = "in no block" if life is None else f"in {life.blocks} blocks, from {life.first} to {life.last}"
    text = f"{note(report, epsilon)}; massive ({criterion}) in most sequences {span}"
    return Table("Massive activations by block", text, rows)


def _residual_row(name: str, report: Report, block: int) -> dict[str, Cell]:
    return {
        "model": name,
        "block": block,
        "first token": report.residual_norms[:, block, 0].mean().item(),
        "other tokens": report.residual_norms[:, block, 1:].nanmean().item(),
        **cells("ratio", estimate(report.residual_ratio()[:, block])),
    }
