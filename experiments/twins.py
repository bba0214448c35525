"""Softmax makes a sink of the first position; sigmoid without normalisation and K biases do not."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.bootstrap import BY_SEQUENCE, estimate_cells
from sinkinterp.plots import curves
from sinkinterp.plots.columns import ALPHA_1, MODEL
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.row_rules import Within
from sinkinterp.runs.scale import Scale
from sinkinterp.runs.seed_rules import Higher
from sinkinterp.runs.trained import valid_loss
from sinkinterp.runs.verdict import Rule
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipes import DEMO_EPSILON, DEMO_TWINS, demo_recipe

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
        **estimate_cells("Sink_1", report.sink(0, DEMO_EPSILON)),
        "alpha_1": report.alpha().mean().item(),
        "null alpha_1": report.null[..., 0].mean().item(),
        "Sink_*": slot.mean if slot else None,
        "value ratio": report.value_ratio().mean().item(),
        "key ratio": report.key_ratio().mean().item(),
        "residual ratio": report.residual_ratio().mean(0).max().item(),
        **{f"paper {name}": published.get(name) for name in ("Sink_1", "Sink_*", "loss")},
    }
    note = f"{report.protocol.line()}, epsilon={DEMO_EPSILON}; {BY_SEQUENCE}; sigmoid: proxy scores"
    return Table(CLAIM, f"{note}; paper: 60M models", (row,))


def draw(table: Table) -> go.Figure:
    """Sink rate of every model, the paper's values as hollow marks."""
    return curves.seeds(table, "Sink_1", "paper Sink_1")


RULES: Sequence[Rule] = (
    Higher("softmax", than="sigmoid", quantity=ALPHA_1),
    Higher("softmax", than="k_bias", quantity=ALPHA_1),
    Within("the slot of K biases takes the sink", "Sink_*", {MODEL: "k_bias"}, low=0.5),
)
