"""Table 10 (right) and section 5: the sink is where the same token always stands, or where nothing can be predicted."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy, ChainFirst
from sinkinterp.data.changes import Edited, FixedAt, RandomAt, TokenChange
from sinkinterp.data.packing import PackedText
from sinkinterp.runs.rules import HasNoSink, Higher, SinkAt
from sinkinterp.runs.study import Arm, setting, study
from sinkinterp.train.recipe import Recipe


def _arm(name: str, *edits: TokenChange, **reported: float) -> Arm:
    """The base on changed sequences; the toys' are cut out of the middle of the chain, as chunks of a text are."""
    task = Edited(BigramBackcopy(first=ChainFirst()), edits)

    def change(recipe: Recipe) -> Recipe:
        is_text = isinstance(recipe.data, PackedText)
        return replace(recipe, data=replace(recipe.data, edits=edits) if is_text else task)

    return setting(name, change, **reported)


RARE = 63  # the rarest symbol, which is not a trigger
MORE = (4, 8)  # random tokens from the first on; the paper says "more" and gives no number
EXPERIMENT = study(
    claim="A token that is always the same draws the sink to its position, first, second or third; random tokens at "
    "the first position make a stronger sink there, and at the first two move it to the second; more random tokens "
    "leave no sink.",
    arms=(
        _arm("as drawn", sink=18.18),
        *(_arm(f"fixed at {p}", FixedAt(p - 1, RARE), sink=s) for p, s in ((1, 74.11), (2, 0.0), (3, 0.0))),
        _arm("random at 1", RandomAt(0, 1), sink=27.03),
        _arm("random at 1, 2", RandomAt(0, 2), sink=1.98),
        _arm("random at 2", RandomAt(1, 2), sink=20.99),
        *(_arm(f"random at 1 to {stop}", RandomAt(0, stop)) for stop in MORE),
    ),
    rules=(
        *(SinkAt(f"fixed at {p}", (p,)) for p in (1, 2, 3)),
        Higher("random at 1", than="as drawn", at_equal_loss=False),
        SinkAt("random at 1, 2", (2,)),
        SinkAt("random at 2", (1,)),
        *(HasNoSink(f"random at 1 to {stop}") for stop in MORE),
    ),
    note="the paper's Sink_2 is 69.03% with the token fixed at 2, Sink_3 69.64% at 3, Sink_2 14.08% with two random "
    "tokens; held-out sequences are changed like those for training",
)
