"""Figure 6: with a sliding window the sink stays on the first token of the text; narrow windows prevent it."""

from dataclasses import replace

from sinkinterp.attention.masks import Causal, Window
from sinkinterp.lm.variants import attn
from sinkinterp.runs.rules import HasSink, Higher, SinkAt
from sinkinterp.runs.study import Arm, Edition, setting, study


def _arm(width: int) -> Arm:
    return setting(f"window {width}", lambda r: replace(r, model=attn(r.model, mask=Causal() & Window(width))))


WIDTHS = (2, 4, 8, 12)
CAUSAL = setting("causal", lambda recipe: recipe)
PAPER = Edition(  # the paper gives a curve, not numbers
    arms=(CAUSAL, *map(_arm, (64, 128, 256, 512, 1024))),
    rules=(
        HasSink("window 1024"),
        SinkAt("window 256", (1,)),
        Higher("causal", than="window 64", at_equal_loss=False),
        Higher("window 1024", than="window 64", at_equal_loss=False),
    ),
)
EXPERIMENT = study(
    claim="The sink is on the first token of the text, not of the window, and needs a window that is wide enough.",
    arms=(CAUSAL, *map(_arm, WIDTHS)),
    rules=(
        HasSink("window 12"),
        SinkAt("window 8", (1,)),
        Higher("causal", than="window 2", at_equal_loss=False),
        Higher("window 12", than="window 2", at_equal_loss=False),
    ),
    note="importance is the mean over the queries that see the token, which the paper's divisor does not correct for; "
    "windows count in tokens of 16 here",
    paper=PAPER,
)
