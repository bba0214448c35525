"""Softmax makes a sink of the first position; sigmoid without normalisation and K biases do not."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import estimate_cells, intervals
from sinkinterp.plots.theme import PERCENT, cells_of, colour, error_bars, escaped, model_numbers, themed, unique_values
from sinkinterp.runs.experiment import Rule
from sinkinterp.runs.trained import valid_loss
from sinkinterp.table import ALPHA_1, MODEL, SEED, Cell, Table
from sinkinterp.train.recipe import DEMO_EPSILON, DEMO_TWINS, demo_recipe

from .shared.cases import Case, Model, on_models
from .shared.rules import higher, within

CLAIM = (
    "At equal loss, softmax attention puts a sink on the first position, sigmoid attention without normalisation has "
    "none, and a learned key with value zero (K biases) takes the sink over."
)
REPORTED: dict[str | None, dict[str, float | None]] = {
    # Gu et al. 2025, Tables 4 and 6: 60M parameters on the Pile, T=64, epsilon=0.3, one seed
    "softmax": {"Sink_1": 0.1818, "Sink_*": None, "loss": 3.73},
    "sigmoid": {"Sink_1": 0.0044, "Sink_*": None, "loss": 3.70},
    "k_bias": {"Sink_1": 0.0, "Sink_*": 0.7334, "loss": 3.72},
}
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: [f"sinkinterp/demo-{variant}" for variant in DEMO_TWINS],
    Scale.DEMO: [demo_recipe(variant, seed) for seed in range(5) for variant in DEMO_TWINS],
}


def measure(case: Case, progress: Progress) -> Table:
    """One row: the loss, sinks and norms of one model."""
    subject, token_set = case.subject, case.tokens(case.size(), progress)
    report = measure_model(subject, token_set, progress=progress(f"measuring {subject.name}"))
    slot, published = report.slot_rate(DEMO_EPSILON), REPORTED.get(case.variant, {})
    row: dict[str, Cell] = {
        "model": case.variant or subject.name,
        "seed": case.seed,
        "loss": valid_loss(subject, token_set).mean,
        **estimate_cells("Sink_1", report.sink_rate(0, DEMO_EPSILON)),
        "alpha_1": report.alpha().mean().item(),
        "null alpha_1": report.null[..., 0].mean().item(),
        "Sink_*": slot.mean if slot else None,
        "value ratio": report.value_ratio().mean().item(),
        "key ratio": report.key_ratio().mean().item(),
        "residual ratio": report.residual_ratio().mean(0).max().item(),
        **{f"paper {name}": published.get(name) for name in ("Sink_1", "Sink_*", "loss")},
    }
    note = f"{report.protocol.line()}, epsilon={DEMO_EPSILON}; {intervals(report.protocol.sequences)}"
    return Table.of(CLAIM, f"{note}; sigmoid: proxy scores; paper: 60M models", (row,))


def draw(table: Table) -> go.Figure:
    """Sink rate of every model, the paper's values as hollow marks."""
    return seeds(table, "Sink_1", "paper Sink_1")


RULES: Sequence[Rule] = (
    higher("softmax", than="sigmoid", quantity=ALPHA_1),
    higher("softmax", than="k_bias", quantity=ALPHA_1),
    within("the slot of K biases takes the sink", "Sink_*", {MODEL: "k_bias"}, low=0.5),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)


def seeds(table: Table, quantity: str, reported: str) -> go.Figure:
    """A rate of every seed and model with its interval; the values of column `reported` as hollow marks."""
    figure = go.Figure()
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        x = [f"{escaped(model)}, seed {seed}" for seed in cells_of(rows, SEED)]
        figure.add_scatter(
            x=x,
            y=rows.numbers(quantity),
            error_y=error_bars(rows, quantity),
            name=f"{escaped(model)}, ours",
            mode="markers",
            marker={"color": colour(i), "size": 10},
        )
        figure.add_scatter(
            x=x,
            y=rows.numbers(reported),
            name=f"{escaped(model)}, paper",
            mode="markers",
            marker={"color": colour(i), "size": 10, "symbol": "circle-open", "line": {"width": 2}},
        )
    figure.update_yaxes(title=f"{escaped(quantity)}, share of heads", **PERCENT)
    caption = f"{quantity} of every seed; hollow: reported."
    return themed(figure, escaped(quantity), 480, f"{caption} {table.note}")
