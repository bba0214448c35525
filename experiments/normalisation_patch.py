"""The normalisation of attention replaced in a trained model: what is left of the sink, and what it costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import AddSinkLogit, Edit, PatchNormalization, RemoveColumn, ZeroKeyBias
from sinkinterp.interventions.attention_layers import Dropped
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.readings import protocol_note
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Decision, Rule
from sinkinterp.table import ALPHA_1, EDIT, SINK_1, Cell, Table

from .shared.cases import Case, Model, of_first_model, on_models
from .shared.effects import LOSS_CHANGE, NONE, OTHER_EXCESS, SLOT_RATE, Effects
from .shared.genuine import Has, models_with
from .shared.rules import MARGIN, above, checked, plus, within

CLAIM = (
    "The first token acts as a key bias: it holds extra attention and adds nothing to the values. A column without "
    "value can hold that attention in its place, and without normalisation there is no sink."
)
RULE = (
    "in all layers: dropping what the first token's column adds costs less than .02 nats, and no more than that beyond "
    "dropping the 11th column; softmax-off-by-one lowers "
    "alpha_1 by at least .05 at less than .02 nats; sigmoid lowers proxy alpha_1 by at least .05. One layer: the same "
    "of the column and of softmax-off-by-one in the layer with the strongest sink; check of a dropped column: no other "
    "position is .05 above its null then"
)
# Gu et al. 2025, section 7.3: the sink token acts as key biases, non-informative, not contributing to the values
# Gu et al. 2025, Table 6: models that are trained with sigmoid attention without normalisation have no sink
# Miller 2023: softmax-off-by-one lets a head attend to nothing
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/demo-softmax"],
    Scale.REAL: models_with(Has.TEXT),
    Scale.PAPER: ["HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2-0.5B"],
}
EPSILON, LOGIT = 0.3, 5.0
LAYERS, STRONGEST = "layers", "strongest sink"
Layers = Sequence[int] | None
PATCHES: Mapping[str, Callable[[Layers], Edit]] = {
    "sigmoid": lambda layers: PatchNormalization(Sigmoid(), layers=layers),
    "softmax-off-by-one": lambda layers: AddSinkLogit(0.0, layers=layers),
    f"sink logit {LOGIT:g}": lambda layers: AddSinkLogit(LOGIT, layers=layers),
    "first column dropped": lambda layers: RemoveColumn(Dropped(), layers=layers),
    "first column given to the others": lambda layers: RemoveColumn(layers=layers),
    "control: 2nd column dropped": lambda layers: RemoveColumn(Dropped(), positions=[1], layers=layers),
    "control: 11th column dropped": lambda layers: RemoveColumn(Dropped(), positions=[10], layers=layers),
    "control: 11th column given to the others": lambda layers: RemoveColumn(positions=[10], layers=layers),
    "b_K = 0": lambda layers: ZeroKeyBias(layers=layers),
}


def measure(case: Case, progress: Progress) -> Table:
    """A row per patch in all layers, in the layer with the strongest sink, and in the one with the weakest."""
    token_set = case.tokens(case.size(), progress, case.start)
    report = Effects().report(case.subject, token_set)
    alpha = report.alpha().mean((0, 2))
    strongest, weakest = (report.attention_layers[int(i)] for i in (alpha.argmax(), alpha.argmin()))
    places: dict[str, Layers] = {"all": None, f"{strongest}, {STRONGEST}": (strongest,)}
    if weakest != strongest:
        places[f"{weakest}, weakest sink"] = (weakest,)
    rows = [row for name, layers in places.items() for row in _rows(case, token_set, progress, name, layers, report)]
    note = (
        f"{protocol_note(report, EPSILON)}; nothing is trained after a patch; sinks of the patched layers; sigmoid: "
        "proxy scores, raw: weights as they multiply values; Sink_*: of the column without value; the first query "
        "keeps its row where the first column is removed; nulls: uniform attention; loss in nats, without the "
        f"prediction at position 0; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple(rows))


def draw(table: Table) -> go.Figure:
    """Returns the sink under every patch, and the loss that it adds, in the first model."""
    first = of_first_model(table, "Normalisation patched")
    rows = tuple({**row, EDIT: f"{row[EDIT]}, layers {row[LAYERS]}"} for row in first.records() if row[EDIT] != NONE)
    return sweep_figure(Table.of(first.title, first.note, rows), EDIT, (SINK_1, ALPHA_1, SLOT_RATE, LOSS_CHANGE))


def _rows(
    case: Case, token_set: TokenSet, progress: Progress, name: str, layers: Layers, report: Report
) -> list[dict[str, Cell]]:
    """The rows of the patches in some layers, beside the untouched model's report."""
    edits = {patch: [[edit(layers)]] for patch, edit in PATCHES.items()}
    on_run = progress(f"patching {case.subject.name}, layers {name}")
    effects = Effects(layers=None if layers is None else tuple(layers), epsilon=EPSILON)
    return [{**case.names, LAYERS: name, **row} for row in effects.rows(case.subject, token_set, edits, on_run, report)]


OFF_BY_ONE, DROPPED, CONTROL = "softmax-off-by-one", "first column dropped", "control: 11th column dropped"


def _in(layers: str, edit: str) -> dict[str, Cell]:
    return {EDIT: edit, LAYERS: layers}


def _of_dropped(layers: str, where: str) -> tuple[Rule, ...]:
    """The rules about the first column, where no other position is the sink once it is dropped."""
    dropped = _in(layers, DROPPED)
    cost = within(f"{DROPPED} in {where} costs less than .02 nats", LOSS_CHANGE, dropped, high=0.02)
    claim = f"{DROPPED} in {where} costs at most .02 nats more than the 11th"
    more = above(claim, LOSS_CHANGE, _in(layers, CONTROL), dropped, bound=plus(-0.02))
    return tuple(checked(rule, OTHER_EXCESS, dropped, high=MARGIN) for rule in (cost, more))


def _lowers(patch: str, layers: str, where: str) -> Rule:
    claim = f"{patch} in {where} lowers alpha_1 by .05"
    return above(claim, ALPHA_1, _in(layers, NONE), _in(layers, patch), bound=plus(0.05))


def _of_off_by_one(layers: str, where: str) -> tuple[Rule, ...]:
    claim = f"{OFF_BY_ONE} in {where} costs less than .02 nats"
    return within(claim, LOSS_CHANGE, _in(layers, OFF_BY_ONE), high=0.02), _lowers(OFF_BY_ONE, layers, where)


def _of_strongest(rule: Rule) -> Rule:
    """The rule of the layer with the strongest sink, which is another one in each model."""

    def decide(runs: Table) -> Decision:
        rows = (row for row in runs.records() if str(row[LAYERS]).endswith(STRONGEST))
        return rule.decide(runs.with_rows({**row, LAYERS: STRONGEST} for row in rows))

    return replace(rule, decide=decide)


_THERE = STRONGEST, "the layer with the strongest sink"
RULES: Sequence[Rule] = (
    *_of_dropped("all", "all layers"),
    *_of_off_by_one("all", "all layers"),
    _lowers("sigmoid", "all", "all layers"),
    *map(_of_strongest, (*_of_dropped(*_THERE), *_of_off_by_one(*_THERE))),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
