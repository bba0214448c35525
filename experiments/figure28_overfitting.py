"""Figure 28: losses of training and of held-out sequences beside the sink, with many and with few training data."""

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import PANELS, STEP, VALID_LOSS, Panel, Run, training
from sinkinterp.table import Table

from .shared.amounts import AMOUNTS, TOYS, Amounts
from .shared.arms import OfRuns, Rows
from .shared.figures import by_seed, last_steps
from .shared.rules import MARGIN, in_most_seeds, setup
from .shared.study import Arm

TRAIN_LOSS, ALPHA, SINK = "train_loss", "alpha_1", "sink_1"  # as histories call them
COLUMNS = (STEP, TRAIN_LOSS, VALID_LOSS, ALPHA, SINK)
RISE = 0.1  # nats by which the loss of an overfitted model ends above its lowest


def arms(scope: Scope) -> Sequence[Arm]:
    """The model with all data, and those with the fewest."""
    amounts = AMOUNTS.get(scope.scale, TOYS)
    return [arm for arm in amounts.arms if arm.name in (amounts.whole.name, *amounts.few)]


def read(run: Run, scope: Scope) -> Rows:
    """A row per evaluation; the loss of training is that of the step's batch."""
    return [{column: row.get(column) for column in COLUMNS} for row in run.history().records()]


def draw(table: Table) -> go.Figure:
    """Losses and Sink_1 over steps, a line per amount of data."""
    return training(
        Table("Overfitting and the sink", table.note, table.frame), (Panel(TRAIN_LOSS, "training loss (nats)"), *PANELS)
    )


def _overfits(table: Table, model: str) -> tuple[bool | None, str]:
    """Tells if the held-out loss ends above its lowest value, and above the loss of training, by 0.1 nats."""
    runs = by_seed(table, model)
    rises = [run.numbers(VALID_LOSS)[-1] - min(run.numbers(VALID_LOSS)) for run in runs]
    gaps = [run.numbers(VALID_LOSS)[-1] - run.numbers(TRAIN_LOSS)[-1] for run in runs]
    shows = sum(rise > RISE and gap > RISE for rise, gap in zip(rises, gaps, strict=True))
    words = f"rises by {min(rises):.2f} to {max(rises):.2f} from its lowest, ends {min(gaps):+.2f} to {max(gaps):+.2f}"
    return in_most_seeds(shows, len(runs)), f"{words} beside training, nats; in {shows} of {len(runs)} seeds"


def _does_not_overfit(table: Table, model: str) -> tuple[bool | None, str]:
    shows, words = _overfits(table, model)
    return None if shows is None else not shows, words


def _stays_small(table: Table, model: str) -> tuple[bool | None, str]:
    most = [max(run.numbers(SINK)) for run in by_seed(table, model)]
    small = sum(rate <= MARGIN for rate in most)
    return in_most_seeds(small, len(most)), f"at most {min(most):.1%} to {max(most):.1%} by seed"


def _keeps_increasing(table: Table, model: str) -> tuple[bool | None, str]:
    """Whether Sink_1 is higher at the end than in the middle of the training."""
    runs = by_seed(table, model)
    pairs = [(rates[len(rates) // 2], rates[-1]) for rates in (run.numbers(SINK) for run in runs)]
    rising = sum(end > middle for middle, end in pairs)
    words = ", ".join(f"{middle:.0%} to {end:.0%}" for middle, end in pairs)
    return in_most_seeds(rising, len(pairs)), f"from the middle to the end {words}"


def _rules(amounts: Amounts) -> Sequence[Rule]:
    whole, few = amounts.whole.name, amounts.few
    return (
        *(setup(Rule(f"with {name} the model overfits", partial(_overfits, model=name))) for name in few),
        setup(Rule(f"with {whole} it does not", partial(_does_not_overfit, model=whole))),
        *(Rule(f"with {name} Sink_1 stays below 5%", partial(_stays_small, model=name)) for name in few),
        Rule(f"with {whole} Sink_1 keeps increasing", partial(_keeps_increasing, model=whole)),
    )


NOTES = "; ".join(f"at scale {scale}, {amounts.note}" for scale, amounts in AMOUNTS.items())
ROWS = OfRuns(arms, read, f"epsilon=0.3; alpha_1 and Sink_1 of held-out sequences; {NOTES}")
EXPERIMENT = Experiment(
    claim="With few data the model overfits early and its Sink_1 stays very small; with many it keeps increasing.",
    rows=ROWS,
    draw=draw,
    rules=_rules(TOYS),
    rules_at={scale: _rules(amounts) for scale, amounts in AMOUNTS.items()},
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT, Scale.PAPER),
    recipes=ROWS.recipes,
    digest=last_steps,
)
