"""Figure 3: how the sink rate depends on the threshold epsilon and on the length T."""

from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.plots import curves
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.experiment import of_first_model
from sinkinterp.table import Table
from sinkinterp.tables.series import sinks_by_length

CLAIM = "Sink_1 tends to decrease with larger token lengths T, and more so with larger thresholds epsilon."
RULE = (
    "Sink_1 at the largest T is below that at the smallest, outside each other's intervals, for most epsilon; it loses "
    "a larger share at the largest epsilon than at the smallest"
)
REPORTED = {
    "Gu et al. 2025, Figure 3": "Sink_1 falls as T grows, more so at larger epsilon",
}
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/text-softmax-48k"],
    "real": ["local/smollm2-135m-instruct"],
    "full": ["HuggingFaceTB/SmolLM2-135M-Instruct", "openai-community/gpt2", "EleutherAI/pythia-160m"],
}
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
    weights = f"; weights: {case.subject.revision}" if case.subject.revision else ""
    note = f"{table.note}{weights}; the same texts, cut; null: uniform attention; rule: {RULE}"
    return Table(CLAIM, note, tuple({**case.names, **row} for row in table.rows))


def draw(table: Table) -> go.Figure:
    """Sink_1 over T, a line per epsilon, of the first model."""
    return curves.over_length(of_first_model(table, "Sink_1 by length and threshold"))
