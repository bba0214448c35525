"""Figure 29, equations 43 and 44: other norms of the scores weaken the sink and do not prevent it."""

from dataclasses import replace
from functools import partial

from sinkinterp.attention.kernels import Exp, Kernel, PNorm, Sigmoid, Similarity
from sinkinterp.data.choices import Scale
from sinkinterp.lm.variants import attn
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, LOSS, MODEL, RESIDUAL_RATIO, SINK_1, Table

from .shared.rules import has_sink, higher, in_most_seeds, training_fails
from .shared.study import Arm, by_model, setting, study


def _arm(name: str, similarity: Similarity, p: float) -> Arm:
    kernel = Kernel(similarity=similarity, normaliser=PNorm(p))
    return setting(f"{name}, p = {p:.2g}", lambda recipe: replace(recipe, model=attn(recipe.model, kernel=kernel)))


def _is_as_long(table: Table, model: str) -> tuple[bool | None, str]:
    """Tells if the first token's residual ratio exceeds 1 by at least half of softmax's excess."""
    ratios, softmax = (table.where(**{MODEL: name}).numbers(RESIDUAL_RATIO) for name in (model, "softmax"))
    long = sum(one - 1 >= (other - 1) / 2 for one, other in zip(ratios, softmax, strict=True))
    words = f"{min(ratios):.2f} to {max(ratios):.2f}, with softmax {min(softmax):.2f} to {max(softmax):.2f}"
    return in_most_seeds(long, len(ratios)), f"{words}; in {long} of {len(ratios)} seeds"


ROOTS, POWERS = (1 / 4, 1 / 3, 1 / 2), (2.0, 3.0, 4.0)
_STUDY = study(
    claim="Dividing by the p-norm of the scores changes the strength of the sink and does not prevent it; softmax with "
    "p above 1 does not train.",
    arms=(
        setting("softmax", lambda recipe: recipe, sink=18.18, loss=3.73),
        *(_arm("softmax", Exp(), p) for p in (*ROOTS, *POWERS)),
        *(_arm("sigmoid", Sigmoid(), p) for p in (1 / 2, *POWERS)),
    ),
    rules=(
        *(has_sink(f"softmax, p = {p:.2g}") for p in ROOTS),
        higher("softmax", than="softmax, p = 0.25"),
        *(training_fails(f"softmax, p = {p:.2g}") for p in POWERS),
        *(has_sink(f"sigmoid, p = {p:.2g}") for p in POWERS),
        *(higher("softmax", than=f"softmax, p = {p:.2g}", quantity=RESIDUAL_RATIO) for p in (1 / 2, 1 / 4)),
        *(
            Rule(
                f"the residual ratio of sigmoid, p = {p:.2g}, is as far above 1 as half of that of softmax",
                partial(_is_as_long, model=f"sigmoid, p = {p:.2g}"),
                ("softmax", f"sigmoid, p = {p:.2g}"),
            )
            for p in POWERS
        ),
    ),
    note="importance of proxy scores, rows divided by their sum; residual ratio: norm of the first token over that "
    "of the others, the largest over blocks, as the paper measures here",
    editions={Scale.TEXT: ("softmax", "softmax, p = 0.25", "softmax, p = 0.5", "softmax, p = 2", "sigmoid, p = 2")},
)
EXPERIMENT = replace(_STUDY, draw=partial(by_model, quantities=(RESIDUAL_RATIO, ALPHA_1, SINK_1, LOSS)))
