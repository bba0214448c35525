"""Massive activations of the first token set to zero or to their mean: what becomes of the sink and of the loss."""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go
import torch

from sinkinterp.data.progress import Progress
from sinkinterp.interventions import Change, ChangeResidual, Zero
from sinkinterp.interventions.changes import Add
from sinkinterp.measurement.patching import Activations, activations, mean_patch
from sinkinterp.measurement.sweep import SEEDS
from sinkinterp.metrics.estimates import intervals
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.case import Case
from sinkinterp.runs.experiment import Rule, of_first_model, on_models
from sinkinterp.table import ALPHA_1, EDIT, SINK_1, Table

from .shared.effects import LOSS_CHANGE, NONE, Effects, Runs, without
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import above, of_each, plus, within

CLAIM = (
    "Setting the first token's massive activations to zero removes the sink and breaks the model; setting them to "
    "their mean over inputs changes nothing."
)
RULE = (
    "to zero: alpha_1 falls by at least .05 more than under either control, and the loss rises by at least .02 nats "
    "more than with as many others at zero; to their mean: alpha_1 changes by less than .05 and the loss by less than "
    ".02 nats"
)
# Sun et al. 2024 (2402.17762), LLaMA2-7B: perplexity on WikiText: 5.47, to zero infinite, to the mean 5.47
MODELS = text_models("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "openai-community/gpt2")
TO_ZERO, TO_MEAN = "massive entries to zero", "massive entries to their mean"
CONTROLS = ("control: others to zero", "control: as much added to others")


def measure(case: Case, progress: Progress) -> Table:
    """A row per edit of the first token before the block where its massive activations begin."""
    subject = case.subject
    token_set = case.tokens(case.size(), progress, case.start)
    place = massive_dims(subject, token_set)
    site = ChangeResidual(layers=[place.onset], positions=[0], dims=place.dims)
    zero = replace(site, operation=Zero())
    held = activations(site, subject, token_set.tokens)
    others = [place.others(seed) for seed in range(SEEDS)]
    edits: dict[str, Runs] = {
        TO_ZERO: [[zero]],
        TO_MEAN: [[mean_patch(site, subject, token_set.tokens)]],
        CONTROLS[0]: [[replace(zero, dims=dims)] for dims in others],
        CONTROLS[1]: [[_as_much(site, dims, held)] for dims in others],
    }
    layers = tuple(range(place.onset, subject.shape.n_layers))
    rows = Effects(layers=layers).rows(subject, token_set, edits, progress(f"measuring {subject.name}"))
    n, length = token_set.tokens.shape
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={length}, BOS {token_set.bos}, "
        f"{token_set.source}, epsilon=0.3; {intervals(n)}; edits of position 0 before block {place.onset}: "
        f"{place.line()}; sinks of the layers from {place.onset} on; controls: as many other dimensions of that "
        f"position, mean of {SEEDS} seeds; loss in nats, without the prediction at position 0; rule: {RULE}"
    )
    names = case.names
    return Table.of(CLAIM, note, tuple({**names, **row} for row in without(rows, "raw ", "Sink_*")))


def draw(table: Table) -> go.Figure:
    """Returns the sink under every edit, and the loss that it adds, in the first model."""
    first = of_first_model(table, "Massive activations removed")
    return sweep_figure(first, EDIT, (SINK_1, ALPHA_1, LOSS_CHANGE))


def _as_much(site: Change, dims: tuple[int, ...], held: Activations) -> Change:
    """The mean values of the massive dimensions, added to other dimensions."""
    ((layer, x),) = held.items()
    added = torch.zeros_like(x[:1])
    added[0, 0, list(dims)] = x[:, 0, list(site.dims or ())].mean(0)
    return replace(site, operation=Add({layer: added}), dims=dims)


def _keeps_sink(table: Table) -> tuple[bool | None, str]:
    before, after = (table.where(**{EDIT: name}).numbers(ALPHA_1)[0] for name in (NONE, TO_MEAN))
    return abs(after - before) < 0.05, f"{before:.3f} before, {after:.3f} after"


_FALLS, _COSTS = (
    "to zero: alpha_1 falls by .05 more than under {}",
    "to zero: the loss rises by .02 nats more than under {}",
)
RULES: Sequence[Rule] = (
    *(above(_FALLS.format(name), ALPHA_1, {EDIT: name}, {EDIT: TO_ZERO}, bound=plus(0.05)) for name in CONTROLS),
    above(_COSTS.format(CONTROLS[0]), LOSS_CHANGE, {EDIT: TO_ZERO}, {EDIT: CONTROLS[0]}, bound=plus(0.02)),
    within("to their mean: the loss changes by less than .02 nats", LOSS_CHANGE, {EDIT: TO_MEAN}, -0.02, 0.02),
    of_each(Rule("to their mean: alpha_1 changes by less than .05", _keeps_sink)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
