"""Table 14: a smaller scale of the normalisation weakens the sink; sigmoid attention has none at any rate or decay."""

from dataclasses import replace

from sinkinterp.data.choices import Scale
from sinkinterp.train.recipe import Recipe, with_variant

from .shared.rules import has_no_sink, has_sink, higher
from .shared.study import Arm, architecture, setting, study


def _sigmoid(rate: float, decay: float, **reported: float) -> Arm:
    """Sigmoid attention with the base's rate multiplied, and its decay replaced by another multiple of it."""

    def change(recipe: Recipe) -> Recipe:
        scaled = replace(recipe, lr=recipe.lr * rate, weight_decay=recipe.weight_decay * decay)
        return with_variant(scaled, "sigmoid")

    return setting(f"sigmoid, rate x {rate:g}, decay x {decay:g}", change, **reported)


SIGMOIDS = (
    _sigmoid(1, 0, sink=0.64, loss=3.77),
    _sigmoid(1, 1, sink=0.44, loss=3.70),
    _sigmoid(1, 5, sink=0.18, loss=3.76),
    _sigmoid(1, 10, sink=0.30, loss=4.06),
    _sigmoid(2.5, 1, sink=0.81, loss=3.68),
    _sigmoid(0.25, 1, sink=0.36, loss=4.08),
)
EXPERIMENT = study(
    claim="A scale alpha below 1 weakens the sink and does not prevent it; sigmoid attention without normalisation "
    "has none, whatever its learning rate and weight decay.",
    arms=(
        architecture("alpha_2", sink=29.10, loss=3.72),
        architecture("softmax", sink=18.18, loss=3.73),
        architecture("alpha_0.2", sink=9.41, loss=3.72),
        architecture("alpha_0.1", sink=3.59, loss=3.76),
        architecture("alpha_0.05", sink=4.53, loss=3.78),
        *SIGMOIDS,
    ),
    rules=(
        higher("alpha_2", than="softmax"),
        *(higher("softmax", than=name) for name in ("alpha_0.2", "alpha_0.1", "alpha_0.05")),
        has_sink("alpha_0.2"),
        *(has_no_sink(arm.name, baseline="softmax") for arm in SIGMOIDS),
        *(higher("softmax", than=arm.name) for arm in SIGMOIDS),
    ),
    note="importance of proxy scores, rows divided by their sum",
    editions={
        Scale.TEXT: (
            "alpha_2",
            "softmax",
            "alpha_0.2",
            "sigmoid, rate x 1, decay x 1",
            "sigmoid, rate x 1, decay x 5",
            "sigmoid, rate x 2.5, decay x 1",
        )
    },
)
