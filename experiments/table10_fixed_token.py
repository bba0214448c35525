"""Table 10 (right) and section 5: the sink is where the same token always stands, or where nothing can be predicted."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy, ChainFirst
from sinkinterp.data.changes import Edited, FixedAt, RandomAt, TokenChange
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.rules import Higher, SinkAt
from sinkinterp.runs.study import Arm, setting, study


def _arm(name: str, *edits: TokenChange, **reported: float) -> Arm:
    """The base on sequences cut out of the middle of the chain, whose first token is like any other, then changed."""
    task = Edited(BigramBackcopy(first=ChainFirst()), edits)
    return setting(name, lambda recipe: replace(recipe, data=task), **reported)


RARE = 63  # the rarest symbol, which is not a trigger
EXPERIMENT = study(
    claim="A token that is always the same draws the sink to its position, first, second or third; random tokens at "
    "the first position make a stronger sink there, and at the first two move it to the second.",
    arms=(
        _arm("as drawn", sink=18.18),
        *(_arm(f"fixed at {p}", FixedAt(p - 1, RARE), sink=s) for p, s in ((1, 74.11), (2, 0.0), (3, 0.0))),
        _arm("random at 1", RandomAt(0, 1), sink=27.03),
        _arm("random at 1, 2", RandomAt(0, 2), sink=1.98),
        _arm("random at 2", RandomAt(1, 2), sink=20.99),
    ),
    rules=(
        *(SinkAt(f"fixed at {p}", (p,)) for p in (1, 2, 3)),
        Higher("random at 1", than="as drawn", at_equal_loss=False),
        SinkAt("random at 1, 2", (2,)),
        SinkAt("random at 2", (1,)),
    ),
    scales=(Scale.SMOKE, Scale.DEMO),
    note="the paper's Sink_2 is 69.03% with the token fixed at 2, Sink_3 69.64% at 3, Sink_2 14.08% with two random "
    "tokens; held-out sequences are changed like those for training",
)
