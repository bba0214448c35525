"""Softmax makes a sink of the first position; sigmoid without normalisation and K biases do not."""

import plotly.graph_objects as go

from sinkinterp.data.tokens import random_tokens
from sinkinterp.measurement.measure import measure as measured
from sinkinterp.metrics.bootstrap import BY_SEQUENCE, cells
from sinkinterp.plots import curves
from sinkinterp.runs import trained
from sinkinterp.runs.experiment import Case, Model, Tell
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
MODELS: dict[str, list[Model]] = {
    "smoke": [f"sinkinterp/demo-{variant}" for variant in DEMO_TWINS],
    "full": [demo_recipe(variant, seed) for seed in range(5) for variant in DEMO_TWINS],
}


def measure(case: Case, tell: Tell) -> Table:
    """One row: losses, sinks and norms of one model."""
    subject, (sequences, length) = case.subject, case.extent()
    natural = case.natural((sequences, length), case.bos, tell("reading docstrings"))
    token_set = natural or random_tokens(subject.shape.vocab, length, sequences)
    report = measured(subject, token_set, on_batch=tell(f"measuring {subject.name}"))
    first, slot, loss = (
        report.sink(0, DEMO_EPSILON),
        report.slot_rate(DEMO_EPSILON),
        trained.valid_loss(subject, token_set),
    )
    row: dict[str, Cell] = {"model": case.variant or subject.name, "seed": case.seed, "loss": loss.mean}
    row |= cells("Sink_1", first) | {"alpha_1": report.alpha().mean().item()}
    row |= {"null alpha_1": report.null[..., 0].mean().item(), "Sink_*": slot.mean if slot else None}
    row |= {"value ratio": report.value_ratio().mean().item(), "key ratio": report.key_ratio().mean().item()}
    row |= {"residual ratio": report.residual_ratio().mean(0).max().item()}
    published = REPORTED.get(case.variant, {})
    row |= {f"paper {key}": published.get(key) for key in ("Sink_1", "Sink_*", "loss")}
    note = f"{report.protocol.line()}, epsilon={DEMO_EPSILON}; {BY_SEQUENCE}; sigmoid: proxy scores"
    return Table(CLAIM, f"{note}; paper: 60M models", (row,))


def draw(table: Table) -> go.Figure:
    """Sink rate of every model, the paper's values as hollow marks."""
    return curves.seeds(table, "Sink_1", "paper Sink_1")
