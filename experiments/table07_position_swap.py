"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Mapping

import plotly.graph_objects as go

from sinkinterp import demo
from sinkinterp.data.bos import Bos
from sinkinterp.data.probes import random_tokens, repeated_token
from sinkinterp.reproduction import Case, Model, Tell
from sinkinterp.swapping import swap_table
from sinkinterp.table import Cell, Table
from sinkinterp.views import curves

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
TARGETS = (5, 10, 15, 20, 25, 30)  # t, from 1
REPORTED: dict[str, dict[int, tuple[float, float | None]]] = {
    # Gu et al. 2025, Table 7: GPT2-XL, 100 sequences of 64 repeated tokens, epsilon=0.3; t: (Sink_1, Sink_t)
    # its last column is headed 25 a second time; taken for 30
    "none": {5: (0.6228, None)},
    "p1 <- p_t": {
        5: (0.0020, 0.0), 10: (0.0236, 0.0), 15: (0.0773, 0.0), 20: (0.1063, 0.0), 25: (0.1097, 0.0), 30: (0.1021, 0.0),
    },
    "p1 <-> p_t": {
        5: (0.0144, 0.5763), 10: (0.0373, 0.5448), 15: (0.0678, 0.5281), 20: (0.0895, 0.5170), 25: (0.0942, 0.5113),
        30: (0.0973, 0.5022),
    },
}  # fmt: skip
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/demo-softmax"],
    "full": [demo.recipe("softmax", seed) for seed in range(5)],
}
LEAST = 4  # queries that must see position t, for its importance to be a mean of some


def measure(case: Case, tell: Tell) -> Table:
    """Sink_1 and Sink_t under every edit, on repeated, random and (where it reads some) natural inputs, without BOS."""
    case.check_positions()
    (sequences, length), vocab = case.extent(), case.subject.shape.vocab
    probes = {
        "natural": case.natural((sequences, length), Bos.NEVER, tell("reading docstrings")),
        "random": random_tokens(vocab, length, sequences),
        "repeated": repeated_token(vocab, length, sequences),
    }
    given = {name: probe for name, probe in probes.items() if probe is not None}
    measured = swap_table(case.subject, given, targets(length), on_run=tell(f"measuring {case.subject.name}"))
    own = {"model": case.subject.name, "seed": case.seed}
    rows = tuple({**own, **row, **_reported(row)} for row in measured.rows)
    return Table(measured.title, f"{measured.note}; paper: GPT2-XL, repeated tokens, T=64", rows)


def targets(length: int) -> list[int]:
    """The paper's t, from 0, as far as sequences of this length go; where they end before, also the last that goes."""
    last = length - LEAST + 1
    inside = [t for t in TARGETS if t <= last]
    return [t - 1 for t in dict.fromkeys(inside if len(inside) == len(TARGETS) else [*inside, last])]


def draw(table: Table) -> go.Figure:
    """The swap chart of the first model."""
    first = table.rows[0]
    return curves.swaps(table.where(model=first["model"], seed=first["seed"]))


def _reported(row: Mapping[str, Cell]) -> dict[str, Cell]:
    same_input = REPORTED.get(str(row["edit"]), {}) if row["input"] == "repeated" else {}
    first, other = same_input.get(int(row["t"] or 0), (None, None))
    return {"paper Sink_1": first, "paper Sink_t": other}
