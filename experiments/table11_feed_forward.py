"""Table 11: the activation of the feed-forward layers does not matter."""

from sinkinterp.data.choices import Scale

from .shared.rules import alike, has_sink, setup
from .shared.study import architecture, study

NAMES = ("relu", "gelu", "swish", "reglu", "geglu", "swiglu")
EXPERIMENT = study(
    claim="The activation of the feed-forward layers does not matter: the sink comes with each.",
    arms=(
        architecture("relu", sink=16.90, loss=3.82),
        architecture("gelu", sink=14.76, loss=3.79),
        architecture("swish", sink=17.89, loss=3.80),
        architecture("reglu", sink=13.88, loss=3.75),
        architecture("geglu", sink=17.86, loss=3.73),
        architecture("swiglu", sink=18.18, loss=3.73),
    ),
    rules=(
        *(setup(has_sink(name, baseline="swiglu")) for name in NAMES),
        *(alike(name, than="swiglu") for name in NAMES if name != "swiglu"),
    ),
    note="layers without a gate have a third fewer parameters",
    editions={Scale.TEXT: ("relu", "gelu", "geglu", "swiglu")},
)
