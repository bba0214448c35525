"""Trains on few or many different texts, for the same number of steps (Gu et al. 2025, Figures 5 and 28)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.choices import Scale
from sinkinterp.train.recipe import Recipe

from .study import Arm, setting
from .tasks import Limited


@dataclass(frozen=True)
class Amounts:
    """Models of one scale: on all data, on parts of them, and the names of those whose data are few."""

    whole: Arm
    parts: Sequence[Arm]
    few: Sequence[str]
    note: str = ""

    @property
    def arms(self) -> Sequence[Arm]:
        """The whole, then the parts."""
        return (self.whole, *self.parts)


def _all(name: str, **reported: float) -> Arm:
    return setting(name, lambda recipe: recipe, **reported)


def _limited(sequences: int) -> Arm:
    """The toy, trained on this number of different sequences."""

    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, data=Limited(sequences, BigramBackcopy()))

    return setting(f"{sequences} sequences", change)


def _share(name: str, share: float) -> Arm:
    """A model of text, which sees a share of it."""
    return setting(name, lambda recipe: replace(recipe, data=replace(recipe.data, share=share)))


_OF_PAPER = {"2,500M tokens": 0.5, "500M tokens": 0.1, "200M tokens": 0.04, "100M tokens": 0.02, "50M tokens": 0.01}
TOYS = Amounts(_all("all"), [*map(_limited, (100, 1000, 5000, 20_000))], ("100 sequences", "1000 sequences"))
TEXT = Amounts(
    _all("all"),
    [_share("10% of the text", 0.1), _share("3% of the text", 0.03)],
    ("10% of the text", "3% of the text"),
    "all of the installation's text, 6.5 million tokens, is read 3.8 times, 10% of it 38 times, and 3% 127 times; the "
    "paper's 100 and 50 million tokens are read 50 and 100 times",
)
PAPERS = Amounts(
    _all("5,000M tokens", sink=18.18, loss=3.73),
    [_share(*each) for each in _OF_PAPER.items()],
    ("50M tokens", "100M tokens"),
    "amounts are shares of a text of 5 billion tokens, as the paper's; of a smaller text they are smaller",
)
AMOUNTS = {Scale.TEXT: TEXT, Scale.PAPER: PAPERS}
