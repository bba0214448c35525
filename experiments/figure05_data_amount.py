"""Figures 5 (right) and 28: with few training data the model overfits, and the sink does not come."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.changes import Limited
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.rules import HasNoSink, HasSink, Higher
from sinkinterp.runs.study import Arm, setting, study
from sinkinterp.train.recipe import Recipe

AMOUNTS = (100, 1000, 5000, 20_000)


def _arm(sequences: int) -> Arm:
    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, data=Limited(sequences, BigramBackcopy()))

    return setting(f"{sequences} sequences", change)


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
    scales=(Scale.SMOKE, Scale.DEMO),
    note="overfitting is part of the claim, so losses differ; the whole run sees 51,200 sequences once each",
)
