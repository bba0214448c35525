"""Figures 19 to 24: which heads look at the first token, as a map over layers and heads."""

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.plots import heatmaps
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.experiment import of_first_model
from sinkinterp.table import Table
from sinkinterp.tables.heads import sinks_by_head

CLAIM = "Models have various distributions of sinks over heads, but less obvious sinks in earlier blocks."
RULE = "the mean alpha_1 of the first quarter of the layers is below that of the rest, by at least .05"
REPORTED = {
    "Gu et al. 2025, Figures 19 to 24": "sinks are less obvious in earlier blocks; instruction tuning changes little",
}
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/text-softmax-48k"],
    "real": ["local/smollm2-135m-instruct"],
    "full": ["HuggingFaceTB/SmolLM2-135M-Instruct", "openai-community/gpt2", "EleutherAI/pythia-160m"],
}
EPSILON = 0.3


def measure(case: Case, progress: Progress) -> Table:
    """A row per layer and head: alpha_1 with its interval and null, sink rate, value- and key-norm ratio."""
    token_set = case.tokens(case.size(), progress, case.start)
    on_batch = progress(f"measuring {case.subject.name}")
    report = measure_model(case.subject, token_set, positions=(0,), on_batch=on_batch)
    table = sinks_by_head(report, EPSILON)
    note = f"{table.note}; null: uniform attention; rule: {RULE}"
    return Table(CLAIM, note, tuple({**case.names, **row} for row in table.rows))


def draw(table: Table) -> go.Figure:
    """The map of the first model."""
    return heatmaps.heads_overview(of_first_model(table, "Importance of the first position per head"))
