"""Table 4: learned keys take the sink over; learned values do not."""

from sinkinterp.table import ALPHA_SLOT, NULL_SLOT

from .shared.rules import has_no_sink, has_sink, higher
from .shared.study import architecture, study

SLOTS = ("sink_token", "kv_bias", "k_bias")
EXPERIMENT = study(
    claim="With a sink token, KV biases or K biases the sink leaves the first token for them; with V biases it stays.",
    arms=(
        architecture("softmax", sink=18.18, loss=3.73),
        architecture("sink_token", slot=74.12, sink=0.0, loss=3.72),
        architecture("kv_bias", slot=72.76, sink=0.04, loss=3.72),
        architecture("k_bias", slot=73.34, sink=0.0, loss=3.72),
        architecture("v_bias", sink=17.53, loss=3.73),
    ),
    rules=(
        *(has_no_sink(slot, baseline="softmax") for slot in SLOTS),
        *(higher("softmax", than=slot) for slot in SLOTS),
        *(has_sink(slot, ALPHA_SLOT, NULL_SLOT) for slot in SLOTS),
        has_sink("v_bias"),
    ),
)
