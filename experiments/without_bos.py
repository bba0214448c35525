"""Tables 4 and 6 on text without BOS, as the paper reads its models, so that any token may come first."""

from sinkinterp.data.choices import Scale
from sinkinterp.table import ALPHA_SLOT, NULL_SLOT

from .shared.rules import has_no_sink, has_sink, higher
from .shared.study import architecture, study

OTHERS = ("rotary", "k_bias", "sigmoid", "gated")
EXPERIMENT = study(
    claim="On text without BOS softmax attention makes a sink on whichever token comes first if a learned position "
    "marks it. With K biases it leaves, and neither sigmoid attention nor a gate after softmax makes one.",
    arms=(
        architecture("softmax", sink=33.13, loss=3.79),
        architecture("rotary", sink=18.18, loss=3.73),
        architecture("k_bias", slot=73.34, sink=0.0, loss=3.72),
        architecture("sigmoid", sink=0.44, loss=3.70),
        architecture("gated"),
    ),
    rules=(
        has_sink("softmax"),
        has_sink("rotary"),
        has_sink("k_bias", ALPHA_SLOT, NULL_SLOT),
        *(has_no_sink(name, baseline="softmax") for name in OTHERS[1:]),
        *(higher("softmax", than=name) for name in OTHERS),
    ),
    scales=(Scale.SMOKE, Scale.GPU),
    note="softmax has learned positions, as all but rotary; the paper's K biases and sigmoid have rotary ones; "
    "Python's standard library and eight packages, 39.6 million tokens; the rules were written after pilots "
    "of one other seed, and before the runs",
)
