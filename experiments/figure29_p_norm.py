"""Figure 29, equations 43 and 44: other norms of the scores weaken the sink and do not prevent it."""

from dataclasses import replace

from sinkinterp.attention.kernels import Exp, Kernel, PNorm, Sigmoid, Similarity
from sinkinterp.lm.variants import attn
from sinkinterp.runs.rules import HasSink, Higher, NotAsked, TrainingFails
from sinkinterp.runs.study import Arm, architecture, setting, study


def _arm(name: str, similarity: Similarity, p: float) -> Arm:
    kernel = Kernel(similarity=similarity, normaliser=PNorm(p))
    return setting(f"{name}, p = {p:.2g}", lambda recipe: replace(recipe, model=attn(recipe.model, kernel=kernel)))


ROOTS, POWERS = (1 / 4, 1 / 3, 1 / 2), (2.0, 3.0, 4.0)
PLAIN = "sigmoid, not normalised"
EXPERIMENT = study(
    claim="Dividing by the p-norm of the scores changes the strength of the sink and does not prevent it; softmax with "
    "p above 1 does not train.",
    arms=(
        setting("softmax", lambda recipe: recipe, sink=18.18, loss=3.73),
        *(_arm("softmax", Exp(), p) for p in (*ROOTS, *POWERS)),
        *(_arm("sigmoid", Sigmoid(), p) for p in (1 / 2, *POWERS)),
        architecture("sigmoid", PLAIN, sink=0.44, loss=3.70),
    ),
    rules=(
        *(HasSink(f"softmax, p = {p:.2g}") for p in ROOTS),
        Higher("softmax", than="softmax, p = 0.25"),
        *(TrainingFails(f"softmax, p = {p:.2g}") for p in POWERS),
        *(HasSink(f"sigmoid, p = {p:.2g}") for p in POWERS),
        NotAsked("smaller p makes massive activations smaller", "the toy has none to begin with"),
    ),
    note="importance of proxy scores, rows divided by their sum",
)
