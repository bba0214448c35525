"""How much different text a model is trained on, for as many steps (Gu et al. 2025, Figures 5 and 28)."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.changes import Limited
from sinkinterp.runs.study import Arm, setting
from sinkinterp.train.recipe import Recipe

ALL, PAPERS_ALL = "all", "5,000M tokens"
_SHARES = {"2,500M tokens": 0.5, "500M tokens": 0.1, "200M tokens": 0.04, "100M tokens": 0.02, "50M tokens": 0.01}
NOTE = "amounts are shares of a text of 5 billion tokens, as the paper's; of a smaller text they are smaller"


def _limited(sequences: int) -> Arm:
    """The toy, which sees so many different sequences."""

    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, data=Limited(sequences, BigramBackcopy()))

    return setting(f"{sequences} sequences", change)


def _share(name: str, share: float) -> Arm:
    """The paper's model, which sees a share of the text."""
    return setting(name, lambda recipe: replace(recipe, data=replace(recipe.data, share=share)))


TOYS = (setting(ALL, lambda recipe: recipe), *map(_limited, (100, 1000, 5000, 20_000)))
PAPERS = (
    setting(PAPERS_ALL, lambda recipe: recipe, sink=18.18, loss=3.73),
    *(_share(*each) for each in _SHARES.items()),
)
