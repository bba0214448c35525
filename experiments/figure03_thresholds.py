"""Figure 3: how the sink rate depends on the threshold epsilon and on the length T."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import EPSILON, LENGTH, SINK_1, Cell, Table, high_of, low_of

from .shared.cases import Case, of_first_model, on_models
from .shared.genuine import text_models
from .shared.lengths import over_length, sinks_by_length
from .shared.papers_models import GPT2_XL, LLAMA2_7B, LLAMA3, MISTRAL
from .shared.rules import of_each

CLAIM = "Sink_1 tends to decrease with larger token lengths T, and more so with larger thresholds epsilon."
RULE = (
    "Sink_1 at the largest T is below that at the smallest, outside each other's intervals, for most epsilon; it loses "
    "a larger share at the largest epsilon than at the smallest"
)
# Gu et al. 2025, Figure 3: Sink_1 falls as T grows, more so at larger epsilon
MODELS = text_models(GPT2_XL, MISTRAL, LLAMA2_7B, LLAMA3)  # our text of the paper does not name the figure's models
LENGTHS = (16, 32, 64, 128, 256)


def measure(case: Case, progress: Progress) -> Table:
    """A row per epsilon and length, beside uniform attention's rate; all lengths are beginnings of the same texts."""
    longest = case.tokens(case.size(length=max(LENGTHS)), progress, case.start)
    on_length, reports = progress(f"measuring {case.subject.name}"), []
    lengths = [length for length in LENGTHS if length <= longest.tokens.shape[1]] or [longest.tokens.shape[1]]
    for done, length in enumerate(lengths):
        on_length(done, len(lengths))
        part = replace(TokenSet.of(longest.tokens[:, :length], longest.source), bos=longest.bos)
        reports.append(measure_model(case.subject, part, positions=(0,)))
    on_length(len(lengths), len(lengths))
    table = sinks_by_length(reports)
    note = f"{table.note}; the same texts, cut; null: uniform attention; rule: {RULE}"
    return Table.of(CLAIM, note, tuple({**case.names, **row} for row in table.records()))


def draw(table: Table) -> go.Figure:
    """Sink_1 over T, a line per epsilon, of the first model."""
    return over_length(of_first_model(table, "Sink_1 by length and threshold"))


def _ends(table: Table) -> list[tuple[float, Mapping[str, Cell], Mapping[str, Cell]]]:
    """For every epsilon its rows of the shortest and the longest texts."""
    lengths = table.numbers(LENGTH)

    def row(epsilon: float, length: float) -> Mapping[str, Cell]:
        return table.where(**{EPSILON: epsilon, LENGTH: int(length)}).records()[0]

    epsilons = sorted(set(table.numbers(EPSILON)))
    return [(epsilon, row(epsilon, min(lengths)), row(epsilon, max(lengths))) for epsilon in epsilons]


def _falls_with_length(table: Table) -> tuple[bool | None, str]:
    ends = _ends(table)
    falls = sum(float(long[high_of(SINK_1)] or 0) < float(short[low_of(SINK_1)] or 0) for _, short, long in ends)
    return 2 * falls > len(ends), f"for {falls} of {len(ends)} epsilon"


def _falls_faster_above(table: Table) -> tuple[bool | None, str]:
    ends = _ends(table)
    left = [float(long[SINK_1] or 0) / max(float(short[SINK_1] or 0), 1e-9) for _, short, long in (ends[0], ends[-1])]
    return left[1] < left[0], f"{left[0]:.0%} is left at epsilon {ends[0][0]:g}, {left[1]:.0%} at {ends[-1][0]:g}"


RULES: Sequence[Rule] = (
    of_each(Rule("Sink_1 at the largest T is below that at the smallest, for most epsilon", _falls_with_length)),
    of_each(Rule("it loses a larger share at the largest epsilon than at the smallest", _falls_faster_above)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
