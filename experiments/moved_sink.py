"""The sink moved: a slot with the first token's mean key and value takes a genuine model's sink over, untrained."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from sinkinterp.applications.mend import ENTRY, EVICTED, ROUNDED, UNIFORM, worth
from sinkinterp.applications.streaming import loss_of
from sinkinterp.backends.added_slots import AddedKey, AddedKeyValue, AddedSlots, NoAddedSlots, add_slots, remove_slots
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.errors import InputError
from sinkinterp.metrics.bootstrap import intervals, mean_cells
from sinkinterp.plots.series import sweep_figure
from sinkinterp.report.columns import ALPHA_1, EDIT, MODEL, SINK_1, SLOT_RATE
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.experiment import on_models
from sinkinterp.runs.rules import Rule
from sinkinterp.table import Cell, Table, high_of, low_of

from .shared.genuine import Has, models_with
from .shared.rules import above, times, within

CLAIM = (
    "A sink is a key and a value that hardly depend on the text. As a slot of every head they take it over at once, "
    "and what the first token costs falls."
)
RULE = (
    "with the slot, alpha_1 is at most that of uniform attention; forgetting the first token and int8 per tensor cost "
    "a third, the largest entry is a fifth, the loss rises by at most .02; another token's key and value do none of it"
)
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/text-softmax-48k"],
    Scale.REAL: models_with(Has.TEXT),
}
SEQUENCES, LENGTH = 24, 64
SEEN = 16  # other texts, whose mean key and value the slot begins with
OTHER = 5  # the position of the control
AS_IS, MOVED, KEY_ALONE, CONTROL = "as it is", "its key and value", "its key alone", "key and value of the sixth token"
SLOTS: Mapping[str, tuple[AddedSlots, int]] = {
    AS_IS: (NoAddedSlots(), 0),
    MOVED: (AddedKeyValue(), 0),
    KEY_ALONE: (AddedKey(), 0),
    CONTROL: (AddedKeyValue(), OTHER),
}
OVER_UNIFORM, ADDED = "alpha_1 over uniform attention", "added loss"


def measure(case: Case, progress: Progress) -> Table:
    """A row for each slot, on texts that it has not seen; without their BOS, in whose place the slot is."""
    subject = case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"slots are added to transformers models; {subject.name} is run by another library")
    (n, length), on_row = case.size(SEQUENCES, LENGTH), progress(f"moving the sink of {subject.name}")
    tokens = case.tokens((SEEN + n, length), progress, case.start).tokens
    seen, rest = tokens[:SEEN], tokens[SEEN:]
    begin = int(case.start is Bos.ALWAYS)
    plain = loss_of(subject, rest)[:, begin:]
    rows = list[dict[str, Cell]]()
    for name, (slots, position) in SLOTS.items():
        on_row(len(rows), len(SLOTS))
        texts = rest if name == AS_IS else rest[:, begin:]
        before = add_slots(subject.model, slots, seen, position)
        try:
            loss = loss_of(subject, texts)
            added = (loss[:, -plain.shape[1] :] - plain).mean(1)
            rows.append(_row(case, name, worth(subject, texts, plain.shape[1], loss)) | mean_cells(ADDED, added))
        finally:
            remove_slots(subject.model, before)
    on_row(len(rows), len(rows))
    protocol = f"{subject.name} ({subject.revision or 'as saved'}): n={len(rest)}, T={length}, BOS {case.start}"
    note = f"{protocol}, with a slot never; {intervals(len(rest))}; slots: means over {SEEN} other texts; epsilon=0.3"
    return Table(CLAIM, f"{note}; losses in nats; rule: {RULE}", tuple(rows))


def _row(case: Case, name: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """A row; `alpha_1` less what uniform attention gives has the interval of `alpha_1`."""
    uniform = float(cells[UNIFORM] or 0)
    over = {end(OVER_UNIFORM): float(cells[end(ALPHA_1)] or 0) - uniform for end in (str, low_of, high_of)}
    return {**case.names, EDIT: name, **cells, **over}


def draw(table: Table) -> go.Figure:
    """The sink and what it costs, as the models are and with each slot."""
    return sweep_figure(Table("The sink moved", table.note, table.rows), EDIT, (SINK_1, EVICTED, ROUNDED), by=MODEL)


def _beside(claim: str, quantity: str, of: str, than: str, factor: float) -> Rule:
    return above(claim, quantity, {EDIT: of}, {EDIT: than}, bound=times(factor))


RULES: Sequence[Rule] = (
    within("the first token has no more than uniform attention gives", OVER_UNIFORM, {EDIT: MOVED}, high=0.0),
    above("the slot holds half of it", SLOT_RATE, {EDIT: MOVED}, {EDIT: AS_IS}, other_column=SINK_1, bound=times(0.5)),
    _beside("forgetting the first token costs a third with the slot", EVICTED, AS_IS, MOVED, 3.0),
    _beside("int8 with one scale costs a third with the slot", ROUNDED, AS_IS, MOVED, 3.0),
    _beside("the largest entry is a fifth with the slot", ENTRY, AS_IS, MOVED, 5.0),
    within("the slot adds at most .02 nats", ADDED, {EDIT: MOVED}, high=0.02),
    above("the value is needed: the key alone adds more", ADDED, {EDIT: KEY_ALONE}, {EDIT: MOVED}),
    _beside("another token's key and value leave the sink: alpha_1 is half or more", ALPHA_1, CONTROL, AS_IS, 0.5),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
