"""Table 2: weight decay makes sinks stronger, until it ruins the model."""

from dataclasses import replace

from sinkinterp.data.choices import Scale
from sinkinterp.train.recipe import Recipe

from .shared.rules import has_sink, higher
from .shared.study import Arm, Edition, setting, study

SINKS = {0.0: 15.20, 0.001: 15.39, 0.01: 15.23, 0.1: 18.18, 0.5: 41.08, 1.0: 37.71, 2.0: 6.13, 5.0: 0.01}
LOSSES = {0.0: 3.72, 0.001: 3.72, 0.01: 3.72, 0.1: 3.73, 0.5: 3.80, 1.0: 3.90, 2.0: 4.23, 5.0: 5.24}
TEXT = {0.0: 0.0, 0.003: None, 0.012: 0.1, 0.03: None, 0.06: 0.5, 0.1: None, 0.5: None, 1.0: None, 5.0: None}
SAME_SUM = "the paper's numbers stand beside the decay whose product with the sum of the learning rates is the paper's"


def _arm(decay: float, papers: float | None) -> Arm:
    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, weight_decay=decay)

    reported = {} if papers is None else {"sink": SINKS[papers], "loss": LOSSES[papers]}
    return setting(f"decay {decay:g}", change, **reported)


NOTE = "the paper compares models of unequal loss here, so losses stand beside the sinks"
EXPERIMENT = study(
    claim="More weight decay makes the sink stronger; much more ruins the model, and then the sink is gone.",
    arms=tuple(_arm(decay, decay) for decay in SINKS),
    rules=(
        has_sink("decay 0"),
        higher("decay 0.5", than="decay 0", at_equal_loss=False),
        higher("decay 1", than="decay 0.1", at_equal_loss=False),
        higher("decay 1", than="decay 5", at_equal_loss=False),
    ),
    note=NOTE,
    editions={
        Scale.TEXT: Edition(
            tuple(_arm(decay, papers) for decay, papers in TEXT.items()),
            (
                has_sink("decay 0"),
                higher("decay 0.06", than="decay 0", at_equal_loss=False),
                higher("decay 0.1", than="decay 0.012", at_equal_loss=False),
                higher("decay 0.1", than="decay 0.5", at_equal_loss=False),
                higher("decay 0.1", than="decay 5", at_equal_loss=False),
            ),
            f"{NOTE}; {SAME_SUM}",
        )
    },
)
