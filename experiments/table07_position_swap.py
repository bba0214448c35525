"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sinkinterp.data.bos import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.token_sources import random_tokens, repeated_token
from sinkinterp.measurement.position_swap import REPORTED as REPORTED
from sinkinterp.measurement.position_swap import swap_table
from sinkinterp.plots import swaps
from sinkinterp.plots.columns import EDIT, INPUT, MODEL, SEED, SINK_1, SINK_T, TARGET
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.scale import Scale
from sinkinterp.runs.verdict import Above, Rule
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipes import demo_recipe

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
TARGETS = (5, 10, 15, 20, 25, 30)  # t, from 1
MIN_QUERIES = 4  # that see position t, so that its importance is a mean over several queries
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/demo-softmax"],
    Scale.DEMO: [demo_recipe("softmax", seed) for seed in range(5)],
}


def measure(case: Case, progress: Progress) -> Table:
    """Sink_1 and Sink_t under every edit on natural (where known), random and repeated inputs, without BOS."""
    case.check_positions()
    (sequences, length), vocab = case.size(), case.subject.shape.vocab
    inputs = {
        "natural": case.natural_tokens((sequences, length), Bos.NEVER, progress("reading docstrings")),
        "random": random_tokens(vocab, length, sequences),
        "repeated": repeated_token(vocab, length, sequences),
    }
    known = {name: token_set for name, token_set in inputs.items() if token_set is not None}
    swaps = swap_table(case.subject, known, targets(length), on_run=progress(f"measuring {case.subject.name}"))
    model = {"model": case.subject.name, "seed": case.seed}
    return Table(swaps.title, swaps.note, tuple({**model, **row} for row in swaps.rows))


def targets(length: int) -> list[int]:
    """The paper's t, counted from 0, that fit sequences of this length; if some do not fit, also the last that does."""
    last = length - MIN_QUERIES + 1
    fitting = [t for t in TARGETS if t <= last]
    return [t - 1 for t in dict.fromkeys(fitting if len(fitting) == len(TARGETS) else [*fitting, last])]


def draw(table: Table) -> go.Figure:
    """The swap chart of the first model."""
    first = table.rows[0]
    return swaps.swap_chart(table.where(model=first["model"], seed=first["seed"]))


def _repeated(edit: str) -> dict[str, Cell]:
    return {INPUT: "repeated", EDIT: edit}


UNTOUCHED, REPLACED, SWAPPED, CONTROL = map(_repeated, ("none", "p1 <- p_t", "p1 <-> p_t", "p_t <-> p_t+1"))
BY_TARGET = (MODEL, SEED, TARGET)
RULES: Sequence[Rule] = (
    Above("replacing p1 by p_t halves Sink_1", SINK_1, UNTOUCHED, REPLACED, factor=2.0),
    Above("swapping p1 and p_t halves Sink_1", SINK_1, UNTOUCHED, SWAPPED, factor=2.0),
    Above("after the swap Sink_t is twice that after the control", SINK_T, SWAPPED, CONTROL, 2.0, by=BY_TARGET),
    Above("the control leaves at least 90% of Sink_1", SINK_1, CONTROL, UNTOUCHED, factor=0.9),
)
