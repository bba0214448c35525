"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

import plotly.graph_objects as go

from sinkinterp import demo, tabulate
from sinkinterp.study import Run
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipe import Recipe
from sinkinterp.views import curves

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
REPORTED = demo.PAPER
SEEDS = {"smoke": (0,), "full": (0, 1, 2, 3, 4)}
STEPS = {"smoke": 40, "full": demo.STEPS}


def runs(scale: str) -> list[tuple[str, Recipe]]:
    """The softmax model on every seed."""
    return [("softmax", demo.recipe("softmax", seed, STEPS[scale])) for seed in SEEDS[scale]]


def measure(name: str, run: Run) -> list[dict[str, Cell]]:
    """Sink_1 and Sink_t under every edit, on natural, random and repeated inputs."""
    rows = demo.swap_table(run.subject(name), run.recipe.data).rows
    return [{"seed": run.recipe.seed, **row} for row in rows]


def note(run: Run) -> str:
    """The protocol of every row."""
    return (
        f"n={demo.SEQUENCES} a row, T={run.recipe.data.length}, no BOS, fp32, epsilon={demo.EPSILON}; "
        f"t from 1; {run.recipe.steps} steps; {tabulate.BY_SEQUENCE}; "
        "the paper's numbers are GPT2-XL's on repeated tokens at T=64"
    )


def draw(table: Table) -> go.Figure:
    """The swap chart of the first seed."""
    return curves.swaps(table.where(seed=table.rows[0]["seed"]))
