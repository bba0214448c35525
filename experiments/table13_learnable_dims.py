"""Table 13: a k* with few learnable dimensions already draws attention, and more dimensions draw more."""

from sinkinterp.report.columns import ALPHA_SLOT, NULL_SLOT
from sinkinterp.runs.rules import HasSink, Higher
from sinkinterp.runs.study import architecture, study

EXPERIMENT = study(
    claim="K biases with one learnable dimension already draw attention; with more dimensions they draw more.",
    arms=(
        architecture("k_bias_1d", sink=4.74),
        architecture("k_bias_2d", sink=4.96),
        architecture("k_bias_4d", sink=4.39),
        architecture("k_bias_8d"),
        architecture("k_bias", slot=73.34, sink=0.0, loss=3.72),
    ),
    rules=(
        HasSink("k_bias_1d", ALPHA_SLOT, NULL_SLOT),
        Higher("k_bias", than="k_bias_1d", quantity=ALPHA_SLOT),
        Higher("k_bias_8d", than="k_bias_1d", quantity=ALPHA_SLOT),
    ),
    note="k_bias has as many learnable dimensions as a head: 32 here, 96 in the paper, where 32 have Sink_* 51.23% and "
    "Sink_1 1.94%, and 64 have 69.19% and 0.04%; of fewer dimensions its text gives us Sink_1 alone",
)
