"""Spikes without sinks: which blocks keep the sink and lose the massive activation, and which heads do the opposite?"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.lm.block import FFN, GatedFFN, UpdateNorm
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.estimates import mean_cells
from sinkinterp.metrics.residuals import PEAK_OVER_MEDIAN
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import ALPHA_1, LOSS, MODEL, SEED, SINK_1, Table
from sinkinterp.train.recipe import Recipe, with_variant

from .shared.arms import OfRuns, Rows, held_out, means_by
from .shared.rules import above, has_sink, higher, setup, times
from .shared.study import Arm, device_of, numbers_of, setting

D_MODEL = 64  # so that one head is as wide as heads are in large models, and eight are of eight numbers
STEPS = 2000  # at most: a third of those of other models of text, which are half as wide
SEQUENCES = 256
SPIKE = "largest entry / median"
TODAY, UPDATES, STREAM, QK = "pre_norm", "norm of updates", "norm of the residual", "qk_norm"
HEADS = {2: "2 heads of 32", 4: "4 heads of 16", 8: "8 heads of 8"}


def wide(recipe: Recipe) -> Recipe:
    """The recipe with one head of 64 numbers, wider feed-forward layers in proportion, and fewer steps."""
    model = recipe.model
    assert isinstance(model.ffn, FFN | GatedFFN)
    ffn = replace(model.ffn, width=model.ffn.width * D_MODEL // model.d_model)
    wider = replace(model, d_model=D_MODEL, n_heads=1, ffn=ffn)
    return replace(recipe, model=wider, steps=min(recipe.steps, STEPS))


def _with(name: str) -> Callable[[Recipe], Recipe]:
    return lambda recipe: with_variant(wide(recipe), name)


def _with_norm_of_updates(recipe: Recipe) -> Recipe:
    base = wide(recipe)
    return replace(base, model=replace(base.model, branch=UpdateNorm()))


ARMS: Sequence[Arm] = (
    setting(TODAY, wide),
    setting(UPDATES, _with_norm_of_updates),
    setting(STREAM, _with("post_norm")),
    setting(QK, _with("qk_norm")),
    *(setting(name, _with(f"heads_{n}")) for n, name in HEADS.items()),
)


def read(run: Run, scope: Scope) -> Rows:
    """A row: the numbers of a study, and the largest residual entry over the median one, where that is most."""
    token_set = held_out(run, scope, SEQUENCES)
    report = measure(run.subject(device=device_of(run.recipe)), token_set, instruments=[(PEAK_OVER_MEDIAN,)])
    spikes = report.extra(PEAK_OVER_MEDIAN).amax(1)
    return [{**numbers_of(run, token_set), **mean_cells(SPIKE, spikes)}]


def draw(table: Table) -> go.Figure:
    """alpha_1 and the largest entry of every model, a dot for each seed."""
    titled = Table("Spikes and sinks", table.note, table.frame)
    return sweep_figure(titled, MODEL, (ALPHA_1, SPIKE), by=SEED)


def in_short(table: Table) -> Table:
    """The mean over seeds of every model's sink, spike and loss."""
    return means_by(table, MODEL, (SINK_1, SPIKE, LOSS))


def _spike(claim: str, of: str, than: str, factor: float) -> Rule:
    return above(claim, SPIKE, {MODEL: of}, {MODEL: than}, by=(SEED,), bound=times(factor))


RULES: Sequence[Rule] = (
    setup(has_sink(TODAY)),
    *(has_sink(name, baseline=TODAY) for name in (UPDATES, STREAM, QK)),
    _spike("the largest entry is twice as large with today's block as with norms of updates", TODAY, UPDATES, 2.0),
    _spike("it is twice as large as with a norm of the residual", TODAY, STREAM, 2.0),
    _spike("QK norm keeps it: it is half as large or more", QK, TODAY, 0.5),
    *(higher(TODAY, than=name) for name in HEADS.values()),
    _spike("eight narrow heads keep it: it is half as large or more", HEADS[8], TODAY, 0.5),
)
ROWS = OfRuns(
    lambda scope: ARMS,
    read,
    f"n={{n}} held-out sequences, fp32, epsilon=0.3; all models here: d_model {D_MODEL}, one head unless named; "
    "norm of updates: x + norm(f(x)); norm of the residual: norm(x + f(x)) after each part; largest entry: over the "
    "median one of a sequence, in the block where it is most, mean over sequences with its interval",
    SEQUENCES,
)
EXPERIMENT = Experiment(
    claim="A norm of updates or of the residual takes the massive activation away and leaves the sink; narrow heads "
    "weaken the sink and leave the massive activation.",
    rows=ROWS,
    draw=draw,
    rules=RULES,
    scales=(Scale.SMOKE, Scale.TEXT),
    recipes=ROWS.recipes,
    digest=in_short,
    default_scale=lambda: Scale.TEXT,
)
