"""Table 5: the longer a fixed v*, the more of the sink returns to the first token."""

from sinkinterp.data.choices import Scale
from sinkinterp.table import ALPHA_SLOT, RESIDUAL_RATIO

from .shared.rules import higher
from .shared.study import architecture, study

EXPERIMENT = study(
    claim="With K biases of a fixed value vector, a longer one sends the sink from the slot back to the first token.",
    arms=(
        architecture("k_bias", "v* = 0", slot=73.34, sink=0.0, loss=3.72),
        architecture("k_bias_e1", "v* = e1", slot=70.03, sink=0.06, loss=3.72),
        architecture("k_bias_5e1", "v* = 5 e1", slot=44.43, sink=3.71, loss=3.72),
        architecture("k_bias_20e1", "v* = 20 e1", slot=1.51, sink=25.88, loss=3.73),
        architecture("k_bias_even", "v* = even", slot=69.74, sink=2.15, loss=3.72),
        architecture("k_bias_5even", "v* = 5 even", slot=27.99, sink=5.93),
        architecture("k_bias_20even", "v* = 20 even", slot=0.0, sink=11.21, loss=3.73),
    ),
    rules=(
        *(higher("v* = 0", than=name, quantity=ALPHA_SLOT) for name in ("v* = 20 e1", "v* = 20 even")),
        *(higher(name, than="v* = 0") for name in ("v* = 20 e1", "v* = 20 even")),
        *(higher(name, than="v* = 0", quantity=RESIDUAL_RATIO) for name in ("v* = 20 e1", "v* = 20 even")),
    ),
    note="e1: the first axis; even: all entries equal, of norm 1; residual ratio: Figure 7 (right)",
    editions={Scale.TEXT: ("v* = 0", "v* = 20 e1", "v* = 20 even")},
)
