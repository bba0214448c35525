"""The biases of queries, keys and values: each is set to zero, and a score is split into its four parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from sinkinterp.backends.frozen import FrozenRun, frozen
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens
from sinkinterp.interventions import Edit, ZeroKeyBias, ZeroQueryBias, ZeroValueBias
from sinkinterp.measurement.lens import contrast_of
from sinkinterp.measurement.sweep import SEEDS
from sinkinterp.metrics.estimates import intervals, mean_cells
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Row, Rule
from sinkinterp.table import ALPHA_1, EDIT, HEAD, KEY_RATIO, Cell, Table, with_all_columns

from .shared.biases import PARTS, AsFarAtRandom, four_parts, seen
from .shared.cases import Case, of_first_model, on_models
from .shared.effects import CHECK_NOTE, LOSS_CHANGE, MASSIVE_TOKENS, NONE, Effects, Runs, without
from .shared.genuine import Has, text_models
from .shared.massive import massive_dims
from .shared.rules import above, checked, number, of_each, plus, setup

CLAIM = "The biases of queries and keys make the sink: most of what lifts the first key comes from them."
RULE = (
    "b_Q = 0 behind the layer that writes the massive entry, and b_K = 0, lower alpha_1 by .05 more than their "
    "controls; b_V = 0 changes it by less than .05; in sink heads (alpha_1 above .3) the three parts with a bias make "
    "more than half of the lift; check: at most 4 tokens are massive, since more of them disperse a sink"
)
# arXiv:2604.14722 finds that query biases make the sink of GPT-2; Gu et al. 2025 do not study biases of projections
MODELS = text_models(has=(Has.TEXT, Has.BIASES))
SEQUENCES, FEW = 8, 4  # FEW: of those whose scores are taken apart
ZERO: dict[str, Callable[..., Edit]] = {"b_Q = 0": ZeroQueryBias, "b_K = 0": ZeroKeyBias, "b_V = 0": ZeroValueBias}
CONTROL, QUERIES = "control of ", "b_Q = 0"
PART, WRITER, BEHIND = "part", "the writer's layer", "behind the writer"
MOST_MASSIVE = 4  # tokens of a text; more of them would make the sink disperse, which is another cause
LAYERS, ALL, WHAT, SINKS, LIFT = "layers", "all", "row", "sink heads", "lift"
ERROR, EXACT = "error", 1e-4
EFFECTS = Effects(
    more={KEY_RATIO: lambda r: r.key_ratio().mean((1, 2)), "first residual": lambda r: r.residual_norms[..., 0].amax(1)}
)


def measure(case: Case, progress: Progress) -> Table:
    """A row per edit of all layers, or at and behind the writer; then a row per head with the parts of its score."""
    token_set = case.tokens(case.size(SEQUENCES), progress, case.start)
    shape, on_run = case.subject.shape, progress(f"zeroing biases of {case.subject.name}")
    rows = [
        {LAYERS: ALL, PART: ALL, **row} for row in EFFECTS.rows(case.subject, token_set, edits_in(None, SEEDS), on_run)
    ]
    onset = massive_dims(case.subject, token_set).onset
    behind = edits_in(range(onset, shape.n_layers), 1)
    parts: dict[str, dict[str, Runs]] = {
        WRITER: {QUERIES: [[ZeroQueryBias(layers=[onset - 1])]]},
        BEHIND: {name: behind[name] for name in (QUERIES, CONTROL + QUERIES)},
    }
    for part, zeroed in parts.items():
        rows += [{LAYERS: ALL, PART: part, **row} for row in EFFECTS.rows(case.subject, token_set, zeroed)[1:]]
    edits = [{WHAT: "edit", HEAD: None, **row} for row in without(rows, "raw ", "Sink_*")]
    heads = head_rows(case, token_set.tokens[:FEW])
    n, length = token_set.tokens.shape
    note = (
        f"{case.subject.name} ({case.subject.revision or 'as saved'}): n={n}, T={length}, BOS {token_set.bos}, "
        f"{token_set.source}, epsilon=0.3; {intervals(n)}; "
        f"control: every head's bias moved as far, in a random direction, mean of {SEEDS} directions, one behind the "
        f"writer; parts of scores: the first {FEW} sequences; lift: the first key's scaled score less the mean of the "
        "others, mean over queries; seen: standard deviation over the keys of a query; first residual: norm of the "
        f"first token's residual in its longest block; the writer's layer: {onset - 1}; {CHECK_NOTE}; loss in nats, "
        f"without the prediction at position 0; rule: {RULE}"
    )
    return Table.of(CLAIM, note, with_all_columns([{**case.names, **row} for row in (*edits, *heads)]))


def edits_in(layers: Sequence[int] | None, seeds: int) -> dict[str, Runs]:
    """Each bias set to zero in these layers, each before its control."""
    zeroed: dict[str, list[Edit]] = {name: [zero(layers=layers)] for name, zero in ZERO.items()}
    found: dict[str, Runs] = {}
    for name, edits in zeroed.items():
        found[name] = [edits]
        found[CONTROL + name] = [[AsFarAtRandom(edit, seed=seed) for edit in edits] for seed in range(seeds)]
    return found


def head_rows(case: Case, tokens: Tokens) -> list[dict[str, Cell]]:
    """A row for all heads that look at the first token, mean over them, then a row per head."""
    with frozen(case.subject, tokens) as run:
        layers = {layer: _of_layer(run, layer) for layer in run.calls}
    rows: list[dict[str, Cell]] = []
    values = {name: torch.stack([of_layer[name] for of_layer in layers.values()], 1) for name in layers[min(layers)]}
    is_sink = values[ALPHA_1].mean(0) > EFFECTS.epsilon
    if is_sink.any():
        means = {name: mean_cells(name, value[:, is_sink].mean(1)) for name, value in values.items()}
        rows.append({WHAT: SINKS, LAYERS: ALL, HEAD: int(is_sink.sum()), **_joined(means.values())})
    for i, layer in enumerate(layers):
        for head in range(is_sink.shape[1]):
            cells = {name: value[:, i, head].mean().item() for name, value in values.items()}
            rows.append({WHAT: "head", LAYERS: str(layer), HEAD: head, **cells})
    return rows


def _of_layer(run: FrozenRun, layer: int) -> dict[str, Float[Tensor, "batch head"]]:
    """alpha_1, the lift of the whole score and of its parts, and what softmax sees of each, by column."""
    call, x = run.calls[layer], run.trace["x"][:, layer]
    parts = four_parts(call, run.call(layer, torch.zeros_like(x)))
    lifts = (contrast_of(call, on_slot=False) * parts).sum((-2, -1))
    values = {ALPHA_1: call.weights_at(call.keys[:1]).mean((2, 3)), LIFT: lifts.sum(0)}
    apart = (parts.sum(0) - call.scores()).abs() * call.allowed()
    values[ERROR] = apart.amax((2, 3)) / (parts.abs() * call.allowed()).amax((0, 3, 4))
    values |= {f"{LIFT} {name}": lift for name, lift in zip(PARTS, lifts, strict=True)}
    return values | {f"seen {name}": value for name, value in zip(PARTS, seen(parts, call), strict=True)}


def _joined(cells: Iterable[Mapping[str, Cell]]) -> dict[str, Cell]:
    return {name: cell for part in cells for name, cell in part.items()}


def digest(table: Table) -> Table:
    """The edits of all layers, and the heads that look at the first token."""
    rows = [row for row in table.records() if row[LAYERS] == ALL]
    dropped = [name for name in table.frame if all(row[name] is None for row in rows)]
    return Table.of(table.title, table.note, tuple(without(rows, *dropped)))


def draw(table: Table) -> go.Figure:
    """Returns the sink with each bias zero in all layers, and the loss that this adds, in the first model."""
    first = of_first_model(table, "Biases set to zero").where(**{WHAT: "edit", LAYERS: ALL, PART: ALL})
    return sweep_figure(first, EDIT, (ALPHA_1, KEY_RATIO, LOSS_CHANGE))


def _in_all(edit: str) -> dict[str, Cell]:
    return {WHAT: "edit", LAYERS: ALL, PART: ALL, EDIT: edit}


def _value_bias_is_silent(table: Table) -> tuple[bool | None, str]:
    before, after = (table.where(**_in_all(name)).numbers(ALPHA_1)[0] for name in (NONE, "b_V = 0"))
    return None if after != after else abs(after - before) < 0.05, f"{before:.3f} before, {after:.3f} after"


def _biases_make_the_lift(table: Table) -> tuple[bool | None, str]:
    rows = table.where(**{WHAT: SINKS}).records()
    if not rows:
        return None, "no head looks at the first token"
    lifts = {name: number(rows[0][f"{LIFT} {name}"]) for name in PARTS}
    whole = number(rows[0][LIFT])
    shown = ", ".join(f"{name} {lift:.2f}" for name, lift in lifts.items())
    return whole - lifts["q.k"] > whole / 2, f"{shown}, together {whole:.2f}"


def _adds_up(table: Table) -> tuple[bool | None, str]:
    error = max(number(row[ERROR]) for row in table.records() if row[WHAT] == "head")
    return error <= EXACT, f"largest error {error:.1e} of a query's largest part"


def _lowers(what: str, of: Row, than: Row) -> Rule:
    """The edit lowers alpha_1, without making other tokens massive."""
    rule = above(f"{what} lowers alpha_1 by .05 more than its control", ALPHA_1, than, of, bound=plus(0.05))
    return checked(rule, MASSIVE_TOKENS, of, high=MOST_MASSIVE)


RULES: Sequence[Rule] = (
    _lowers("b_Q = 0 behind the writer", {PART: BEHIND, EDIT: QUERIES}, {PART: BEHIND, EDIT: CONTROL + QUERIES}),
    _lowers("b_Q = 0 in all layers", _in_all(QUERIES), _in_all(CONTROL + QUERIES)),
    _lowers("b_K = 0 in all layers", _in_all("b_K = 0"), _in_all(CONTROL + "b_K = 0")),
    checked(
        of_each(Rule("b_V = 0 changes alpha_1 by less than .05", _value_bias_is_silent)),
        MASSIVE_TOKENS,
        _in_all("b_V = 0"),
        high=MOST_MASSIVE,
    ),
    of_each(Rule("parts with a bias make more than half of the lift in sink heads", _biases_make_the_lift)),
    setup(Rule("the four parts add up to the score within 1e-4 in every head", _adds_up)),
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest)
