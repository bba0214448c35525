"""Table 10 (right) and section 5: the sink is on a token that is always the same, or where nothing can be predicted."""

from sinkinterp.data.choices import Scale

from .shared.changed_text import on_changed_text
from .shared.rules import higher, sink_at
from .shared.study import Edition, study
from .shared.tasks import FixedAt, RandomAt

RARE = 63  # the rarest symbol, which is not a trigger
NOTE = (
    "the paper's Sink_2 is 69.03% with the token fixed at 2, Sink_3 69.64% at 3, Sink_2 14.08% with two random tokens; "
    "held-out sequences are changed like those for training"
)
AS_DRAWN = on_changed_text("as drawn", sink=18.18)
FIXED = [
    on_changed_text(f"fixed at {p}", FixedAt(p - 1, RARE), sink=sink) for p, sink in ((1, 74.11), (2, 0.0), (3, 0.0))
]
RANDOM = on_changed_text("random at 1", RandomAt(0, 1), sink=27.03)
TWO_RANDOM = on_changed_text("random at 1, 2", RandomAt(0, 2), sink=1.98)
RANDOM_THEN_FIXED = on_changed_text("random at 1, fixed at 2", RandomAt(0, 1), FixedAt(1, RARE))
OF_RANDOM = (higher("random at 1", than="as drawn", at_equal_loss=False), sink_at("random at 1, 2", (2,)))
EXPERIMENT = study(
    claim="A token that is always the same draws the sink to its position, first, second or third; random tokens at "
    "the first position make a stronger sink there, and at the first two move it to the second.",
    arms=(AS_DRAWN, *FIXED, RANDOM, TWO_RANDOM, on_changed_text("random at 2", RandomAt(1, 2), sink=20.99)),
    rules=(*(sink_at(f"fixed at {p}", (p,)) for p in (1, 2, 3)), *OF_RANDOM, sink_at("random at 2", (1,))),
    note=NOTE,
    editions={
        Scale.TEXT: Edition(
            (AS_DRAWN, FIXED[1], RANDOM, TWO_RANDOM, RANDOM_THEN_FIXED),
            (sink_at("fixed at 2", (2,)), *OF_RANDOM, sink_at("random at 1, fixed at 2", (2,))),
            f"{NOTE}; BOS is a fixed token at 1, where no random one stands; the last model was added after the others "
            "had been seen",
        )
    },
)
