"""Tables 4 and 6 on text: small models of Python code that repeats itself, the twins that ship among them."""

from sinkinterp.data.choices import Scale
from sinkinterp.table import ALPHA_SLOT, NULL_SLOT

from .shared.rules import has_no_sink, has_sink, higher, setup
from .shared.study import architecture, study

EXPERIMENT = study(
    claim="On text softmax attention makes a sink; with K biases it leaves the first token, and sigmoid makes none.",
    arms=(
        architecture("softmax", sink=18.18, loss=3.73),
        architecture("k_bias", slot=73.34, sink=0.0, loss=3.72),
        architecture("sigmoid", sink=0.44, loss=3.70),
    ),
    rules=(
        setup(has_sink("softmax")),
        has_sink("k_bias", ALPHA_SLOT, NULL_SLOT),
        has_no_sink("k_bias", baseline="softmax"),
        has_no_sink("sigmoid", baseline="softmax"),
        higher("softmax", than="k_bias"),
        higher("softmax", than="sigmoid"),
    ),
    scales=(Scale.SMOKE, Scale.TEXT),
    note="BOS first, code of Python's standard library and copies of its spans; the seed decides how strong a sink is",
)
