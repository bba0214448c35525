"""Table 9 and Figure 4 (right): a small learning rate makes a weak sink, also when it is given more steps."""

from dataclasses import replace

from sinkinterp.data.choices import Scale
from sinkinterp.train.recipe import Recipe

from .shared.rules import higher
from .shared.study import Arm, setting, study


def _arm(rate: float, steps: float, sink: float, loss: float) -> Arm:
    """The base with its rate and its steps multiplied."""

    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, lr=recipe.lr * rate, steps=max(1, round(recipe.steps * steps)))

    return setting(f"rate x {rate:g}, steps x {steps:g}", change, sink=sink, loss=loss)


EXPERIMENT = study(
    claim="Small learning rates make weak sinks, even with as many more steps as the rate is smaller.",
    arms=(
        _arm(1, 1, 18.18, 3.73),
        _arm(2, 0.5, 23.44, 3.79),
        _arm(2, 1, 32.23, 3.70),
        _arm(0.5, 1, 11.21, 3.78),
        _arm(0.5, 2, 16.81, 3.68),
        _arm(0.25, 1, 2.90, 3.92),
        _arm(0.25, 4, 6.29, 3.67),
    ),
    rules=(
        higher("rate x 1, steps x 1", than="rate x 0.5, steps x 1", at_equal_loss=False),
        higher("rate x 1, steps x 1", than="rate x 0.25, steps x 1", at_equal_loss=False),
        higher("rate x 1, steps x 1", than="rate x 0.5, steps x 2", at_equal_loss=False),
        higher("rate x 1, steps x 1", than="rate x 0.25, steps x 4", at_equal_loss=False),
        higher("rate x 2, steps x 1", than="rate x 1, steps x 1", at_equal_loss=False),
    ),
    note="the paper compares models of unequal loss here, so losses stand beside the sinks",
    editions={
        Scale.TEXT: (
            "rate x 1, steps x 1",
            "rate x 2, steps x 1",
            "rate x 0.5, steps x 1",
            "rate x 0.5, steps x 2",
            "rate x 0.25, steps x 1",
        )
    },
)
