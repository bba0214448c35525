"""Windows and BOS: what layers with a window look at once the first token is out of sight, and what BOS does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Bos as Start
from sinkinterp.data.progress import OnProgress, Progress
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.interventions import Edit, RemoveColumn
from sinkinterp.metrics.estimates import intervals, mean_cells
from sinkinterp.metrics.metric import next_token_loss
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import EDIT, LENGTH, LOSS, MODEL, NULL, SEED, Cell, Table, with_all_columns

from .shared.cases import Case, of_first_model, on_models
from .shared.corpora import long_texts
from .shared.effects import CHECK_NOTE, CHECKS, LOSS_CHANGE, NONE, OTHER_EXCESS, Effects
from .shared.genuine import Has, text_models
from .shared.rules import MARGIN, above, checked, plus, within
from .shared.windows import BOS, DELIMITERS, FIRST, KINDS, WINDOWS_FIRST, delimiters_of, sees_first, shares

CLAIM = (
    "Where a window hides the first token, its layer has no sink; layers without a window keep theirs. BOS draws "
    "attention because it is first."
)
RULE = (
    "at the longest T, BOS first: windowed layers give the window's first key less than .05, and full layers give the "
    "first token .05 more than uniform attention; BOS as the 10th token gets .05 less than as the first in full "
    "layers; to hide it from full layers costs more than to hide it from windowed ones; check: no other "
    "position is .05 above its null then"
)
# Gu et al. 2025, Figure 6: with a window the sink stays on the first token of the text, not the window's
MODELS = text_models(has=(Has.TEXT, Has.WINDOWS))
SEQUENCES, FEW, LENGTHS, JOINED = 4, 2, (64, 400, 700, 1500), 512  # FEW: sequences that are edited
MOST_HIDDEN, LATER = 700, 9  # tokens of the sequences that are edited; the later place of BOS, from 0
FULL, WINDOWED, ALL = "full", "windowed", "all"
FIRST_BOS, NO_BOS, LATER_BOS = "BOS first", "no BOS", f"BOS as token {LATER + 1}"
START, LAYERS, N_LAYERS = "start", "layers", "number of layers"
HIDDEN, CONTROL = "first token hidden", "control: 11th token hidden"


def measure(case: Case, progress: Progress) -> Table:
    """Returns a row per start, length and kind of layer; then the cost of hiding the first token from a kind."""
    longest = case.size(SEQUENCES, max(LENGTHS))[1]
    text, source = long_texts(case, (SEQUENCES, longest), JOINED, Start.NEVER, progress)
    lengths = [length for length in LENGTHS if length <= longest]
    on_start, rows = progress(f"reading {case.subject.name}"), list[dict[str, Cell]]()
    starts = starts_of(text, case.bos_token)
    for done, (start, tokens) in enumerate(starts.items()):
        on_start(done, len(starts))
        reading = _read(case, tokens)
        rows += [{START: start, **row} for length in lengths for row in reading.rows(length)]
    on_start(len(starts), len(starts))
    start, tokens = next(iter(starts.items()))
    hidden = tokens[:FEW, : max(length for length in lengths if length <= MOST_HIDDEN)]
    on_run = progress(f"hiding the first token of {case.subject.name}")
    costs = [{START: start, **row} for row in _costs(case.subject, hidden, reading, on_run)]
    note = (
        f"{case.subject.name} ({case.subject.revision or 'as saved'}): n={len(text)}, texts of {longest} tokens, "
        f"{source}; {intervals(len(text))}; attention of the last quarter of the queries before T, mean "
        "over heads and layers of a kind; first key in sight: that of the window; delimiters: tokens without "
        "a letter or digit, beside the first and BOS; largest weight: of a query's strongest key; nulls: "
        f"uniform attention to what a query sees; hidden: n={len(hidden)}, T={hidden.shape[1]}, "
        f"the first column's attention goes to the others; {CHECK_NOTE}; "
        f"loss in nats, of the same queries; rule: {RULE}"
    )
    return Table.of(CLAIM, note, with_all_columns([{**case.names, **row} for row in (*rows, *costs)]))


def starts_of(text: Tokens, bos: int | None) -> dict[str, Tokens]:
    """The texts with BOS first, without it, and with it as a later token, at one length; as they are without a BOS."""
    if bos is None:
        return {NO_BOS: text}
    mark = torch.full_like(text[:, :1], bos)
    later = torch.cat((text[:, :LATER], mark, text[:, LATER:-1]), 1)
    return {FIRST_BOS: torch.cat((mark, text[:, :-1]), 1), NO_BOS: text, LATER_BOS: later}


@dataclass(frozen=True)
class Reading:
    """The targets of queries, and the loss of every prediction; `sees` tells if a layer's queries see the first key."""

    layers: tuple[int, ...]
    shares: Float[Tensor, "sequence layer query 2 kind"]
    sees: Float[Tensor, "layer query"]
    losses: Float[Tensor, "sequence query"]

    def kinds(self) -> dict[str, list[int]]:
        """The layers by kind: windowed are those whose last query does not see the first key."""
        windowed = [i for i in range(len(self.layers)) if not self.sees[i, -1]]
        kinds = {WINDOWED: windowed, FULL: [i for i in range(len(self.layers)) if i not in windowed]}
        return {kind: places for kind, places in kinds.items() if places}

    def rows(self, length: int) -> list[dict[str, Cell]]:
        """A row per kind of layer, of the queries of the last quarter before `length`."""
        late = slice(3 * length // 4, length)
        loss = mean_cells(LOSS, self.losses[:, late].mean(1))
        rows = []
        for kind, places in self.kinds().items():
            means = self.shares[:, places, late].mean((1, 2))
            cells = {name: mean_cells(name, means[:, 0, i]) for i, name in enumerate(KINDS)}
            nulls = {f"{NULL} {name}": means[:, 1, i].mean().item() for i, name in enumerate(KINDS)}
            seen = {"sees the first token": self.sees[places, late].mean().item()}
            both = {key: cell for part in cells.values() for key, cell in part.items()} | nulls
            rows.append({LENGTH: length, LAYERS: kind, N_LAYERS: len(places), EDIT: NONE, **seen, **both, **loss})
        return rows


def _read(case: Case, tokens: Tokens) -> Reading:
    """One sequence after the other, since their patterns are large."""
    subject, word, parts = case.subject, case.subject.label, []
    for row in tokens:
        read = partial(shares, is_bos=row == case.bos_token, is_delimiter=delimiters_of(row, word))
        trace = subject.run(row[None], reads={"shares": read, "sees": sees_first})
        parts.append((trace["shares"], trace["sees"][0], next_token_loss(trace.logits, row[None])))
    seen = parts[0][1]
    return Reading(
        subject.shape.attention_layers, torch.cat([p[0] for p in parts]), seen, torch.cat([p[2] for p in parts])
    )


def _costs(subject: Subject, tokens: Tokens, reading: Reading, on_run: OnProgress) -> list[dict[str, Cell]]:
    """Returns the cost of hiding the first token, or the 11th, from every kind of layer, and from all."""
    kinds = {kind: [reading.layers[i] for i in places] for kind, places in reading.kinds().items()} | {ALL: None}
    late = slice(3 * tokens.shape[1] // 4, None)
    losses, rows = _losses(subject, tokens, [])[:, late].mean(1), list[dict[str, Cell]]()
    for kind, layers in kinds.items():
        for name, position in {HIDDEN: 0, CONTROL: LATER + 1}.items():
            on_run(len(rows), 2 * len(kinds))
            edit = RemoveColumn(positions=[position], layers=layers)
            changed = _losses(subject, tokens, [edit])
            effects = Effects(layers=None if layers is None else tuple(layers))
            (_, checks) = effects.rows(subject, TokenSet.of(tokens), {name: [[edit]]})
            about: dict[str, Cell] = {LENGTH: tokens.shape[1], LAYERS: kind, N_LAYERS: len(layers or reading.layers)}
            cost = mean_cells(LOSS_CHANGE, changed[:, late].mean(1) - losses)
            rows.append({**about, EDIT: name, **cost, **{check: checks[check] for check in CHECKS}})
    on_run(len(rows), len(rows))
    return rows


def _losses(subject: Subject, tokens: Tokens, edits: Sequence[Edit]) -> Float[Tensor, "sequence query"]:
    """Sequence by sequence."""
    return torch.cat([next_token_loss(subject.run(row[None], edits=edits).logits, row[None]) for row in tokens])


def draw(table: Table) -> go.Figure:
    """Returns what queries give the first token and the first key in sight, by length, start and kind of layer."""
    first = of_first_model(table, "Attention by length").where(**{EDIT: NONE})
    rows = tuple({"line": f"{row[LAYERS]} layers, {row[START]}", **row} for row in first.records())
    return sweep_figure(Table.of(first.title, first.note, rows), LENGTH, (FIRST, WINDOWS_FIRST, DELIMITERS), by="line")


RULES: Sequence[Rule] = (
    within(
        "windowed layers give the first key in sight less than .05 where the first token is hidden",
        WINDOWS_FIRST,
        {START: FIRST_BOS, LENGTH: max(LENGTHS), LAYERS: WINDOWED},
        high=0.05,
    ),
    above(
        "full layers give the first token .05 more than uniform attention at the longest T",
        FIRST,
        {START: FIRST_BOS, LENGTH: max(LENGTHS), LAYERS: FULL},
        {START: FIRST_BOS, LENGTH: max(LENGTHS), LAYERS: FULL},
        bound=plus(0.05),
        other_column=f"{NULL} {FIRST}",
    ),
    above(
        f"BOS gets .05 less from full layers as token {LATER + 1} than as the first",
        BOS,
        {START: FIRST_BOS, LAYERS: FULL},
        {START: LATER_BOS, LAYERS: FULL},
        bound=plus(0.05),
        by=(MODEL, SEED, LENGTH),
    ),
    checked(
        above(
            "to hide the first token from full layers costs more than to hide it from windowed ones",
            LOSS_CHANGE,
            {EDIT: HIDDEN, LAYERS: FULL},
            {EDIT: HIDDEN, LAYERS: WINDOWED},
        ),
        OTHER_EXCESS,
        {EDIT: HIDDEN},
        high=MARGIN,
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
