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
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.case import Case
from sinkinterp.runs.experiment import Rule, of_first_model, on_models
from sinkinterp.table import ALPHA_1, EDIT, Table

from .shared.effects import LOSS_CHANGE, NONE, Effects, Runs, without
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import above, plus, within

CLAIM = (
    "Massive activations carry the sink and nothing of the input: another input's change nothing, those of a later "
    "token remove the sink, and a later token that is given them becomes a sink."
)
RULE = (
    "p1 <- p1 of another input: alpha_1 changes by less than .05 and the loss by less than .02 nats; p1 <- later "
    "token: alpha_1 falls by at least .05; later token <- p1: the later token's alpha rises by at least .05"
)
# Sun et al. 2024 (2402.17762): massive activations act as fixed biases, whatever the input; no patch is reported
MODELS = text_models("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "openai-community/gpt2")
LATER = 9  # the other position, from 0


def measure(case: Case, progress: Progress) -> Table:
    """A row per patch; sinks are of the first position, and of the later one."""
    subject = case.subject
    token_set = case.tokens(case.size(), progress, case.start)
    place = massive_dims(subject, token_set)
    site = ChangeResidual(layers=[place.onset], positions=[0])
    ((layer, x),) = activations(site, subject, token_set.tokens).items()
    another, exchanged = x.roll(1, 0), x.clone()
    exchanged[:, [0, LATER]] = x[:, [LATER, 0]]

    def put(values: torch.Tensor, positions: Sequence[int], dims: Sequence[int] | None = place.dims) -> Runs:
        return [[replace(site, operation=Put({layer: values}), positions=positions, dims=dims)]]

    others = [dim for dim in range(x.shape[-1]) if dim not in place.dims]
    edits: dict[str, Runs] = {
        ANOTHER: put(another, [0]),
        "p1 <- p1 of another input, all dimensions": put(another, [0], None),
        FROM_LATER: put(exchanged, [0]),
        TO_LATER: put(exchanged, [LATER]),
        "later token <- p1, all dimensions": put(exchanged, [LATER], None),
        "later token <- p1, all other dimensions": put(exchanged, [LATER], others),
        "control: later token <- p1, as many others": [
            run for seed in range(SEEDS) for run in put(exchanged, [LATER], place.others(seed))
        ],
    }
    effects = Effects(positions=(0, LATER), layers=tuple(range(place.onset, subject.shape.n_layers)))
    rows = effects.rows(subject, token_set, edits, progress(f"measuring {subject.name}"))
    n, length = token_set.tokens.shape
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={length}, BOS {token_set.bos}, "
        f"{token_set.source}, epsilon={effects.epsilon}; {intervals(n)}; residual before block {place.onset}: "
        f"{place.line()}, or others where the row says so; sinks of the layers from {place.onset} on; the later token "
        f"is the {LATER + 1}th; another input: the sequence before; control: mean of {SEEDS} seeds; nulls: uniform "
        f"attention; loss in nats, without the predictions at the two positions; rule: {RULE}"
    )
    names = case.names
    return Table.of(CLAIM, note, tuple({**names, **row} for row in without(rows, "raw ", "Sink_*")))


def draw(table: Table) -> go.Figure:
    """Draws every patch's effect on the first token's sink, the later token's, and the loss, in the first model."""
    first = of_first_model(table, "Massive activations patched")
    return sweep_figure(first, EDIT, (ALPHA_1, f"alpha_{LATER + 1}", LOSS_CHANGE))


ANOTHER, FROM_LATER, TO_LATER = "p1 <- p1 of another input", "p1 <- later token", "later token <- p1"
LATER_ALPHA = f"alpha_{LATER + 1}"
RULES: Sequence[Rule] = (
    within("those of another input change the loss by less than .02 nats", LOSS_CHANGE, {EDIT: ANOTHER}, -0.02, 0.02),
    above("those of a later token lower alpha_1 by .05", ALPHA_1, {EDIT: NONE}, {EDIT: FROM_LATER}, bound=plus(0.05)),
    above(
        "a later token that is given them gets .05 more", LATER_ALPHA, {EDIT: TO_LATER}, {EDIT: NONE}, bound=plus(0.05)
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
