"""Rounded caches: what keys and values of four bits cost with a sink and without, and what the first token gains."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkinterp.applications.quantising import (
    ALL,
    BUT_FIRST,
    BUT_SECOND,
    CACHE_GRAINS,
    CHANGE,
    ROUNDED,
    SCALES,
    cache_table,
)
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.choices import Scale
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.estimates import Estimate, estimate_cells
from sinkinterp.plots.theme import GREY, colour, themed, unique_values
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import ADDED, ALPHA_1, MODEL, NULL, RESIDUAL_RATIO, SEED, Cell, Table, high_of, low_of

from .shared.arms import OfRuns, Rows, held_out, means_by
from .shared.correlation import correlation
from .shared.rules import above, number
from .shared.study import Arm, architecture

SOFTMAX = "softmax"
NAMES = (  # of the remedies, those whose models on text there are
    SOFTMAX, "sink_token", "k_bias", "kv_bias", "off_by_one", "sink_logit", "sigmoid", "gated", "gated_elements",
    "relu_attention", "softpick", "clipped", "qk_norm", "post_norm",
)  # fmt: skip
SEQUENCES, BITS = 256, 4
FIRST, SECOND = "gain of sparing the first token", "gain of sparing the second token"
HEAD = next(iter(CACHE_GRAINS))
CLOSE, APART = 0.8, 0.5


def arms(scope: Scope) -> Sequence[Arm]:
    """Softmax and its twins."""
    return [architecture(name) for name in NAMES]


def read(run: Run, scope: Scope) -> Rows:
    """A row for each way to share a scale: what rounding costs, and how much less with one token as it is."""
    token_set = held_out(run, scope, SEQUENCES)
    subject = HuggingFaceSubject(load_model(run.folder), run.recipe.key())
    report = measure(subject, token_set, positions=(0,))
    about: dict[str, Cell] = {
        ALPHA_1: report.alpha().mean().item(),
        NULL: report.null_alpha().mean().item(),
        RESIDUAL_RATIO: report.residual_ratio().mean(0).max().item(),
    }
    costs = cache_table(subject, token_set.tokens, bits=(BITS,))
    return [{SCALES: scales, **about, **_cells(costs.where(**{SCALES: scales}))} for scales in CACHE_GRAINS]


def _cells(costs: Table) -> dict[str, Cell]:
    rows = {row[ROUNDED]: row for row in costs.records()}
    cells = {name: rows[ALL][name] for name in (ADDED, low_of(ADDED), high_of(ADDED))}
    for column, spared in ((FIRST, BUT_FIRST), (SECOND, BUT_SECOND)):
        change = [number(rows[spared][name]) for name in (CHANGE, high_of(CHANGE), low_of(CHANGE))]
        cells |= estimate_cells(column, Estimate(*(-end for end in change)))
    return cells


def digest(table: Table) -> Table:
    """A row per model and way to share a scale: means over seeds."""
    rows = [
        {SCALES: scales, **row}
        for scales in unique_values(table, SCALES)
        for row in means_by(table.where(**{SCALES: scales}), MODEL, (ALPHA_1, ADDED, FIRST, SECOND)).records()
    ]
    return Table.of(table.title, f"means over seeds; {table.note}", tuple(rows))


def draw(table: Table) -> go.Figure:
    """Draws the cost of rounding, and the gain of one unrounded token, against alpha_1; a mark per trained model."""
    rows = table.where(**{SCALES: HEAD}).records()
    figure = make_subplots(1, 2, subplot_titles=("what rounding costs", "what sparing a token gains"))
    for quantity, column, shade in ((ADDED, 1, colour(0)), (FIRST, 2, colour(1)), (SECOND, 2, GREY)):
        marks = {"mode": "markers", "marker": {"size": 7, "color": shade}, "name": quantity}
        names = [f"{row[MODEL]}, seed {row[SEED]}" for row in rows]
        x, y = ([number(row[name]) for row in rows] for name in (ALPHA_1, quantity))
        figure.add_scatter(x=x, y=y, text=names, **marks, row=1, col=column)
    figure.update_xaxes(title=ALPHA_1).update_yaxes(title="nats a token", col=1)
    return themed(figure, table.title, 460, f"A mark is a trained model; one scale for each {HEAD}. {table.note}")


def _gain_follows_the_sink(table: Table) -> tuple[bool | None, str]:
    rows = table.where(**{SCALES: HEAD})
    first, second = (correlation(rows, ALPHA_1, gain) for gain in (FIRST, SECOND))
    shows = True if first.low >= CLOSE else False if first.high < CLOSE else None
    others = [name for name in unique_values(table, SCALES) if name != HEAD]
    finer = [f"; for each {name} {correlation(table.where(**{SCALES: name}), ALPHA_1, FIRST)}" for name in others]
    said = f"r = {first}, with the second token {second}, over {len(rows.frame)} models"
    return shows, f"{said}{''.join(finer)}; intervals over methods"


def _cost_does_not(table: Table) -> tuple[bool | None, str]:
    rows = table.where(**{SCALES: HEAD})
    r = correlation(rows, ALPHA_1, ADDED)
    shows = True if r.high < APART else False if r.low >= APART else None
    norms = correlation(rows, RESIDUAL_RATIO, ADDED)
    return shows, f"r = {r}, with the {RESIDUAL_RATIO} {norms}, over {len(rows.frame)} models; intervals over methods"


SPARED = {MODEL: SOFTMAX, SCALES: HEAD}
ROWS = OfRuns(
    arms,
    read,
    "n={n} held-out sequences, at most their first 64 tokens, fp32; keys and values as integers of "
    f"{BITS} bits, scales of each text; added loss: over the full cache, whose null is 0; gain: how much less that is "
    "where one token is not rounded, paired; null: uniform attention; intervals of rows: over sequences",
    SEQUENCES,
)
EXPERIMENT = Experiment(
    claim="What rounding a cache costs does not follow the sink; what sparing the first token gains does.",
    rows=ROWS,
    draw=draw,
    rules=(  # written after the models on text had been seen, before the toys
        Rule(f"the gain of the first token goes with {ALPHA_1}: r of {CLOSE} or more", _gain_follows_the_sink),
        Rule(f"what rounding costs does not go with {ALPHA_1}: r below {APART}", _cost_does_not),
        above("in softmax the first token gains more than the second", FIRST, SPARED, SPARED, other_column=SECOND),
    ),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=ROWS.recipes,
    digest=digest,
)
