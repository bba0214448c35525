"""Remedies side by side: what has been proposed to end, absorb or replace sinks, trained as twins of one recipe."""

import math
from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.choices import Scale
from sinkinterp.metrics.estimates import estimate, estimate_cells
from sinkinterp.plots.theme import colour, in_words, themed
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import ALPHA_1, EXCESS, LOSS, MODEL, NULL, RESIDUAL_RATIO, SEED, SINK_1, SLOT_RATE, Table

from .shared.arms import OfRuns, Rows, held_out, means_by
from .shared.correlation import correlation
from .shared.remedy import (
    ACTIVATIONS,
    COSTS,
    EVICTED,
    EVICTED_CONTROL,
    KURTOSIS_COLUMN,
    LARGEST,
    SPEED,
    outliers_and_costs,
)
from .shared.rules import has_no_sink, has_sink, higher, number, setup
from .shared.study import SINK_1_ALONE, Arm, architecture, numbers_of

SOFTMAX = "softmax"
ENDS = (  # said to leave the first token without a sink
    "sink_token", "k_bias", "kv_bias", "off_by_one", "sink_logit", "sigmoid", "sigmoid_length", "gated",
    "gated_elements", "relu_attention", "softpick", "clipped", "differential", "elu_kernel",
)  # fmt: skip
KEEPS = ("gated_values", "qk_norm", "window", "post_norm")  # said to change outliers, or training, but not the sink
SEQUENCES, OVER = 256, "loss over softmax"
ERROR = f"error, {ACTIVATIONS['tensor']}"
GO_TOGETHER = ((EVICTED, ALPHA_1), (f"loss, {ACTIVATIONS['tensor']}", RESIDUAL_RATIO))
CLOSE = 0.8
SHOWN = (SINK_1, ALPHA_1, NULL, SLOT_RATE, SINK_1_ALONE, RESIDUAL_RATIO)


def arms(scope: Scope) -> Sequence[Arm]:
    """The baseline and its twins."""
    return [architecture(name) for name in (SOFTMAX, *ENDS, *KEEPS)]


def read(run: Run, scope: Scope) -> Rows:
    """Returns what a study says of a run, and its outliers and what quantisation and eviction cost it."""
    token_set = held_out(run, scope, SEQUENCES)
    numbers = numbers_of(run, token_set)
    subject = HuggingFaceSubject(load_model(run.folder), run.recipe.key())
    return [numbers | outliers_and_costs(subject, token_set.tokens)]


def digest(table: Table) -> Table:
    """A row per method: the mean over seeds of every quantity, and of the loss over softmax's with its interval."""
    baseline = {row[SEED]: row[LOSS] for row in table.where(**{MODEL: SOFTMAX}).records()}
    shown = [*SHOWN, KURTOSIS_COLUMN, LARGEST, *COSTS, EVICTED, EVICTED_CONTROL, SPEED]
    means, rows = means_by(table, MODEL, shown), []
    for row in means.records():
        runs = table.where(**{MODEL: row[MODEL]}).records()
        over = torch.tensor([number(run[LOSS]) - number(baseline[run[SEED]]) for run in runs])
        rows.append({MODEL: row[MODEL], **estimate_cells(OVER, estimate(over)), **row})
    return Table.of(table.title, f"the interval of the loss: over seeds; {means.note}", tuple(rows))


def draw(table: Table) -> go.Figure:
    """Loss against outliers, a mark per method; then what two costs go with, a mark per trained model."""
    figure = make_subplots(2, 2, specs=[[{"colspan": 2}, None], [{}, {}]], vertical_spacing=0.13)
    _draw_trade(figure, digest(table))
    for column, (cost, cause) in enumerate(GO_TOGETHER, 1):
        points = [(number(row[cause]), number(row[cost]), f"{row[MODEL]}, seed {row[SEED]}") for row in table.records()]
        xs, ys, names = zip(*points, strict=True)
        marks = {"size": 7, "color": colour(0), "opacity": 0.7}
        figure.add_scatter(x=xs, y=ys, text=names, mode="markers", marker=marks, showlegend=False, row=2, col=column)
        figure.update_xaxes(title=cause, row=2, col=column)
        figure.update_yaxes(title=f"nats: {cost}", row=2, col=column)
    above = "Above, left and down is better: a lower loss, and activations that int8 holds better; mean over seeds."
    themed(figure, table.title, 1000, f"{above} Below, a mark is a trained model. {table.note}")
    return figure.update_layout(legend={"x": 0.01, "y": 0.99, "yanchor": "top"})


