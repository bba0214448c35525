"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

import plotly.graph_objects as go

from sinkinterp.data.bos import Bos
from sinkinterp.data.tokens import random_tokens, repeated_token
from sinkinterp.measurement.position_swap import REPORTED as REPORTED
from sinkinterp.measurement.position_swap import swap_table
from sinkinterp.plots import curves
from sinkinterp.runs.experiment import Case, Model, Tell
from sinkinterp.table import Table
from sinkinterp.train.recipes import demo_recipe

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
TARGETS = (5, 10, 15, 20, 25, 30)  # t, from 1
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/demo-softmax"],
    "full": [demo_recipe("softmax", seed) for seed in range(5)],
}
LEAST = 4  # queries that must see position t, for its importance to be a mean of some


def measure(case: Case, tell: Tell) -> Table:
    """Sink_1 and Sink_t under every edit, on repeated, random and (where it reads some) natural inputs, without BOS."""
    case.check_positions()
    (sequences, length), vocab = case.extent(), case.subject.shape.vocab
    token_sets = {
        "natural": case.natural((sequences, length), Bos.NEVER, tell("reading docstrings")),
        "random": random_tokens(vocab, length, sequences),
        "repeated": repeated_token(vocab, length, sequences),
    }
    given = {name: token_set for name, token_set in token_sets.items() if token_set is not None}
    measured = swap_table(case.subject, given, targets(length), on_run=tell(f"measuring {case.subject.name}"))
    own = {"model": case.subject.name, "seed": case.seed}
    return Table(measured.title, measured.note, tuple({**own, **row} for row in measured.rows))


def targets(length: int) -> list[int]:
    """The paper's t, from 0, as far as sequences of this length go; where they end before, also the last that goes."""
    last = length - LEAST + 1
    inside = [t for t in TARGETS if t <= last]
    return [t - 1 for t in dict.fromkeys(inside if len(inside) == len(TARGETS) else [*inside, last])]


def draw(table: Table) -> go.Figure:
    """The swap chart of the first model."""
    first = table.rows[0]
    return curves.swaps(table.where(model=first["model"], seed=first["seed"]))
