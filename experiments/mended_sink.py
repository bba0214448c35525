"""Can a gate or a sink logit mend a pretrained sink? It is added to a trained model, whose training then goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.choices import Scale
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import cache_folder
from sinkinterp.lm.attention import AttentionSpec
from sinkinterp.lm.model import SinkForCausalLM, build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.metrics.estimates import SHARES, estimate, estimate_cells, mean_cells
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import Run
from sinkinterp.table import ALPHA_1, EDIT, LOSS, MODEL, NULL, RESIDUAL_RATIO, SEED, SINK_1, SLOT_RATE, Cell, Table
from sinkinterp.train.loop import job_of, prepared, train
from sinkinterp.train.recipe import ConstantRate, Recipe

from .shared.arms import OfRuns, Rows, held_out, means_by
from .shared.remedy import EVICTED, outliers_and_costs
from .shared.rules import MARGIN, above, plus, setup, within
from .shared.study import EPSILON, SINK_1_ALONE, Arm, architecture, by_model, without_bos
from .shared.tasks import Continued

SEQUENCES = 256
SHARE = 10  # the training goes on for a tenth of its steps
BEFORE, NOTHING = "before", "nothing"
OVER, OVER_BEFORE = "loss over nothing", "loss over before"
LAST = " at the last rate"  # in place of the whole schedule anew, from its warm-up to its end
FAINT = -4.0  # a first value of sink logits that leaves attention nearly as it was


def as_before_with_gates(attention: Any) -> None:
    """A gate whose map is zero halves everything, so the output map is doubled."""
    attention.gate.gate_proj.weight.zero_()
    attention.o_proj.weight.mul_(2)


@dataclass(frozen=True)
class Addition:
    """A change of a trained model's attention, and the start of its new parameters."""

    change: Callable[[AttentionSpec], AttentionSpec]
    begin: Callable[[Any], None] = lambda attention: None


def _gated(name: str) -> Addition:
    gate = VARIANTS[name].attention.gate
    return Addition(lambda spec: replace(spec, gate=gate), as_before_with_gates)


def _with_logits(first: float) -> Addition:
    slots = VARIANTS["sink_logit"].attention.slots
    return Addition(lambda spec: replace(spec, slots=slots), lambda attention: attention.slots.logit.fill_(first))


ADDITIONS = {
    NOTHING: Addition(lambda spec: spec),
    "a gate per head": _gated("gated"),
    "a gate per element": _gated("gated_elements"),
    "a sink logit": _with_logits(FAINT),
    "a sink logit from 0": _with_logits(0.0),  # added after the others had been seen: FAINT is far to go
}
CAREFUL = (NOTHING, "a gate per head", "a sink logit from 0")  # those that are also trained at the last rate
NAMES = (*ADDITIONS, *(name + LAST for name in CAREFUL))


