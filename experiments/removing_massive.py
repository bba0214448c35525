"""Massive activations of the first token set to zero, to their mean, or moved: what the sink and the loss become."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import plotly.graph_objects as go
from torch.nn.functional import cosine_similarity

from sinkinterp.data.progress import Progress
from sinkinterp.interventions import Change, ChangeResidual, Zero
from sinkinterp.interventions.changes import Activation, Operation, Put
from sinkinterp.measurement.patching import Activations, activations
from sinkinterp.measurement.sweep import SEEDS
from sinkinterp.metrics.estimates import intervals
from sinkinterp.metrics.residuals import LEAST
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, EDIT, SINK_1, Cell, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.effects import CHECK_NOTE, LEFT, LOSS_CHANGE, NONE, Effects, Runs, without
from .shared.genuine import text_models
from .shared.massive import MassiveDims, massive_dims
from .shared.rules import above, changing, checked, of_each, plus, within

CLAIM = (
    "Setting the first token's massive activations to zero removes the sink and breaks the model; setting them to "
    "their mean over inputs changes nothing."
)
RULE = (
    "to zero: alpha_1 falls by at least .05 more than under either control, and the loss rises by at least .02 nats "
    "more than with as many others at zero; to their mean: alpha_1 changes by less than .05 and the loss by less than "
    ".02 nats, where texts begin with different tokens; check: no edited entry is above 100 behind the edit; moved to "
    "other dimensions, which keeps the length: alpha_1 falls by .05 more than with as many others at zero; as long as "
    "the other tokens, which keeps the direction: alpha_1 changes by less than .05, where the cosine with the "
    "untouched token is at least .9 in every block"
)
# Sun et al. 2024 (2402.17762), LLaMA2-7B: perplexity on WikiText: 5.47, to zero infinite, to the mean 5.47
# Outlier-driven rescaling (2601.22966): massive entries act by the length that norms divide by
MODELS = text_models("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "openai-community/gpt2")
TO_ZERO, TO_MEAN = "massive entries to zero", "massive entries to their mean"
ONCE, MOST = "massive entries to zero before their first block alone", "the ten largest entries of each block to zero"
CONTROLS = ("control: others to zero", "control: as much added to others", "control: ten others to zero")
ALL_BLOCKS, NEXT = "massive entries to zero before all blocks", "massive entries and the next largest to zero"
MOVED, SHORT = "massive entries moved to other dimensions", "as long as the other tokens, in its direction"
COSINE, OVER_OTHERS = "least cosine with the untouched token", "largest length over the others' median"
ALIKE = 0.9  # a direction that is kept
TEN, SEQUENCES = 10, 16


@dataclass(frozen=True)
class OthersLength(Operation):
    """The direction of each vector, with the median length of the tokens behind the first."""

    in_words: ClassVar[str] = "made as long as the other tokens"

    def __call__(self, layer: int, x: Activation) -> Activation:
        lengths = x.norm(dim=-1, keepdim=True)
        return x * (lengths[..., 1:, :].median(-2, keepdim=True).values / lengths)


def measure(case: Case, progress: Progress) -> Table:
    """A row per edit of the first token, before every block from the one where an entry becomes large."""
    subject = case.subject
    token_set = case.tokens(case.size(SEQUENCES), progress, case.start)
    place, n_layers = massive_dims(subject, token_set), case.subject.shape.n_layers
    first, after = min(place.onsets), next(dim for dim in place.largest if dim not in place.dims)
    means = activations(ChangeResidual(layers=range(n_layers), positions=[0]), subject, token_set.tokens)
    to_mean = Put({layer: x.mean(0, keepdim=True) for layer, x in means.items()})
    seeds = range(SEEDS)

    def zero(*dims: int) -> list[Change]:
        return place.with_dims(dims).edits(Zero(), n_layers=n_layers)

    edits: dict[str, Runs] = {
        TO_ZERO: [place.edits(Zero(), n_layers=n_layers)],
        ONCE: [[replace(edit, layers=[onset]) for edit, onset in zip(zero(*place.dims), place.onsets, strict=True)]],
        MOST: [_largest(means, range(first, n_layers))],
        TO_MEAN: [place.edits(to_mean, n_layers=n_layers)],
        CONTROLS[0]: [zero(*place.others(seed)) for seed in seeds],
        CONTROLS[1]: [_as_much(place, place.others(seed), means) for seed in seeds],
        CONTROLS[2]: [zero(*place.others(seed, TEN)) for seed in seeds],
        ALL_BLOCKS: [[ChangeResidual(Zero(), positions=[0], dims=place.dims)]],
        NEXT: [zero(*place.dims, after)],
        MOVED: [[*zero(*place.dims), *_as_much(place, place.others(seed), means)] for seed in seeds],
        SHORT: [[ChangeResidual(OthersLength(), positions=[0], layers=range(first, n_layers))]],
    }
    effects = Effects(layers=tuple(range(first, n_layers)), entries=place.entries(0))
    rows = effects.rows(subject, token_set, edits, progress(f"measuring {subject.name}"))
    (short,) = edits[SHORT]
    found = _kept(means, activations(ChangeResidual(layers=range(first, n_layers)), subject, token_set.tokens, short))
    rows = [{**row, **(found if row[EDIT] == SHORT else dict.fromkeys(found))} for row in rows]
    n, length = token_set.tokens.shape
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={length}, BOS {token_set.bos}, "
        f"{token_set.source}, epsilon=0.3; {intervals(n)}; edits of position 0 before every block: {place.line()}; "
        f"sinks of the layers from {first} on; ten largest: before each block, of the untouched model; next largest: "
        f"dimension {after}; controls, and moved: other dimensions of that position, mean of "
        f"{SEEDS} seeds; "
        f"{CHECK_NOTE}; loss in nats, without the prediction at position 0; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple({**case.names, **row} for row in without(rows, "raw ", "Sink_*")))


def draw(table: Table) -> go.Figure:
    """Returns the sink under every edit, and the loss that it adds, in the first model."""
    first = of_first_model(table, "Massive activations removed")
    return sweep_figure(first, EDIT, (SINK_1, ALPHA_1, LOSS_CHANGE))


def _as_much(place: MassiveDims, dims: tuple[int, ...], held: Activations) -> list[Change]:
    """The mean values of the massive dimensions, put in place of others before every block of theirs."""
    values = {layer: x.mean(0, keepdim=True) for layer, x in held.items()}
    for x in values.values():
        x[0, 0, list(dims)] += x[0, 0, list(place.dims)]
    return place.with_dims(dims).edits(Put(values), n_layers=len(held))


def _largest(held: Activations, blocks: range) -> list[Change]:
    """The ten entries that are largest before each block in the untouched model, mean over texts, at zero."""
    sizes = {block: held[block][:, 0].abs().mean(0) for block in blocks}
    site = ChangeResidual(Zero(), positions=[0])
    return [replace(site, layers=[b], dims=size.topk(TEN).indices.tolist()) for b, size in sizes.items()]


def _kept(before: Activations, after: Activations) -> dict[str, Cell]:
    """What the first token keeps of its direction, and how long it is: of the block that keeps least, mean over texts.

    before: of the first token in the untouched model, by block; after: of all tokens, behind the edit.
    """
    cosines = [cosine_similarity(x[:, 0], before[block][:, 0], dim=-1).mean().item() for block, x in after.items()]
    lengths = [(x[:, 0].norm(dim=-1) / x[:, 1:].norm(dim=-1).median(-1).values).mean().item() for x in after.values()]
    return {COSINE: min(cosines), OVER_OTHERS: max(lengths)}


def _keeps_sink(table: Table, edit: str = TO_MEAN) -> tuple[bool | None, str]:
    before, after = (table.where(**{EDIT: name}).numbers(ALPHA_1)[0] for name in (NONE, edit))
    return abs(after - before) < 0.05, f"{before:.3f} before, {after:.3f} after"


_FALLS, _COSTS = (
    "to zero: alpha_1 falls by .05 more than under {}",
    "to zero: the loss rises by .02 nats more than under {}",
)


def _zeroed(rule: Rule, edit: str = TO_ZERO) -> Rule:
    return checked(rule, LEFT, {EDIT: edit}, high=LEAST)


RULES: Sequence[Rule] = (
    *(
        _zeroed(above(_FALLS.format(name), ALPHA_1, {EDIT: name}, {EDIT: TO_ZERO}, bound=plus(0.05)))
        for name in CONTROLS[:2]
    ),
    _zeroed(above(_COSTS.format(CONTROLS[0]), LOSS_CHANGE, {EDIT: TO_ZERO}, {EDIT: CONTROLS[0]}, bound=plus(0.02))),
    *(
        changing(rule, LOSS_CHANGE, {EDIT: TO_MEAN})
        for rule in (
            within("to their mean: the loss changes by less than .02 nats", LOSS_CHANGE, {EDIT: TO_MEAN}, -0.02, 0.02),
            of_each(Rule("to their mean: alpha_1 changes by less than .05", _keeps_sink)),
        )
    ),
    _zeroed(
        above(
            "moved, the length kept: alpha_1 falls by .05 more than with as many others at zero",
            ALPHA_1,
            {EDIT: CONTROLS[0]},
            {EDIT: MOVED},
            bound=plus(0.05),
        ),
        MOVED,
    ),
    checked(
        of_each(
            Rule(
                "as long as the other tokens, the direction kept: alpha_1 changes by less than .05",
                partial(_keeps_sink, edit=SHORT),
            )
        ),
        COSINE,
        {EDIT: SHORT},
        low=ALIKE,
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
