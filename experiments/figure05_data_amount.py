"""Figure 5 (right): with few training data the model overfits, and the sink does not come."""

from collections.abc import Sequence

from sinkinterp.runs.experiment import Rule
from sinkinterp.table import LOSS

from .shared.amounts import AMOUNTS, TOYS, Amounts
from .shared.rules import has_no_sink, has_sink, higher, setup
from .shared.study import Edition, study


def _rules(amounts: Amounts) -> Sequence[Rule]:
    whole, few = amounts.whole.name, amounts.few
    return (
        setup(has_sink(whole)),
        *(has_no_sink(name) for name in few),
        *(higher(whole, than=name, at_equal_loss=False) for name in few),
        *(setup(higher(name, than=whole, quantity=LOSS, at_equal_loss=False)) for name in few),
    )


EXPERIMENT = study(
    claim="With few different training sequences the model overfits and has no sink, at the same number of steps.",
    arms=TOYS.arms,
    rules=_rules(TOYS),
    note="overfitting is part of the claim, so losses differ; the whole run sees 51,200 sequences once each; losses "
    "are of held-out sequences, and figure28_overfitting has those of training beside them",
    editions={scale: Edition(amounts.arms, _rules(amounts), amounts.note) for scale, amounts in AMOUNTS.items()},
)
