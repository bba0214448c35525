"""Figures 5 (right) and 28: with few training data the model overfits, and the sink does not come."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.changes import Limited
from sinkinterp.runs.rules import HasNoSink, HasSink, Higher
from sinkinterp.runs.study import Arm, Edition, setting, study
from sinkinterp.train.recipe import Recipe

AMOUNTS = (100, 1000, 5000, 20_000)


def _arm(sequences: int) -> Arm:
    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, data=Limited(sequences, BigramBackcopy()))

    return setting(f"{sequences} sequences", change)


ALL = "5,000M tokens"
SHARES = {"2,500M tokens": 0.5, "500M tokens": 0.1, "200M tokens": 0.04, "100M tokens": 0.02, "50M tokens": 0.01}


def _share(name: str, share: float) -> Arm:
    """The paper's model on a share of the text, for as many steps."""
    return setting(name, lambda recipe: replace(recipe, data=replace(recipe.data, share=share)))


PAPER = Edition(
    arms=(setting(ALL, lambda recipe: recipe, sink=18.18, loss=3.73), *(_share(*each) for each in SHARES.items())),
    rules=(
        HasSink(ALL),
        *(HasNoSink(name) for name in ("100M tokens", "50M tokens")),
        *(Higher(ALL, than=name, at_equal_loss=False) for name in ("100M tokens", "50M tokens")),
    ),
    note="amounts are shares of a text of 5 billion tokens, as the paper's; of a smaller text they are smaller",
)
EXPERIMENT = study(
    claim="With few different training sequences the model overfits and has no sink, at the same number of steps.",
    arms=(setting("all", lambda recipe: recipe), *map(_arm, AMOUNTS)),
    rules=(
        HasSink("all"),
        HasNoSink("100 sequences"),
        HasNoSink("1000 sequences"),
        Higher("all", than="100 sequences", at_equal_loss=False),
        Higher("all", than="1000 sequences", at_equal_loss=False),
    ),
    note="overfitting is part of the claim, so losses differ; the whole run sees 51,200 sequences once each",
    paper=PAPER,
)
