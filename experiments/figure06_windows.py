"""Figure 6: with a sliding window the sink stays on the first token of the text; narrow windows prevent it."""

from dataclasses import replace

from sinkinterp.attention.masks import Causal, Window
from sinkinterp.data.choices import Scale
from sinkinterp.lm.variants import attn

from .shared.rules import has_sink, higher, setup, sink_at
from .shared.study import Arm, Edition, setting, study

NOTE = "importance is the mean over the queries that see the token, which the paper's divisor does not correct for"


def _arm(width: int) -> Arm:
    return setting(f"window {width}", lambda r: replace(r, model=attn(r.model, mask=Causal() & Window(width))))


def _edition(*widths: int, middle: int, length: int) -> Edition:
    """Windows from the narrowest to the widest, on texts of `length` tokens. The paper gives a curve, not numbers."""
    narrowest, widest = (f"window {width}" for width in (widths[0], widths[-1]))
    rules = (
        setup(has_sink(widest)),
        sink_at(f"window {middle}", (1,)),
        higher("causal", than=narrowest, at_equal_loss=False),
        higher(widest, than=narrowest, at_equal_loss=False),
    )
    arms = (setting("causal", lambda recipe: recipe), *map(_arm, widths))
    return Edition(arms, rules, f"{NOTE}; windows count in tokens of {length:,} here")


TOYS = _edition(2, 4, 8, 12, middle=8, length=16)
EXPERIMENT = study(
    claim="The sink is on the first token of the text, not of the window, and needs a window that is wide enough.",
    arms=TOYS.arms,
    rules=TOYS.rules,
    note=TOYS.note,
    editions={
        Scale.TEXT: _edition(8, 32, 48, middle=32, length=64),
        Scale.PAPER: _edition(64, 128, 256, 512, 1024, middle=256, length=2048),
    },
)