def continued(recipe: Recipe, name: str) -> Continued:
    """How the trained model of a recipe goes on with an addition: for a tenth of its steps."""
    steps = max(1, recipe.steps // SHARE)
    attention = ADDITIONS[name.removesuffix(LAST)].change(recipe.model.attention)
    settings = {field.name: getattr(recipe, field.name) for field in fields(Recipe)} | {
        "model": replace(recipe.model, attention=attention),
        "steps": steps,
        "warmup": min(recipe.warmup, steps // 4),
    }
    if name.endswith(LAST):
        settings |= {"lr": recipe.rate(recipe.steps), "schedule": ConstantRate()}
    return Continued(**settings, first=recipe, change=name)


@torch.no_grad()
def with_addition(run: Run, name: str) -> SinkForCausalLM:
    """The trained model of a run, with the addition at its beginning."""
    model = build(continued(run.recipe, name).model, run.recipe.seed)
    model.load_state_dict(load_model(run.folder).state_dict(), strict=False)
    for block in model.model.layers:
        ADDITIONS[name.removesuffix(LAST)].begin(block.self_attn)
    return model


def trained_on(run: Run, name: str, cache: Path) -> SinkForCausalLM:
    """The model of a run after training with an addition, on batches that come after those of the run."""
    recipe = continued(run.recipe, name)
    job = job_of(recipe, prepared(recipe.data, cache), lambda model: {})
    later = replace(job, start=partial(with_addition, run, name), batch=lambda step: job.batch(run.recipe.steps + step))
    return load_model(train(later, cache / "runs" / recipe.key()))


def read(run: Run, scope: Scope) -> Rows:
    """A row for the model as it was, and one for each addition after more training."""
    token_set = held_out(run, scope, SEQUENCES)
    cache = scope.cache or cache_folder()
    models = {BEFORE: load_model(run.folder)} | {name: trained_on(run, name, cache) for name in NAMES}
    subjects = {name: HuggingFaceSubject(model, name) for name, model in models.items()}
    losses = {name: token_losses(subject, token_set.tokens).mean(1) for name, subject in subjects.items()}
    return [
        {EDIT: name, **_row(subject, token_set, losses), **without_bos(subject, run.recipe, token_set)}
        for name, subject in subjects.items()
    ]


def _row(subject: HuggingFaceSubject, token_set: TokenSet, losses: Mapping[str, torch.Tensor]) -> dict[str, Cell]:
    report, loss = measure(subject, token_set, positions=(0,)), losses[subject.name]
    without = losses[NOTHING + LAST if subject.name.endswith(LAST) else NOTHING]
    slot = report.slot_rate(EPSILON)
    return {
        **estimate_cells(LOSS, estimate(loss)),
        **estimate_cells(OVER, estimate(loss - without)),
        **estimate_cells(OVER_BEFORE, estimate(loss - losses[BEFORE])),
        **estimate_cells(SINK_1, report.sink_rate(0, EPSILON)),
        **mean_cells(ALPHA_1, report.alpha().mean((1, 2)), SHARES),
        NULL: report.null_alpha().mean().item(),
        SLOT_RATE: slot.mean if slot else None,
        RESIDUAL_RATIO: report.residual_ratio().mean(0).max().item(),
        **outliers_and_costs(subject, token_set.tokens),
    }


def arms(scope: Scope) -> Sequence[Arm]:
    """The baseline."""
    return [architecture("softmax")]


def digest(table: Table) -> Table:
    """A row per addition: means over seeds."""
    shown = (SINK_1, ALPHA_1, NULL, SLOT_RATE, SINK_1_ALONE, OVER, OVER_BEFORE, RESIDUAL_RATIO, EVICTED)
    return means_by(table, EDIT, shown)


def draw(table: Table) -> go.Figure:
    """Loss, alpha_1 and Sink_1 by what was added, a mark per seed."""
    rows = tuple({**row, MODEL: row[EDIT]} for row in table.records())
    return by_model(Table.of(table.title, table.note, rows), (LOSS, ALPHA_1, SINK_1))


def _goes_on(where: str) -> Sequence[Rule]:
    """The control: a model whose training goes on as it is."""
    nothing = {EDIT: NOTHING + where}
    return (
        setup(
            above(
                f"a sink stays where nothing is added{where}",
                ALPHA_1,
                nothing,
                nothing,
                other_column=NULL,
                bound=plus(0.05),
            )
        ),
        setup(within(f"the training goes on{where} for at most .02 nats", OVER_BEFORE, nothing, high=0.02)),
    )


def _mends(name: str, where: str = "") -> Sequence[Rule]:
    without, mended = {EDIT: NOTHING + where}, {EDIT: name + where}
    name += where
    return (
        above(f"with {name} alpha_1 falls by .05 or more", ALPHA_1, without, mended, bound=plus(MARGIN), by=(SEED,)),
        within(f"with {name} the first position has no sink: Sink_1 of at most 5%", SINK_1, mended, high=0.05),
        within(f"{name} costs at most .02 nats beside as much training without it", OVER, mended, high=0.02),
    )


ROWS = OfRuns(
    arms,
    read,
    f"softmax, trained, then a {SHARE}th of its steps more with what is added and a fresh AdamW: by the recipe's whole "
    "schedule anew, or at the rate at which the training ended; "
    "n={n} held-out sequences, at most their first 64 tokens, fp32, epsilon=0.3; null: uniform attention; "
    "intervals: over sequences",
    SEQUENCES,
)


def recipes(scope: Scope) -> list[Recipe]:
    """How every model is trained, and how each goes on with each addition."""
    return [one for first in ROWS.recipes(scope) for one in (first, *(continued(first, name) for name in NAMES))]


EXPERIMENT = Experiment(
    claim="A gate or a sink logit that is added to a trained model mends its sink within a tenth of its training.",
    rows=ROWS,
    draw=draw,
    rules=(
        *_goes_on(""),
        *(rule for name in ADDITIONS if name != NOTHING for rule in _mends(name)),
        *_goes_on(LAST),
        *(rule for name in CAREFUL if name != NOTHING for rule in _mends(name, LAST)),
    ),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=recipes,
    digest=digest,
)
