"""Table 12: the number of heads and how they are joined do not matter; biases that heads share hold less sink."""

from functools import partial

from sinkinterp.data.choices import Scale
from sinkinterp.table import ALPHA_SLOT
from sinkinterp.train.recipe import Recipe, with_variant

from .shared.rules import alike, has_sink, higher, setup
from .shared.study import Edition, architecture, setting, study

HEADS = ("heads_1", "heads_2", "heads_4", "heads_8", "heads_added")
OF_MANY = {  # that need more than one head
    "heads_added": {"sink": 21.76, "loss": 3.74},
    "kv_bias": {"slot": 72.76, "sink": 0.04, "loss": 3.72},
    "kv_bias_shared": {"slot": 56.61, "sink": 12.44, "loss": 3.72},
    "k_bias": {"slot": 73.34, "sink": 0.0, "loss": 3.72},
    "k_bias_shared": {"slot": 68.31, "sink": 0.23, "loss": 3.72},
}


def _of_four_heads(recipe: Recipe, name: str) -> Recipe:
    return with_variant(with_variant(recipe, "heads_4"), name)


COUNTS = (
    architecture("heads_1", sink=19.50, loss=3.78),
    architecture("heads_2", sink=12.95, loss=3.76),
    architecture("heads_4", sink=10.68, loss=3.74),
    architecture("heads_8", sink=18.18, loss=3.73),
)
RULES = (
    *(setup(has_sink(name, baseline="heads_2")) for name in HEADS),
    *(alike(name, than="heads_2") for name in HEADS if name != "heads_2"),
    higher("kv_bias_shared", than="kv_bias"),
    higher("kv_bias", than="kv_bias_shared", quantity=ALPHA_SLOT),
    higher("kv_bias_shared", than="k_bias_shared"),
)
FOUR = tuple(setting(name, partial(_of_four_heads, name=name), **papers) for name, papers in OF_MANY.items())
EXPERIMENT = study(
    claim="The number of heads and how they are joined do not matter. Heads that share KV biases send a part of the "
    "sink back to the first token; K biases are less affected.",
    arms=(*COUNTS, *(architecture(name, None, **papers) for name, papers in OF_MANY.items())),
    rules=RULES,
    editions={Scale.TEXT: Edition((*COUNTS, *FOUR), RULES, "models with biases or added heads: four heads")},
)
