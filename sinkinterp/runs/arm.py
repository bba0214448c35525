"""Arms: the rows of a study, each a change of a base recipe, and what is measured of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..files import cache_folder
from ..measurement.measure import measure
from ..measurement.report import Report
from ..metrics.bootstrap import estimate, estimate_cells
from ..plots.columns import (
    ALPHA_1,
    ALPHA_SLOT,
    ALPHA_THERE,
    EXCESS,
    KEY_RATIO,
    LOSS,
    NULL,
    NULL_SLOT,
    NULL_THERE,
    ONSET,
    RESIDUAL_RATIO,
    SINK_1,
    SLOT_RATE,
    STATE,
    STRONGEST,
    VALUE_RATIO,
)
from ..table import Cell, high_of, low_of
from ..train.recipe import Recipe
from ..train.recipes import with_variant
from ..train.task import prepared
from ..train.update import Diverged
from .trained import SINK_LENGTH, Run, held_out_tokens, trained, valid_loss
from .verdict import TRAINED

RAW_ALPHA = "raw alpha_1"  # of the weights that multiply the values
NUMBERS = (  # of a run, in the order of the columns
    LOSS,
    *(end(name) for name in (SINK_1, ALPHA_1) for end in (str, low_of, high_of)),
    NULL,
    EXCESS,
    RAW_ALPHA,
    SLOT_RATE,
    *(end(ALPHA_SLOT) for end in (str, low_of, high_of)),
    NULL_SLOT,
    STRONGEST,
    ALPHA_THERE,
    NULL_THERE,
    VALUE_RATIO,
    KEY_RATIO,
    RESIDUAL_RATIO,
    ONSET,
)
EPSILON = 0.3
FOLLOWERS = 4  # queries that see a position, so that its importance is a mean over several of them
ONSET_MARGIN = 0.05  # by which alpha_1 exceeds uniform attention's once the sink is there


@dataclass(frozen=True)
class Arm:
    """A row of a study: its name, how it changes the base recipe, and what the paper reports of it, by column."""

    name: str
    change: Callable[[Recipe], Recipe]
    reported: Mapping[str, float] = field(default_factory=dict)

    def recipe(self, base: Recipe, seed: int) -> Recipe:
        """How this arm is trained with a seed."""
        return replace(self.change(base), seed=seed)


def architecture(name: str, called: str | None = None, **reported: float) -> Arm:
    """The arm with the variant of that name in place of the base's architecture."""
    return Arm(called or name, partial(with_variant, name=name), _columns(reported))


def setting(called: str, change: Callable[[Recipe], Recipe], **reported: float) -> Arm:
    """The arm with any other change of the recipe."""
    return Arm(called, change, _columns(reported))


def _columns(reported: Mapping[str, float]) -> dict[str, float]:
    """The paper's numbers by our columns: sink in percent, slot in percent, loss in nats."""
    names = {"sink": (SINK_1, 100), "slot": (SLOT_RATE, 100), "loss": (LOSS, 1)}
    return {names[name][0]: value / names[name][1] for name, value in reported.items()}


def measured(recipe: Recipe, sequences: int, cache: Path | None = None) -> dict[str, Cell]:
    """The state and the numbers of a recipe's run, which is trained where it is not in the cache.

    Where training diverges, the state says so, and all numbers are None. Raises InputError for everything else that
    prevents a run: a full disk, a model that cannot be measured.
    """
    none: dict[str, Cell] = dict.fromkeys((STATE, *NUMBERS))
    try:
        run = trained(recipe, cache)
    except Diverged as error:
        return none | {STATE: str(error).partition(";")[0]}
    return none | {STATE: TRAINED} | _numbers(run, sequences, cache or cache_folder())


def history_of(recipe: Recipe, cache: Path | None = None) -> list[dict[str, Any]]:
    """Losses and sinks during a recipe's run, which is made where it is not in the cache."""
    return trained(recipe, cache).history()


def _numbers(run: Run, sequences: int, cache: Path) -> dict[str, Cell]:
    """The numbers of a finished run on `sequences` held-out sequences; sinks in their first 64 positions."""
    held_out, subject = held_out_tokens(prepared(run.recipe.data, cache), sequences), run.subject()
    report = measure(subject, replace(held_out, tokens=held_out.tokens[:, :SINK_LENGTH]))
    null = report.bias_alpha().mean().item()
    return {
        LOSS: valid_loss(subject, held_out, run.recipe.objective).mean,
        **estimate_cells(SINK_1, report.sink(0, EPSILON)),
        **estimate_cells(ALPHA_1, estimate(report.alpha().mean((1, 2)))),
        NULL: null,
        EXCESS: report.alpha().mean().item() - null,
        RAW_ALPHA: report.raw_alpha().mean().item(),
        **_slot_numbers(report),
        **_strongest(report),
        VALUE_RATIO: report.value_ratio().mean().item(),
        KEY_RATIO: report.key_ratio().mean().item(),
        RESIDUAL_RATIO: report.residual_ratio().mean(0).max().item(),
        ONSET: onset(run.history(), null),
    }


def onset(history: list[dict[str, Any]], null: float) -> int | None:
    """The first evaluated step from which alpha_1 stays above its null by 0.05 until the end; None if it never does."""
    first = None
    for row in reversed(history):
        if row["alpha_1"] <= null + ONSET_MARGIN:
            break
        first = row["step"]
    return first


def _slot_numbers(report: Report) -> dict[str, Cell]:
    slot = report.slot_rate(EPSILON)
    if slot is None or report.slot_importance is None or report.slot_null is None:
        return {}
    alpha = estimate(report.slot_importance.mean((1, 2)))
    return {SLOT_RATE: slot.mean, **estimate_cells(ALPHA_SLOT, alpha), NULL_SLOT: report.slot_null.mean().item()}


def _strongest(report: Report) -> dict[str, Cell]:
    """The position, from 1, that receives most, of those that several queries see."""
    alphas, nulls = (values.mean((0, 1, 2)) for values in (report.importance, report.bias_null))
    place = int(alphas[: max(1, len(alphas) - FOLLOWERS + 1)].argmax())
    return {STRONGEST: place + 1, ALPHA_THERE: alphas[place].item(), NULL_THERE: nulls[place].item()}
