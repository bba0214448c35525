"""Over-mixing: how far the change of one token spreads over positions and blocks, with the sink and without it."""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.attention import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.interventions import RemoveColumn
from sinkinterp.measurement.measure import answers_of
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, Metric
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import BLOCK, EDIT, INPUT, LENGTH, MODEL, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.corpora import DOCSTRINGS, absent, corpora, tokens_of
from .shared.effects import CHECK_NOTE, CHECKS, LOSS_CHANGE, OTHER_EXCESS, SEEN_BY, Effects, without
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import MARGIN, above, checked, times
from .shared.spread import ALL, CONTROL, FAR, NEAR, TIMES, WITH, Changes, spread_table, with_other_token

CLAIM = "The sink keeps the change of one token from spreading: without it, later residuals change more."
RULE = (
    "of the last output behind the changed token, on every text and length: with every sink's key hidden from the "
    "layers behind its writer, the change is 1.1 times that with the sink and that with another key hidden, and larger "
    "far behind, and the loss rises by more than with another key hidden; check: no other position is .05 above its "
    "null then, in those layers"
)
# Barbero et al. 2025 (2504.02732): in Gemma 7B a perturbed token changes later tokens less with BOS than without
MODELS = text_models()
PARTS = {(DOCSTRINGS, 64): (16, 16), ("C4", 64): (64, 64), ("C4", 512): (8, 8)}  # texts, and those of larger models
# at T=512 seven of the texts that are tried for eight are long enough; rows say how many were read
PLACE, LAST, TEXTS = "place", "last output", "n"
EVERYWHERE = "first key hidden from all layers"  # where the next token may become the sink
BEHIND = "first key hidden behind its writer"
EVERY, MOST = "every key that is a sink then hidden behind the writer", 8
JUDGED, SHORT = (WITH, EVERY, CONTROL), 64  # of longer texts the rows that rules read are made alone
HIDDEN = "hidden tokens"


def measure(case: Case, progress: Progress) -> Table:
    """Returns a row per text, edit and block, with the start that the model was trained with."""
    context = case.subject.shape.n_ctx or max(most for _, most in PARTS)
    asked = [(text, most) for text, most in PARTS if text in (DOCSTRINGS, *corpora()) and most <= max(SHORT, context)]
    parts = [of_text(case, *part, progress) for part in asked]
    notes = [note for table in parts for note in (table.note, absent()) if note]
    return Table.of(CLAIM, "; ".join(dict.fromkeys(notes)), tuple(row for table in parts for row in table.records()))


def of_text(case: Case, text: str, most: int, progress: Progress) -> Table:
    """The rows of one text, of `most` tokens or what the model can read."""
    size = PARTS[text, most][case.most is not None], case.size(length=most)[1]
    tokens = tokens_of(case, text, size, progress)
    n, length = tokens.shape
    progress(f"changing a token of {case.subject.name}, {text}, T={length}")(0, 1)
    last, at = case.subject.shape.n_layers, length // 3 + int(case.start is Bos.ALWAYS)
    # the first token sees no other one, so the beginning of a text is enough
    behind = range(massive_dims(case.subject, TokenSet.of(tokens[:, :SHORT])).onset, last)
    later = Metric("later residuals", RESIDUAL, lambda x: x[:, at + 1 :].float())
    effects = Effects(layers=tuple(behind), also=(later,))
    hidden, of_hidden = sinks_then(effects, case.subject, tokens)
    asked = without_sink(at // 2, behind, hidden)
    asked = {name: asked[name] for name in (asked if length <= SHORT else JUDGED)}
    edits = {next(name for name in asked if asked[name] == edit): edit for edit in asked.values()}  # each is made once
    reports, runs = dict[str, Report](), dict[str, Changes]()
    changed = with_other_token(tokens, at)
    for name, edit in edits.items():
        is_made = edit == asked[EVERY]
        report = of_hidden if is_made else effects.report(case.subject, TokenSet.of(tokens), edit)
        (after,) = answers_of(case.subject, changed, {later.name: later.site.read(later.read)}, edit)
        before = report.extra(later)
        change = (after.cpu() - before).norm(dim=-1) / before.norm(dim=-1)
        reports[name], runs[name] = report, (change, report.extra(NEXT_TOKEN_LOSS).mean(1))
    table = spread_table(case.subject, tokens, at, runs)
    cells = (*CHECKS, *(f"{LOSS_CHANGE}{end}" for end in ("", " low", " high")))
    found = {str(row[EDIT]): {name: row[name] for name in cells} for row in effects.of_reports(reports)}
    first = {**case.names, INPUT: text, LENGTH: length, TEXTS: n}
    rows = [
        {**first, PLACE: LAST if row[BLOCK] == last else "", HIDDEN: _counted(edit), **row, EDIT: name, **found[made]}
        for name, edit in asked.items()
        for made in edits
        if edits[made] == edit
        for row in table.where(**{EDIT: made}).records()
    ]
    note = (
        f"{text}: {table.note}; {case.subject.revision or 'as saved'}; BOS {case.start}; {case.subject.name}: the "
        f"writer is before layer {behind.start}; {CHECK_NOTE}, in the layers behind the "
        f"writer; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple(rows))


def _counted(edits: Sequence[RemoveColumn]) -> str:
    """The positions that edits hide, from 1."""
    return ", ".join(str(i + 1) for edit in edits for i in edit.positions)


def sinks_then(effects: Effects, subject: Subject, tokens: Tokens) -> tuple[list[int], Report]:
    """The first position, and those that are sinks behind the writer once the ones before them are hidden, from 0.

    With them the report of the model in which all of them are hidden.
    """
    hidden = [0]
    while True:
        edit = RemoveColumn(positions=hidden, layers=effects.layers)
        report = effects.report(subject, TokenSet.of(tokens), [edit])
        chosen = [i for i, layer in enumerate(report.attention_layers) if layer in (effects.layers or ())]
        excess = (report.importance - report.null)[:, chosen].mean((0, 1, 2))
        excess = excess[: len(excess) - len(excess) // SEEN_BY + 1]
        excess[hidden] = -1
        if excess.max() <= MARGIN or len(hidden) == MOST:
            return hidden, report
        hidden.append(int(excess.argmax()))


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
