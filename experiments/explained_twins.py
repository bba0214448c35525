"""Planted sinks are explained: p1 in the softmax toy, the learned key k* in the toy with K biases."""

from collections.abc import Sequence
from functools import partial

from sinkinterp.data.choices import Scale
from sinkinterp.report.explanation import SHARE
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import MODEL, SEED, Table
from sinkinterp.train.recipe import demo_recipe

from .shared.cases import Model, on_models
from .shared.explanations import LINE, NAME, TO, WHAT, draw, rows_of

CLAIM = "explain finds what was planted: the first position in the softmax toy, k* in the toy with a learned key."
PLANTED = {"softmax": "position", "k_bias": "k*"}
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: [f"sinkinterp/demo-{variant}" for variant in PLANTED],
    Scale.DEMO: [demo_recipe(variant, seed) for seed in range(5) for variant in PLANTED],
}
OTHERS = 0.1  # the most that another part may have of a score


def _is_found(table: Table, variant: str) -> tuple[bool | None, str]:
    """Tells if the planted part is the largest, and no other above a tenth, in four of five seeds."""
    lines = [row for row in table.where(**{WHAT: LINE}).records() if str(row[MODEL]).endswith(variant)]
    found, shown = [], []
    for seed in dict.fromkeys(row[SEED] for row in lines):
        mine = {(row[NAME], row[TO]): float(row[SHARE] or 0) for row in lines if row[SEED] == seed}
        planted = [share for (name, _), share in mine.items() if name == PLANTED[variant]]
        others = [share for (name, _), share in mine.items() if name != PLANTED[variant]]
        found.append(bool(planted) and min(planted) > max(others, default=0) and max(others, default=0) <= OTHERS)
        shown.append(f"{min(planted, default=0):.0%} beside {max(others, default=0):.0%}")
    return sum(found) >= 0.8 * len(found), f"smallest planted share, largest other: {', '.join(shown)}"


RULES: Sequence[Rule] = tuple(
    Rule(
        f"{variant}: {part} makes most of every score, and nothing else above a tenth, in four of five seeds",
        partial(_is_found, variant=variant),
    )
    for variant, part in PLANTED.items()
)

EXPERIMENT = on_models(CLAIM, MODELS, rows_of, draw, RULES)
