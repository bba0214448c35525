"""Models on sequences in which some tokens are always the same, or random (Gu et al. 2025, section 5)."""

from dataclasses import replace

from sinkinterp.data.backcopy import BigramBackcopy, ChainFirst
from sinkinterp.data.draws import TokenChange
from sinkinterp.data.packing import PackedText
from sinkinterp.train.recipe import Recipe

from .study import Arm, setting
from .tasks import Edited


def on_changed_text(name: str, *edits: TokenChange, **reported: float) -> Arm:
    """The base on changed sequences; the toys' are cut out of the middle of the chain, as chunks of a text are."""
    task = Edited(BigramBackcopy(first=ChainFirst()), edits)

    def change(recipe: Recipe) -> Recipe:
        is_text = isinstance(recipe.data, PackedText)
        return replace(recipe, data=replace(recipe.data, edits=edits) if is_text else task)

    return setting(name, change, **reported)
