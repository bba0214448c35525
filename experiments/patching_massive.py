"""The first token's massive activations put from one input into another: does anything of the input come with them?"""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go
import torch

from sinkinterp.data.progress import Progress
from sinkinterp.interventions import ChangeResidual
from sinkinterp.interventions.changes import Put
from sinkinterp.measurement.patching import activations
from sinkinterp.measurement.sweep import SEEDS
from sinkinterp.metrics.estimates import intervals
from sinkinterp.metrics.residuals import LEAST
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, EDIT, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.effects import CHECK_NOTE, LEFT, LOSS_CHANGE, NONE, Effects, Runs, without
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import above, changing, checked, plus, within

CLAIM = (
    "Massive activations carry the sink and nothing of the input: another input's change nothing, those of a later "
    "token remove the sink, and a later token that is given them becomes a sink."
)
RULE = (
    "p1 <- p1 of another input: alpha_1 changes by less than .05 and the loss by less than .02 nats, where "
    "texts begin with different tokens; p1 <- later token: alpha_1 falls by at least .05; later token <- p1: the later "
    "token's alpha rises by at least .05; checks: behind the patch the first token has no "
    "edited entry above 100, or the later token has one"
)
# Sun et al. 2024 (2402.17762): massive activations act as fixed biases, whatever the input; no patch is reported
MODELS = text_models("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "openai-community/gpt2")
LATER, SEQUENCES = 9, 16  # LATER: the other position, from 0


def measure(case: Case, progress: Progress) -> Table:
    """A row per patch before every block from an entry's first; sinks are of the first position, and of the later."""
    subject = case.subject
    token_set = case.tokens(case.size(SEQUENCES), progress, case.start)
    place, n_layers = massive_dims(subject, token_set), subject.shape.n_layers
    first = min(place.onsets)
    held = activations(ChangeResidual(layers=range(n_layers), positions=[0]), subject, token_set.tokens)
    another = Put({layer: x.roll(1, 0) for layer, x in held.items()})
    order = torch.arange(token_set.tokens.shape[1])
    order[[0, LATER]] = order[[LATER, 0]]
    exchanged = Put({layer: x[:, order] for layer, x in held.items()})

    def put(values: Put, position: int, *dims: int) -> Runs:
        return [(place.with_dims(dims) if dims else place).edits(values, position, n_layers)]

    edits: dict[str, Runs] = {
        ANOTHER: put(another, 0),
        FROM_LATER: put(exchanged, 0),
        TO_LATER: put(exchanged, LATER),
        "later token <- p1, all dimensions": [
            [ChangeResidual(exchanged, layers=range(first, n_layers), positions=[LATER])]
        ],
        "control: later token <- p1, as many others": [
            run for seed in range(SEEDS) for run in put(exchanged, LATER, *place.others(seed))
        ],
    }
    effects = Effects((0, LATER), tuple(range(first, n_layers)), entries=place.entries(0))
    late = replace(effects, entries=place.entries(LATER))  # so each row says what became of the token that it edits
    on_run = progress(f"measuring {subject.name}")
    rows = effects.rows(subject, token_set, {n: runs for n, runs in edits.items() if n.startswith("p1")}, on_run)
    rows += late.rows(subject, token_set, {n: runs for n, runs in edits.items() if not n.startswith("p1")}, on_run)[1:]
    n, length = token_set.tokens.shape
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={length}, BOS {token_set.bos}, "
        f"{token_set.source}, epsilon={effects.epsilon}; {intervals(n)}; residual before every block: "
        f"{place.line()}, or others where the row says so; sinks of the layers from {first} on; the later token "
        f"is the {LATER + 1}th; another input: the sequence before; control: mean of {SEEDS} seeds; nulls: uniform "
        f"attention; {CHECK_NOTE}; loss in nats, without the predictions at the two positions; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple({**case.names, **row} for row in without(rows, "raw ", "Sink_*")))


def draw(table: Table) -> go.Figure:
    """Draws every patch's effect on the first token's sink, the later token's, and the loss, in the first model."""
    first = of_first_model(table, "Massive activations patched")
    return sweep_figure(first, EDIT, (ALPHA_1, f"alpha_{LATER + 1}", LOSS_CHANGE))


ANOTHER, FROM_LATER, TO_LATER = "p1 <- p1 of another input", "p1 <- later token", "later token <- p1"
LATER_ALPHA = f"alpha_{LATER + 1}"
RULES: Sequence[Rule] = (
    changing(
        within(
            "those of another input change the loss by less than .02 nats", LOSS_CHANGE, {EDIT: ANOTHER}, -0.02, 0.02
        ),
        LOSS_CHANGE,
        {EDIT: ANOTHER},
    ),
    checked(
        above(
            "those of a later token lower alpha_1 by .05", ALPHA_1, {EDIT: NONE}, {EDIT: FROM_LATER}, bound=plus(0.05)
        ),
        LEFT,
        {EDIT: FROM_LATER},
        high=LEAST,
    ),
    checked(
        above(
            "a later token that is given them gets .05 more",
            LATER_ALPHA,
            {EDIT: TO_LATER},
            {EDIT: NONE},
            bound=plus(0.05),
        ),
        LEFT,
        {EDIT: TO_LATER},
        low=LEAST,
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
