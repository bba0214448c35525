"""Softmax makes a sink of the first position; sigmoid without normalisation and K biases do not."""

import plotly.graph_objects as go

from sinkinterp import demo, study, tabulate
from sinkinterp.measurement import measure as measured
from sinkinterp.study import Run
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipe import Recipe
from sinkinterp.views import curves

CLAIM = (
    "At equal loss, softmax attention puts a sink on the first position, sigmoid attention without normalisation has "
    "none, and a learned key with value zero (K biases) takes the sink over."
)
REPORTED: dict[str, dict[str, float | None]] = {
    # Gu et al. 2025, Tables 4 and 6: 60M parameters on the Pile, T=64, epsilon=0.3, one seed
    "softmax": {"Sink_1": 0.1818, "Sink_*": None, "loss": 3.73},
    "sigmoid": {"Sink_1": 0.0044, "Sink_*": None, "loss": 3.70},
    "k_bias": {"Sink_1": 0.0, "Sink_*": 0.7334, "loss": 3.72},
}
SEEDS = {"smoke": (0,), "full": (0, 1, 2, 3, 4)}
STEPS = {"smoke": 40, "full": demo.STEPS}


def runs(scale: str) -> list[tuple[str, Recipe]]:
    """Every twin on every seed."""
    return [(variant, demo.recipe(variant, seed, STEPS[scale])) for seed in SEEDS[scale] for variant in demo.TWINS]


def measure(name: str, run: Run) -> list[dict[str, Cell]]:
    """One row: losses, sinks and norms of one run."""
    subject, probe = run.subject(name), study.held_out_probe(run.recipe.data, demo.SEQUENCES)
    report = measured(subject, probe)
    first, slot, loss = report.sink(0, demo.EPSILON), report.slot_rate(demo.EPSILON), study.valid_loss(subject, probe)
    row: dict[str, Cell] = {"model": name, "seed": run.recipe.seed, "loss": loss.mean}
    row |= tabulate.cells("Sink_1", first) | {"alpha_1": report.alpha().mean().item()}
    row |= {"null alpha_1": report.null[..., 0].mean().item(), "Sink_*": slot.mean if slot else None}
    row |= {"value ratio": report.value_ratio().mean().item(), "key ratio": report.key_ratio().mean().item()}
    row |= {"residual ratio": report.residual_ratio().mean(0).max().item()}
    return [row | {f"paper {key}": value for key, value in REPORTED[name].items()}]


def note(run: Run) -> str:
    """The protocol of every row."""
    return (
        f"n={demo.SEQUENCES} held-out sequences, T={run.recipe.data.length}, no BOS, fp32, epsilon={demo.EPSILON}, "
        f"sigmoid: proxy scores; {run.recipe.steps} steps; {tabulate.BY_SEQUENCE}; paper: 60M models"
    )


def draw(table: Table) -> go.Figure:
    """Sink rate of every seed, the paper's values as hollow marks."""
    return curves.seeds(table, "Sink_1", "paper Sink_1")
