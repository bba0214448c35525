"""Over-mixing: how far the change of one token spreads over positions and blocks, with the sink and without it."""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.interventions import RemoveColumn
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.sweep import ALL, CONTROL, FAR, NEAR, TIMES, WITH, spread
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import BLOCK, EDIT, INPUT, LENGTH, MODEL, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.corpora import DOCSTRINGS, absent, corpora, tokens_of
from .shared.effects import CHECK_NOTE, CHECKS, LOSS_CHANGE, OTHER_EXCESS, SEEN_BY, Effects, without
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import MARGIN, above, checked, times

CLAIM = "The sink keeps the change of one token from spreading: without it, later residuals change more."
RULE = (
    "of the last output behind the changed token, on every text and length: with every sink's key hidden from the "
    "layers behind its writer, the change is 1.1 times that with the sink and that with another key hidden, and larger "
    "far behind, and the loss rises by more than with another key hidden; check: no other position is .05 above its "
    "null then, in those layers"
)
# Barbero et al. 2025 (2504.02732): in Gemma 7B a perturbed token changes later tokens less with BOS than without
MODELS = text_models()
PARTS = {(DOCSTRINGS, 64): (16, 16), ("C4", 64): (32, 16)}  # texts, and those of larger models
PLACE, LAST, TEXTS = "place", "last output", "n"
EVERYWHERE = "first key hidden from all layers"  # where the next token may become the sink
BEHIND = "first key hidden behind its writer"
EVERY, MOST = "every key that is a sink then hidden behind the writer", 8
HIDDEN = "hidden tokens"


def measure(case: Case, progress: Progress) -> Table:
    """Returns a row per text, edit and block, with the start that the model was trained with."""
    parts = [of_text(case, *part, progress) for part in PARTS if part[0] in (DOCSTRINGS, *corpora())]
    notes = [note for table in parts for note in (table.note, absent()) if note]
    return Table.of(CLAIM, "; ".join(dict.fromkeys(notes)), tuple(row for table in parts for row in table.records()))


def of_text(case: Case, text: str, most: int, progress: Progress) -> Table:
    """The rows of one text, of `most` tokens or what the model can read."""
    n, length = PARTS[text, most][case.most is not None], case.size(length=most)[1]
    tokens = tokens_of(case, text, (n, length), progress)
    progress(f"changing a token of {case.subject.name}, {text}, T={length}")(0, 1)
    last, at = case.subject.shape.n_layers, length // 3 + int(case.start is Bos.ALWAYS)
    behind = range(massive_dims(case.subject, TokenSet.of(tokens)).onset, last)
    hidden = sinks_then(case.subject, tokens, behind)
    edits = without_sink(at // 2, behind, hidden)
    table = spread(case.subject, tokens, position=at, edits=edits)
    effects = Effects(layers=tuple(behind))
    checks = effects.rows(case.subject, TokenSet.of(tokens), {name: [edit] for name, edit in edits.items() if edit})
    cells = (*CHECKS, *(f"{LOSS_CHANGE}{end}" for end in ("", " low", " high")))
    found = {str(row[EDIT]): {name: row[name] for name in cells} for row in checks}
    first = {**case.names, INPUT: text, LENGTH: length, TEXTS: n}
    named = {name: ", ".join(str(i + 1) for edit in edits[name] for i in edit.positions) for name in edits}
    rows = [
        {**first, PLACE: LAST if row[BLOCK] == last else "", HIDDEN: named[row[EDIT]], **row, **found[str(row[EDIT])]}
        for row in table.records()
    ]
    note = (
        f"{text}: {table.note}; {case.subject.revision or 'as saved'}; BOS {case.start}; {case.subject.name}: the "
        f"writer is before layer {behind.start}; {CHECK_NOTE}, in the layers behind the "
        f"writer; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple(rows))


def sinks_then(subject: Subject, tokens: Tokens, behind: Sequence[int]) -> list[int]:
    """The first position, and those that are sinks behind the writer once the ones before them are hidden, from 0."""
    hidden = [0]
    while len(hidden) < MOST:
        report = measure_model(subject, tokens, edits=[RemoveColumn(positions=hidden, layers=behind)], progress=False)
        chosen = [i for i, layer in enumerate(report.attention_layers) if layer in behind]
        excess = (report.importance - report.null)[:, chosen].mean((0, 1, 2))
        excess = excess[: len(excess) - len(excess) // SEEN_BY + 1]
        excess[hidden] = -1
        if excess.max() <= MARGIN:
            break
        hidden.append(int(excess.argmax()))
    return hidden


def without_sink(control: int, behind: Sequence[int], hidden: Sequence[int]) -> dict[str, Sequence[RemoveColumn]]:
    """The edits that hide the first key: from all layers, or from those behind the writer alone, with controls.

    Hidden everywhere it leaves its part to the second token, and in some models a part behind the writer too.
    """
    return {
        WITH: (),
        EVERYWHERE: (RemoveColumn(),),
        BEHIND: (RemoveColumn(layers=behind),),
        EVERY: (RemoveColumn(positions=hidden, layers=behind),),
        CONTROL: (RemoveColumn(positions=[control], layers=behind),),
    }


def digest(table: Table) -> Table:
    """The last output of every edit and start."""
    return Table.of(table.title, table.note, tuple(without(table.where(**{PLACE: LAST}).records(), PLACE)))


def draw(table: Table) -> go.Figure:
    """Returns the change by block, near and far, a line for each edit, in the first model's first text."""
    rows = table.where(**{name: table.records()[0][name] for name in (INPUT, LENGTH)})
    return sweep_figure(of_first_model(rows, "The change of one token"), BLOCK, (ALL, NEAR, FAR), by=EDIT)


def _rule(claim: str, than: str, quantity: str = TIMES, factor: float = 1.1) -> Rule:
    of, by = {PLACE: LAST, EDIT: EVERY}, (MODEL, INPUT, LENGTH)
    rule = above(claim, quantity, of, {PLACE: LAST, EDIT: than}, by, bound=times(factor))
    return checked(rule, OTHER_EXCESS, of, high=MARGIN)


RULES: Sequence[Rule] = (
    _rule("hidden sinks make the change 1.1 times that with the sink", WITH),
    _rule("hidden sinks make the change 1.1 times that with another key hidden", CONTROL),
    _rule("hidden sinks make the change far behind larger than another hidden key", CONTROL, FAR, 1.0),
    _rule("hidden sinks cost more than another hidden key", CONTROL, LOSS_CHANGE, 1.0),
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest)
