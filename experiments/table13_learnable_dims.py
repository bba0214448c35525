"""Table 13: a k* with few learnable dimensions already draws attention, and more dimensions draw more."""

from collections.abc import Sequence
from dataclasses import replace

from sinkinterp.attention.slots import KeySlot, LearnedRow
from sinkinterp.data.choices import Scale
from sinkinterp.lm.variants import attn
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_SLOT, NULL_SLOT

from .shared.rules import has_sink, higher
from .shared.study import Arm, Edition, architecture, setting, study

SINKS = {1: 4.74, 2: 4.96, 4: 4.39, 32: 1.94, 64: 0.04}  # Sink_1 in the paper, by learnable dimensions
SLOTS = {32: 51.23, 64: 69.19}  # Sink_* in the paper; the text that we have of its table lacks the others


def _arm(dims: int) -> Arm:
    """K biases of which the first `dims` dimensions are trained."""
    slots = KeySlot(LearnedRow(dims=dims))
    reported = {"sink": SINKS.get(dims), "slot": SLOTS.get(dims), "loss": 3.73 if dims == 32 else None}
    known = {name: value for name, value in reported.items() if value is not None}
    return setting(f"k_bias_{dims}d", lambda recipe: replace(recipe, model=attn(recipe.model, slots=slots)), **known)


def _arms(*dims: int) -> Sequence[Arm]:
    return (*map(_arm, dims), architecture("k_bias", slot=73.34, sink=0.0, loss=3.72))


def _rules(*dims: int) -> Sequence[Rule]:
    """One dimension draws attention, and each of these many more than one."""
    more = (f"k_bias_{count}d" for count in dims)
    return (
        has_sink("k_bias_1d", ALPHA_SLOT, NULL_SLOT),
        *(higher(name, than="k_bias_1d", quantity=ALPHA_SLOT) for name in ("k_bias", *more)),
    )


NOTE = "k_bias has as many learnable dimensions as a head"
EXPERIMENT = study(
    claim="K biases with one learnable dimension already draw attention; with more dimensions they draw more.",
    arms=_arms(1, 2, 4, 8, 16),
    rules=_rules(8, 16),
    note=f"{NOTE}: 32 here, 96 in the paper; of the paper's Sink_* our text of it has those of 32 and of 64 dimensions",
    editions={
        Scale.TEXT: ("k_bias_1d", "k_bias_8d", "k_bias"),
        Scale.PAPER: Edition(_arms(1, 2, 4, 8, 16, 32, 64), _rules(8, 16, 32, 64), f"{NOTE}: 96"),
    },
)
