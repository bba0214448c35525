"""Table 10 (left): the batch size does not matter."""

from dataclasses import replace

from sinkinterp.train.recipe import Recipe

from .shared.rules import alike, has_sink, setup
from .shared.study import Arm, setting, study

REPORTED = {0.25: (16.45, 3.92), 0.5: (17.19, 3.78), 1: (18.18, 3.73), 2: (16.19, 3.68)}


def _arm(factor: float) -> Arm:
    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, batch=max(1, int(recipe.batch * factor)))

    sink, loss = REPORTED[factor]
    return setting(f"batch x {factor:g}", change, sink=sink, loss=loss)


EXPERIMENT = study(
    claim="The batch size does not matter: the sink comes with each.",
    arms=tuple(_arm(factor) for factor in REPORTED),
    rules=(
        *(setup(has_sink(f"batch x {factor:g}")) for factor in REPORTED),
        *(alike(f"batch x {factor:g}", than="batch x 1") for factor in REPORTED if factor != 1),
    ),
    note="the number of steps stays, so larger batches see more data",
)
