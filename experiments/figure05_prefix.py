"""Figure 5 (left and middle): with prefix language modeling one token of the prefix is the sink."""

from dataclasses import replace

from sinkinterp.attention.masks import Causal, Prefix
from sinkinterp.lm.variants import attn
from sinkinterp.runs.catalogue import Scale
from sinkinterp.train.recipe import PrefixLM, Recipe

from .shared.rules import sink_at
from .shared.study import Arm, setting, study


def _arm(length: int) -> Arm:
    """The base with a prefix whose tokens see each other; the loss begins after it."""

    def change(recipe: Recipe) -> Recipe:
        model = attn(recipe.model, mask=Causal() | Prefix(length))
        return replace(recipe, model=model, objective=PrefixLM(length))

    return setting(f"prefix {length}", change)


# behind the first place, where the sink stands without a prefix
LENGTHS = (1, 2, 3, 4, 5)
EXPERIMENT = study(
    claim="With a prefix the sink comes as well; it stands among the tokens of the prefix, not always on the first.",
    arms=tuple(_arm(length) for length in LENGTHS),
    note="the paper also has a prefix of 10; sequences of toys have 16 tokens",
    rules=tuple(sink_at(f"prefix {length}", tuple(range(min(2, length), length + 1))) for length in LENGTHS),
    editions={Scale.TEXT: ("prefix 2", "prefix 5")},
)
