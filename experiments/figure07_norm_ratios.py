"""Figures 7 and 8: the first token's residual norm over the others', by block and architecture."""

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.plots.theme import unique_values
from sinkinterp.report.norms import residual_norms, residual_norms_by_block
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import ALPHA_1, MODEL, Cell, Table
from sinkinterp.train.recipe import demo_recipe

from .shared.cases import Case, Model, on_models
from .shared.genuine import Has, models_with

CLAIM = (
    "Massive activations exist in models with softmax attention; models with K biases, or with sigmoid attention "
    "without normalisation, have none."
)
RULE = (
    "the largest ratio over blocks is above 10 with softmax, and below 2 with K biases and with sigmoid; where softmax "
    "itself stays below 10, the models are too small to be asked"
)
# Gu et al. 2025, Figures 7 and 8: massive activations with softmax, none with K biases and sigmoid (curves only)
WITHOUT_SINK = ("k_bias", "sigmoid")
TEXT_TWINS = ("softmax", "softmax-48k", "k_bias", "sigmoid", "sigmoid_length")
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: [f"sinkinterp/text-{name}" for name in TEXT_TWINS],
    Scale.REAL: models_with(Has.TEXT),
    Scale.DEMO: [demo_recipe(variant, seed) for seed in range(5) for variant in ("softmax", "k_bias", "sigmoid")],
}


def measure(case: Case, progress: Progress) -> Table:
    """A row per block: norms of the first token and of the others, and their ratio with its interval."""
    token_set = case.tokens(case.size(), progress, case.start)
    on_batch = progress(f"measuring {case.subject.name}")
    report = measure_model(case.subject, token_set, positions=(0,), progress=on_batch)
    table = residual_norms_by_block({case.subject.name: report})
    alpha: dict[str, Cell] = {
        ALPHA_1: report.alpha().mean().item(),
        f"null {ALPHA_1}": report.null_alpha().mean().item(),
    }
    note = f"{table.note}; alpha_1: mean over layers and heads; null of the ratio: 1; rule: {RULE}"
    return Table.of(CLAIM, note, tuple({**case.names, **row, **alpha} for row in table.records()))


def draw(table: Table) -> go.Figure:
    """Norms and their ratio by block, a line per model."""
    return residual_norms(table)


def _largest(table: Table, without_sink: bool) -> dict[str, float]:
    """The largest ratio over blocks of each model with K biases or sigmoid, or of each other one."""
    names = [str(name) for name in unique_values(table, MODEL)]
    chosen = [name for name in names if any(kind in name for kind in WITHOUT_SINK) is without_sink]
    return {name: max(table.where(**{MODEL: name}).numbers("ratio")) for name in chosen}


def _judged(ratios: Mapping[str, float], shows: Callable[[float], bool | None]) -> Decision:
    """Whether every ratio shows a claim; not asked without a model."""
    if not ratios:
        return Outcome.NOT_ASKED, "no such model here"
    answers = [shows(ratio) for ratio in ratios.values()]
    words = ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items())
    return False if False in answers else None if None in answers else True, words


def _has_peak(table: Table) -> Decision:
    return _judged(_largest(table, without_sink=False), lambda ratio: ratio > 10 or None)


def _has_none(table: Table) -> Decision:
    return _judged(_largest(table, without_sink=True), lambda ratio: ratio < 2)


RULES: Sequence[Rule] = (
    Rule("the largest ratio is above 10 in every model with softmax", _has_peak),
    Rule("it is below 2 with K biases and with sigmoid", _has_none),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
