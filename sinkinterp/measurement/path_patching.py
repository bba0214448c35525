"""Path patching: does a behaviour go from one component straight to another, or through others?

1. The corrupted prompt runs with the sender's output of the clean run in place of its own. What `frozen` names (by
   default all heads and feed-forward layers) keeps its corrupted output, so that the change reaches the receiver along
   the residual stream alone. What is not named is recomputed, and then the change also goes through it.
2. The receiver's input in that run, a head's queries, keys or values, is put into the corrupted run. All behind the
   receiver is recomputed. Where the receiver is the logits, the first run gives them.

Source: Wang et al. 2022, arXiv:2211.00593 (their Appendix B freezes heads alone: `frozen=(ChangeOutputs(),)`);
Goldowsky-Dill et al. 2023, arXiv:2304.05969.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from ..backends.frozen import frozen as with_frozen_norms
from ..backends.subject import Trace
from ..data.progress import OnProgress
from ..data.tokens import Tokens, TokensLike
from ..errors import InputError
from ..interventions.changes import Change, ChangeKeys, ChangeMLP, ChangeOutputs, ChangeQueries, ChangeValues
from ..interventions.operations import Put, PutAt
from ..report.columns import HEAD, LAYER, POSITION
from ..table import Table
from .activation_patching import PatchingMetric, Runs, metric_of, pairs_of, restored
from .inputs import ModelLike
from .patching import Activations, activations

SENDERS, RECEIVERS = (ChangeOutputs, ChangeMLP), (ChangeQueries, ChangeKeys, ChangeValues)
EVERYTHING: tuple[Change, ...] = (ChangeOutputs(), ChangeMLP())


def path_patching(  # noqa: PLR0913  sender, receiver, what is frozen, and how it is measured
    model: ModelLike,
    clean: TokensLike | Any,
    corrupted: TokensLike | Any,
    *,
    sender: Change = ChangeOutputs(),
    receiver: Change | None = None,
    frozen: Change | Sequence[Change] = EVERYTHING,
    freeze_norms: bool = False,
    metric: PatchingMetric | Any = None,
    progress: bool | OnProgress = True,
) -> Table:
    """The share of a behaviour that goes from each sender to the receiver, with its interval over pairs of prompts.

    sender: `ChangeOutputs()` for heads, `ChangeMLP()` for feed-forward layers; its `layers` and `positions` narrow the
    map, whose rows are layers and heads, or layers and positions. receiver: `ChangeQueries`, `ChangeKeys` or
    `ChangeValues` with `heads=[(layer, head)]`; None for the logits. Grouped query heads share keys and values. frozen:
    the sites that keep their corrupted values between the two. freeze_norms: whether the norms in front of the receiver
    keep the scale of the corrupted run; otherwise they are recomputed. Prompts, metric and errors are those of
    `activation_patching`. Two passes per sender, batched.
    """
    if not isinstance(sender, SENDERS) or not isinstance(receiver, (*RECEIVERS, type(None))):
        raise InputError(
            "a sender is ChangeOutputs() or ChangeMLP(); a receiver ChangeQueries, ChangeKeys or ChangeValues with "
            f"heads=[(layer, head)], or None for the logits; got {sender!r:.40} and {receiver!r:.40}"
        )
    heads, layers = (getattr(receiver, name, None) for name in ("heads", "layers"))
    if {layer for layer, _ in heads or ()} | {*(layers or ())} == {0}:
        raise InputError("nothing is sent to layer 0, which reads the embedding; take a receiver in a later layer")
    if freeze_norms and receiver is None:
        raise InputError("the norm in front of the logits is recomputed; freeze_norms needs a head as the receiver")
    subject, clean_tokens, corrupted_tokens = pairs_of(model, clean, corrupted)
    fields = (subject, sender, metric_of(metric), clean_tokens, subject.run(clean_tokens).logits)
    sites = (frozen,) if isinstance(frozen, Change) else tuple(frozen)
    kept = tuple((site, activations(site, subject, corrupted_tokens)) for site in sites)
    axes = (LAYER, HEAD if isinstance(sender, ChangeOutputs) else POSITION)
    runs = PathRuns(*fields, receiver, kept, freeze_norms)
    return restored(Runs(*fields), runs, corrupted_tokens, axes, progress)


@dataclass(frozen=True)
class PathRuns(Runs):
    """Runs in which one sender is patched for one receiver alone. kept: what is frozen, in the corrupted run."""

    receiver: Change | None
    kept: Sequence[tuple[Change, Activations]]
    freeze_norms: bool
    title: ClassVar[str] = "Which paths restore the clean run?"

    @property
    def protocol(self) -> str:
        heads = [f"{layer}.{head}" for layer, head in getattr(self.receiver, "heads", None) or ()]
        to = "the logits" if self.receiver is None else f"{type(self.receiver).__name__} {', '.join(heads)}".strip()
        for name in ("layers", "positions"):
            chosen = getattr(self.receiver, name, None)
            to += f" of {name} {', '.join(map(str, chosen))}" if chosen else ""
        names = " and ".join(type(site).__name__ for site, _ in self.kept) or "nothing"
        norms = "frozen" if self.freeze_norms else "recomputed"
        return f"path from {type(self.site).__name__} to {to}; {names} frozen between, norms {norms}"

    def trace(self, tokens: Tokens, pairs: Int[Tensor, " row"], put: PutAt) -> Trace:
        """The run of some pairs, with the path patched."""
        mine = tokens[pairs]
        edits = [replace(site, operation=Put({n: x[pairs] for n, x in values.items()})) for site, values in self.kept]
        edits.append(replace(self.site, operation=put))
        if self.receiver is None:
            return self.subject.run(mine, calls=self.metric.calls, edits=edits)
        of_norms = self._with_scales if self.freeze_norms else partial(activations, self.receiver, self.subject)
        put_into = replace(self.receiver, operation=Put(of_norms(mine, edits)))
        return self.subject.run(mine, calls=self.metric.calls, edits=[put_into])

    def _with_scales(self, tokens: Tokens, edits: Sequence[Change]) -> Activations:
        """What the receiver is given where norms keep the scale of the untouched run."""
        assert self.receiver is not None
        x = self.subject.run(tokens, residuals={"x": lambda x: x}, edits=edits).residuals["x"]
        received: Activations = {}
        with with_frozen_norms(self.subject, tokens) as run:
            for layer in filter(self.receiver.acts_in, run.calls):
                change = x[:, layer] - run.trace.residuals["x"][:, layer]
                before, *given = run.calls[layer], run.call(layer, change), run.call(layer, torch.zeros_like(change))
                was, plus, minus = map(self.receiver.activations, (before, *given))
                received[layer] = was + plus - minus
        return received
