"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

import plotly.graph_objects as go

from sinkinterp.data.bos import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.token_sources import random_tokens, repeated_token
from sinkinterp.measurement.position_swap import REPORTED as REPORTED
from sinkinterp.measurement.position_swap import swap_table
from sinkinterp.plots import swaps
from sinkinterp.runs.case import Case, Model
from sinkinterp.table import Table
from sinkinterp.train.recipes import demo_recipe

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
TARGETS = (5, 10, 15, 20, 25, 30)  # t, from 1
MIN_QUERIES = 4  # that see position t, so that its importance is a mean over several queries
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/demo-softmax"],
    "full": [demo_recipe("softmax", seed) for seed in range(5)],
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
