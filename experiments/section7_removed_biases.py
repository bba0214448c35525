"""Section 7.3: a learned key, KV biases or a sink token taken away after training, beside a random key in its place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go
import torch
from typing_extensions import override

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.slots import SlotRow
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Scale
from sinkinterp.interventions import Edit, RemoveKeySlot
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import EDIT, LOSS, MODEL, SINK_1, Table

from .shared.arms import OfRuns, Rows, held_out
from .shared.effects import LOSS_CHANGE, Effects, Runs, without
from .shared.rules import above, times, within
from .shared.study import Arm, architecture, by_model, device_of

SLOTS = {"k_bias": "K biases", "kv_bias": "KV biases", "sink_token": "a sink token"}
REMOVED, RANDOM = "removed", "control: a random key"
DRAWS = 3  # random keys; the mean over them counts
COST = 0.05  # nats of loss that count as a significant drop of performance
SEQUENCES = 256


@dataclass(frozen=True)
class RandomKey(Edit):
    """Another key in the slot of every head: of the same length, in a random direction; the value stays."""

    seed: int

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not isinstance(call.slot, SlotRow):
            raise InputError(f"layer {call.layer} has no key slot; take a model with K biases")
        key = call.slot.key
        rng = torch.Generator().manual_seed(1000 * self.seed + call.layer)
        drawn = torch.randn(key.shape, generator=rng).to(key)
        return replace(call, slot=SlotRow(drawn * (key.norm(dim=-1) / drawn.norm(dim=-1))[..., None], call.slot.value))


def arms(scope: Scope) -> Sequence[Arm]:
    """The models with a slot."""
    return [architecture(name, called) for name, called in SLOTS.items()]


def read(run: Run, scope: Scope) -> Rows:
    """A row per edit: sinks, loss, and the change of the loss by sequence, with its interval."""
    token_set = held_out(run, scope, SEQUENCES)
    edits: dict[str, Runs] = {REMOVED: [[RemoveKeySlot()]], RANDOM: [[RandomKey(seed)] for seed in range(DRAWS)]}
    rows = Effects().rows(run.subject(device=device_of(run.recipe)), token_set, edits)
    return without(rows, "raw", "empty")


def draw(table: Table) -> go.Figure:
    """Loss and Sink_1 by model and edit, a mark per seed."""
    rows = tuple({**row, MODEL: f"{row[MODEL]}, {str(row[EDIT]).removeprefix('control: ')}"} for row in table.records())
    return by_model(Table.of("What a slot is worth after training", table.note, rows), (LOSS, SINK_1))


def _rules(name: str) -> Sequence[Rule]:
    removed, random = ({MODEL: name, EDIT: edit} for edit in (REMOVED, RANDOM))
    return (
        within(f"without {name} the loss is at least {COST} nats higher", LOSS_CHANGE, removed, low=COST),
        within(f"without {name} the first position has no sink: Sink_1 of at most 5%", SINK_1, removed, high=0.05),
        above(
            f"a random key costs at least half as much as removing {name}",
            LOSS_CHANGE,
            random,
            removed,
            bound=times(0.5),
        ),
    )


ROWS = OfRuns(
    arms,
    read,
    "n={n} held-out sequences, at most their first 64 tokens, fp32, epsilon=0.3; "
    "intervals: over sequences; the loss leaves out the prediction at position 1; "
    f"random key: as long, mean of {DRAWS} draws",
    SEQUENCES,
)
EXPERIMENT = Experiment(
    claim="A slot becomes part of the model: without it the loss is much higher, and no sink takes its place.",
    rows=ROWS,
    draw=draw,
    rules=tuple(rule for name in SLOTS.values() for rule in _rules(name)),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT, Scale.PAPER),
    recipes=ROWS.recipes,
)