def _draw_trade(figure: go.Figure, methods: Table) -> None:
    """Loss against the error of int8; the line joins and names the methods that no other beats in both."""
    points = [(number(row[OVER]), number(row[ERROR]), str(row[MODEL])) for row in methods.records()]
    known = sorted(point for point in points if math.isfinite(point[0]) and math.isfinite(point[1]))
    best = [point for i, point in enumerate(known) if all(point[1] < other[1] for other in known[:i])]
    xs, ys, names = zip(*known, strict=True)
    figure.add_scatter(
        x=xs, y=ys, mode="markers", marker={"size": 9, "color": colour(0)}, text=names, showlegend=False, row=1, col=1
    )
    xs, ys, names = zip(*best, strict=True)
    look = {"line": {"color": colour(1), "dash": "dot"}, "textposition": "bottom left", "cliponaxis": False}
    words = [f"{in_words(name)}\u2002" for name in names]  # a space keeps them off their marks
    figure.add_scatter(x=xs, y=ys, text=words, mode="lines+text", name="not beaten", **look, row=1, col=1)
    room = 0.2 * (known[-1][0] - known[0][0])  # for the names to the left
    ends = [known[0][0] - room, known[-1][0] + room / 4]
    figure.update_xaxes(title="loss over softmax, nats a token", range=ends, row=1, col=1)
    error = "relative squared error of int8<br>activations, one scale a text"
    figure.update_yaxes(title=error, type="log", dtick="D2", tickformat=".0e", row=1, col=1)


def _goes_with(table: Table, cost: str, cause: str, other: str) -> tuple[bool | None, str]:
    found = {name: correlation(table, name, cost) for name in (cause, other)}
    words = ", ".join(f"{r.mean:.2f} [{r.low:.2f}, {r.high:.2f}] with {name}" for name, r in found.items())
    r = found[cause]
    shows = True if r.low >= CLOSE else False if r.high < CLOSE else None
    return shows, f"r = {words}, over {len(table.frame)} models; intervals over methods"


def _higher(quantity: str, than: str, margin: float) -> Rule:
    return higher(SOFTMAX, than=than, quantity=quantity, margin=margin)


RULES: tuple[Rule, ...] = (  # written before the columns of outliers, int8 and eviction were seen of any model
    setup(has_sink(SOFTMAX)),
    *(has_no_sink(name, baseline=SOFTMAX) for name in ENDS),
    *(has_sink(name, baseline=SOFTMAX) for name in KEEPS),
    _higher(EXCESS, "gated_values", 0.05),  # a gate of values halves the sink: .467 to .297 in arXiv:2505.06708
    *(_higher(EVICTED, name, 0.02) for name in ("gated", "gated_elements", "sink_logit", "k_bias", "sink_token")),
    *(_higher(KURTOSIS_COLUMN, name, 0.05) for name in ("gated", "gated_elements", "gated_values", "off_by_one")),
    *(  # written after 13 methods had been seen on text
        Rule(
            f"{cost} goes with {cause} over all models: r is at least {CLOSE}",
            partial(_goes_with, cost=cost, cause=cause, other=GO_TOGETHER[1 - i][1]),
        )
        for i, (cost, cause) in enumerate(GO_TOGETHER)
    ),
)
ROWS = OfRuns(
    arms,
    read,
    "n={n} held-out sequences, at most their first 64 tokens, fp32, epsilon=0.3; int8: symmetric, scale from "
    "the largest magnitude of a text, or of a weight; eviction: from a cache of half the text, loss once full over "
    "the full cache; kurtosis and residual ratio: of the block where they are largest; "
    "tokens a second: forward passes, on a machine with other work; intervals of rows: over sequences",
    SEQUENCES,
)
EXPERIMENT = Experiment(
    claim="Remedies end the sink of the first token, and with it outliers, at no cost in loss.",
    rows=ROWS,
    draw=draw,
    rules=RULES,
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=ROWS.recipes,
    digest=digest,
)
