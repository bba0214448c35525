"""Figures 19 to 24 and 27: which heads look at the first token, as a map over layers and heads."""

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.report.heads import heads_overview, sinks_by_head
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, LAYER, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.genuine import text_models
from .shared.papers_models import TABLE_8
from .shared.rules import of_each

CLAIM = "Models have various distributions of sinks over heads, but less obvious sinks in earlier blocks."
RULE = "the mean alpha_1 of the first quarter of the layers is below that of the rest, by at least .05"
# Gu et al. 2025, Figures 19 to 24, 27: less obvious in earlier blocks; instruction tuning changes little
MODELS = text_models(*TABLE_8)
EPSILON = 0.3


def measure(case: Case, progress: Progress) -> Table:
    """A row per layer and head: alpha_1 with its interval and null, sink rate, value- and key-norm ratio."""
    token_set = case.tokens(case.size(), progress, case.start)
    on_batch = progress(f"measuring {case.subject.name}")
    report = measure_model(case.subject, token_set, positions=(0,), progress=on_batch)
    table = sinks_by_head(report, EPSILON)
    note = f"{table.note}; null: uniform attention; rule: {RULE}"
    return Table.of(CLAIM, note, tuple({**case.names, **row} for row in table.records()))


def draw(table: Table) -> go.Figure:
    """The map of the first model."""
    return heads_overview(of_first_model(table, "Importance of the first position per head"))


def _is_weak_early(table: Table) -> tuple[bool | None, str]:
    layers = sorted(set(table.numbers(LAYER)))
    early = layers[: max(1, len(layers) // 4)]
    if len(layers) < 4:
        return None, f"the model has {len(layers)} layers"
    alphas = list(zip(table.numbers(LAYER), table.numbers(ALPHA_1), strict=True))
    first, rest = (fmean(a for layer, a in alphas if (layer in early) == is_early) for is_early in (True, False))
    return first < rest - 0.05, f"mean {first:.3f} in the first {len(early)} layers, {rest:.3f} in the others"


RULES: Sequence[Rule] = (
    of_each(Rule("alpha_1 in the first quarter of the layers is below that of the rest by .05", _is_weak_early)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
