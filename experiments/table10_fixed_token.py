"""Table 10 (right) and section 5: the sink is where the same token always stands, or where nothing can be predicted."""

from sinkinterp.data.changes import FixedAt, RandomAt
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.rules import Higher, SinkAt
from sinkinterp.runs.study import study

from .shared.changed_text import on_changed_text

RARE = 63  # the rarest symbol, which is not a trigger
EXPERIMENT = study(
    claim="A token that is always the same draws the sink to its position, first, second or third; random tokens at "
    "the first position make a stronger sink there, and at the first two move it to the second.",
    arms=(
        on_changed_text("as drawn", sink=18.18),
        *(on_changed_text(f"fixed at {p}", FixedAt(p - 1, RARE), sink=s) for p, s in ((1, 74.11), (2, 0.0), (3, 0.0))),
        on_changed_text("random at 1", RandomAt(0, 1), sink=27.03),
        on_changed_text("random at 1, 2", RandomAt(0, 2), sink=1.98),
        on_changed_text("random at 2", RandomAt(1, 2), sink=20.99),
    ),
    rules=(
        *(SinkAt(f"fixed at {p}", (p,)) for p in (1, 2, 3)),
        Higher("random at 1", than="as drawn", at_equal_loss=False),
        SinkAt("random at 1, 2", (2,)),
        SinkAt("random at 2", (1,)),
    ),
    note="the paper's Sink_2 is 69.03% with the token fixed at 2, Sink_3 69.64% at 3, Sink_2 14.08% with two random "
    "tokens; held-out sequences are changed like those for training",
    editions={Scale.TEXT: ("as drawn", "fixed at 2", "random at 1", "random at 1, 2")},  # as drawn has BOS at 1
)
