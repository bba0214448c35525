"""Figures 7 (middle) and 8: residual norms by block in models with slots, and the sink token's own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go
import torch

from sinkinterp.backends.model_files import load_model
from sinkinterp.data.choices import Scale
from sinkinterp.lm.model import SinkForCausalLM
from sinkinterp.measurement.measure import measure
from sinkinterp.plots.theme import sweep_figure, unique_values
from sinkinterp.report.norms import OTHER_TOKENS, RATIO, residual_norms_by_block
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import BLOCK, MODEL, SEED, Cell, Table

from .shared.arms import OfRuns, Rows, held_out
from .shared.rules import in_most_seeds
from .shared.study import Arm, architecture, device_of

NAMES = ("softmax", "sink_token", "kv_bias", "k_bias", "v_bias")
SEQUENCES = 100
SINK_TOKEN = "ratio of the sink token"


def arms(scope: Scope) -> Sequence[Arm]:
    """The models of Table 4."""
    return [architecture(name) for name in NAMES]


def read(run: Run, scope: Scope) -> Rows:
    """A row per block: norms of the first token and of the others, their ratio, and that of a sink token."""
    token_set = held_out(run, scope, SEQUENCES)
    report = measure(run.subject(device=device_of(run.recipe)), token_set, positions=(0,))
    rows = residual_norms_by_block({"": report}).records()
    return [
        {**{name: cell for name, cell in row.items() if name != MODEL}, SINK_TOKEN: star}
        for row, star in zip(rows, _sink_token(run, rows), strict=True)
    ]


@torch.no_grad()
def _sink_token(run: Run, rows: Rows) -> list[Cell]:
    """The norm of the sink token's residual over the mean norm of later tokens, by block; None without a sink token."""
    model = load_model(run.folder)
    assert isinstance(model, SinkForCausalLM)
    token: Any = model.model.before
    layers, position = model.model.layers, model.model.position
    if not hasattr(token, "stream"):
        return [None] * len(rows)
    ids = torch.zeros(1, 1, dtype=torch.long)
    stream = torch.cat([position.embed(token.weight, ids)[0], token.stream(layers, position)])
    norms = stream.norm(dim=-1).tolist()
    return [norm / float(row[OTHER_TOKENS] or 1) for norm, row in zip(norms, rows, strict=True)]


def draw(table: Table) -> go.Figure:
    """Both ratios by block, a line per model, of seed 0."""
    first = Table("Residual norms with slots", f"seed 0; {table.note}", table.where(**{SEED: 0}).frame)
    figure = sweep_figure(first, BLOCK, (RATIO, SINK_TOKEN), MODEL)
    figure.update_yaxes(title_text="first token's norm over the others'", col=1)
    return figure.update_yaxes(title_text="sink token's norm over the others'", col=2)


def _largest(table: Table, model: str, column: str) -> list[float]:
    """The largest ratio over blocks of every seed of a model."""
    runs = table.where(**{MODEL: model})
    return [max(runs.where(**{SEED: seed}).numbers(column)) for seed in unique_values(runs, SEED)]


def _is_above(table: Table, of: str, than: str, column: str = RATIO, factor: float = 1.0) -> tuple[bool | None, str]:
    """Tells if the largest ratio is above `factor` times that of the other model, seed by seed."""
    high, low = _largest(table, of, column), _largest(table, than, RATIO)
    above = sum(one > factor * other for one, other in zip(high, low, strict=True))
    words = f"{min(high):.2f} to {max(high):.2f} against {min(low):.2f} to {max(low):.2f}"
    return in_most_seeds(above, len(high)), f"{words}; in {above} of {len(high)} seeds"


RULES: Sequence[Rule] = (
    *(
        Rule(
            f"the first token's ratio is larger with softmax than with {name}",
            partial(_is_above, of="softmax", than=name),
        )
        for name in ("kv_bias", "k_bias", "sink_token")
    ),
    Rule(
        "with v_bias it is at least half of that with softmax",
        partial(_is_above, of="v_bias", than="softmax", factor=0.5),
    ),
    Rule(
        "the sink token's ratio is larger than that of the first token",
        partial(_is_above, of="sink_token", than="sink_token", column=SINK_TOKEN),
    ),
)
ROWS = OfRuns(
    arms,
    read,
    "n={n} held-out sequences, at most their first 64 tokens, fp32; ratio: norm of the first "
    "token's residual over the mean norm of later tokens, with its interval over sequences; null of the ratio: 1; "
    "block 0 is the embedding, block b the output of layer b - 1",
    SEQUENCES,
)
EXPERIMENT = Experiment(
    claim="Massive activations stand on the first token with softmax and with V biases, on the sink token where there "
    "is one, and nowhere with K biases and KV biases.",
    rows=ROWS,
    draw=draw,
    rules=RULES,
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT, Scale.PAPER),
    recipes=ROWS.recipes,
)
