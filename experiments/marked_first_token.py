"""Table 3 and section 7.2 again: the same models where the first token is always the same, as BOS is."""

from collections.abc import Callable
from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.choices import Scale
from sinkinterp.train.recipe import Recipe, with_variant

from .shared.rules import has_sink
from .shared.study import Arm, setting, study
from .shared.tasks import Edited, FixedAt

FIRST = 63  # the rarest symbol, which is not a trigger
POSITIONS = ("learned", "no_position", "sinusoidal", "t5", "alibi", "rotary")


def _changed(variant: str) -> Callable[[Recipe], Recipe]:
    task = Edited(BigramBackcopy(), (FixedAt(0, FIRST),))
    return lambda recipe: replace(with_variant(recipe, variant), data=task)


def _arm(variant: str) -> Arm:
    return setting(variant, _changed(variant))


EXPERIMENT = study(
    claim="Where the first token is marked, every position embedding makes a sink on it, and so do none and post-norm.",
    arms=tuple(map(_arm, (*POSITIONS, "post_norm"))),
    rules=tuple(has_sink(name, baseline="learned") for name in (*POSITIONS, "post_norm")),
    scales=(Scale.SMOKE, Scale.DEMO),
    note="looks into the failures of Table 3 and section 7.2 on toys, whose first token is otherwise random, so that "
    "only a learned position can mark it; the rules were written before the runs",
)
