"""The sink moved: a slot with the first token's mean key and value takes a genuine model's sink over, untrained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from sinkinterp.applications.mend import ENTRY, EVICTED, ROUNDED, sinks_and_entries, worth
from sinkinterp.backends.adapters import AddedKey, AddedKeyValue, AddedSlots, NoAddedSlots, add_slots, remove_slots
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.metrics.estimates import intervals, mean_cells
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, EDIT, HEAD, LAYER, MODEL, SINK_1, SLOT_RATE, Cell, Table

from .shared.cases import Case, on_models
from .shared.genuine import text_models
from .shared.prefixes import before, best_token
from .shared.remedy import OVER_UNIFORM, over_uniform
from .shared.rules import above, times, within

CLAIM = (
    "A sink is a key and a value that hardly depend on the text. As a slot of every head they take it over at once, "
    "and what the first token costs falls."
)
RULE = (
    "with the slot, alpha_1 is at most that of uniform attention; forgetting the first token and int8 per tensor cost "
    "a third, the largest entry is a fifth, the loss rises by at most .02; another token's key and value do none of it"
)
MODELS = text_models()
SEQUENCES, LENGTH = 24, 64
LONG_SEQUENCES, LONG = 6, 512
SEEN, DRAWS = 16, 3  # other texts, whose mean key and value the slot begins with; how many sets of them are tried
OTHER = 5  # the position of the control
NO_BOS, PREFIX = "as it is, without BOS", "a token that all texts share, before them"
AS_IS, MOVED, KEY_ALONE, CONTROL = "as it is", "its key and value", "its key alone", "key and value of the sixth token"
SLOTS: Mapping[str, tuple[AddedSlots, int]] = {
    AS_IS: (NoAddedSlots(), 0),
    MOVED: (AddedKeyValue(), 0),
    KEY_ALONE: (AddedKey(), 0),
    CONTROL: (AddedKeyValue(), OTHER),
    NO_BOS: (NoAddedSlots(), 0),
    PREFIX: (NoAddedSlots(), 0),
}
ADDED = "added loss"
Row = dict[str, Cell]


@dataclass(frozen=True)
class Trial:
    """A slot by its name, the texts that it begins with, and those that the model is measured on; words: in its row.

    prefix: a token before every text.
    """

    slot: str
    seen: Tokens
    texts: Tokens
    words: str = ""
    prefix: int | None = None


def measure(case: Case, progress: Progress) -> Table:
    """A row for each slot, on texts that it has not seen; without their BOS, in whose place the slot is.

    A model that is not limited to few sequences has rows for other draws, for long texts, and for every head.
    """
    subject = case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"slots are added to transformers models; {subject.name} is run by another library")
    trials, on_row = _trials(case, subject, progress), progress(f"moving the sink of {subject.name}")
    begin, plain, rows, reports = int(case.start is Bos.ALWAYS), None, list[Row](), list[Report]()
    for trial in trials:
        on_row(len(rows), len(trials))
        slots, position = SLOTS[trial.slot]
        texts = trial.texts if trial.slot == AS_IS else trial.texts[:, begin:]
        if trial.prefix is not None:
            texts = before([trial.prefix], texts)
        implementation = add_slots(subject.model, slots, trial.seen, position)
        try:
            loss = token_losses(subject, texts)
            plain = loss[:, begin:] if trial.slot == AS_IS or plain is None else plain
            reports.append(sinks_and_entries(subject, texts))
            cells = worth(subject, texts, plain.shape[1], loss, reports[-1])
            added = (loss[:, -plain.shape[1] :] - plain).mean(1)
            rows.append(_row(case, trial.slot + trial.words, cells) | mean_cells(ADDED, added))
        finally:
            remove_slots(subject.model, implementation)
    on_row(len(rows), len(rows))
    n, length = trials[0].texts.shape
    protocol = f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={length}, BOS {case.start}"
    note = f"{protocol}, with a slot never; {intervals(n)}; slots: means over {SEEN} other texts; a shared token: the "
    note += "best of a few; losses are of the same tokens; epsilon=0.3"
    if any(trial.words.endswith(f"T={LONG}") for trial in trials):
        note += f"; T={LONG}: n={LONG_SEQUENCES}"
        rows += _heads(case, reports, rows[0])
    return Table.of(CLAIM, f"{note}; losses in nats; rule: {RULE}", tuple(rows))


def _trials(case: Case, subject: HuggingFaceSubject, progress: Progress) -> list[Trial]:
    """The slots on the texts, each without a slot before the others."""
    (n, length), is_small = case.size(SEQUENCES, LENGTH), case.recipe is None and case.most is None
    tokens = case.tokens((SEEN * (DRAWS if is_small else 1) + n, length), progress, case.start).tokens
    seen, rest, others = tokens[:SEEN], tokens[SEEN : SEEN + n], tokens[SEEN + n :]
    trials = [Trial(name, seen, rest) for name in (AS_IS, MOVED, KEY_ALONE, CONTROL)]
    if case.start is Bos.ALWAYS:
        trials.append(Trial(NO_BOS, seen, rest))
    elif subject.tokenizer is not None:
        prefix = best_token(case, subject, seen)
        trials.append(Trial(PREFIX, seen, rest, f": {subject.label(prefix)!r}", prefix))
    if is_small:
        trials += [Trial(MOVED, drawn, rest, f", draw {i}") for i, drawn in enumerate(others.split(SEEN), 2)]
        long = case.tokens((LONG_SEQUENCES + SEEN, LONG), progress, case.start).tokens
        is_new = ~(long[:, None, :length] == seen).all(-1).any(1)
        long = long[is_new][:LONG_SEQUENCES]
        trials += [Trial(name, seen, long, f", T={LONG}") for name in (AS_IS, MOVED)]
    return trials


def _row(case: Case, name: str, cells: Mapping[str, Cell]) -> Row:
    return {**case.names, EDIT: name, LAYER: None, HEAD: None, **cells, **over_uniform(cells)}


def _heads(case: Case, reports: Sequence[Report], row: Row) -> Iterator[Row]:
    """The alpha_1 of every head as the model is, and with the slot."""
    for name, report in zip((AS_IS, MOVED), reports, strict=False):
        for layer, alphas in zip(report.attention_layers, report.alpha().mean(0).tolist(), strict=True):
            for head, alpha in enumerate(alphas):
                where = {EDIT: f"{name}, by head", LAYER: layer, HEAD: head, ALPHA_1: alpha}
                yield {**dict.fromkeys(row), **case.names, **where}


def digest(table: Table) -> Table:
    """The rows of models, without those of their heads."""
    rows = (
        {n: cell for n, cell in row.items() if n not in (LAYER, HEAD)} for row in table.records() if row[HEAD] is None
    )
    return Table.of(table.title, table.note, tuple(rows))


def draw(table: Table) -> go.Figure:
    """The sink and what it costs, as the models are and with each slot."""
    titled = replace(digest(table), title="A slot with the first token's key and value")
    return sweep_figure(titled, EDIT, (SINK_1, ADDED, EVICTED), by=MODEL)


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

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest)
