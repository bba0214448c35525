"""Path patching: does a behaviour go from one component straight to another, or through others?

1. The corrupted prompt runs with the sender's output of the clean run in place of its own. By default everything else
   that blocks add to the residual stream stays as in the corrupted run: heads with their gates, feed-forward layers,
   recurrences, convolutions, cross-attention. So the change reaches the receiver along the stream alone. Where `frozen`
   names sites, these alone stay; the rest is recomputed, and then the change also goes through it.
2. The receiver's input in that run, a head's queries, keys or values, is put into the corrupted run. All behind the
   receiver is recomputed. If the receiver is the logits, the first run gives them.

Source: Wang et al. 2022, arXiv:2211.00593 (their Appendix B freezes heads alone: `frozen=(ChangeOutputs(),)`);
Goldowsky-Dill et al. 2023, arXiv:2304.05969.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import RESIDUAL, Edit, sites
from ..backends.frozen import cross_attention_kept
from ..backends.subject import Subject, Trace
from ..checks import InputError, instance_of
from ..data.progress import OnProgress
from ..data.tokens import Tokens, TokensLike
from ..interventions import changes
from ..interventions.changes import edits_of
from ..table import HEAD, LAYER, POSITION, Table
from .activation_patching import Runs, restored_table, runs_of
from .measure import ModelLike, answers_of
from .patching import Activations, PatchingMetricLike, activations, divergence_from_clean

Stream = Float[Tensor, "sequence block pos d_model"]
SENDERS, RECEIVERS = (sites.OUTPUT, sites.MLP), (sites.QUERIES, sites.KEYS, sites.VALUES)
_PROBE = 1e3  # times the largest residual, so that what blocks add to it does not count
_TOLERANCE = 0.02  # of the probe


def path_patching(  # noqa: PLR0913  sender, receiver, what is frozen, and how it is measured
    model: ModelLike,
    clean: TokensLike | Any,
    corrupted: TokensLike | Any,
    *,
    sender: changes.Change = changes.ChangeOutputs(),
    receiver: changes.Change | None = None,
    frozen: changes.Change | Sequence[changes.Change] | None = None,
    metric: PatchingMetricLike = divergence_from_clean(),
    progress: bool | OnProgress = True,
) -> Table:
    """The share of a behaviour that goes from each sender to the receiver, with its interval over pairs of prompts.

    sender: `ChangeOutputs()` for heads, `ChangeMLP()` for feed-forward layers; its `layers` and `positions` narrow the
    map, whose rows are layers and heads, or layers and positions. receiver: `Change(sites.QUERIES, heads=[(layer,
    head)])`, or `ChangeKeys` or `ChangeValues` with `kv_heads`. None stands for the logits. frozen:
    the sites that keep their corrupted values between the two. None stands for all that blocks add. Norms are
    recomputed. Prompts, metric and errors are those of `activation_patching`. Also raises InputError, by
    default, for a model whose blocks do not add to one stream, or whose feed-forward updates are not found. Three
    passes per sender, batched.
    """
    if not isinstance(sender, changes.Change) or sender.site not in SENDERS:
        raise InputError(f"a sender is ChangeOutputs() or ChangeMLP(); got {sender!r:.60}")
    if receiver is not None and (not isinstance(receiver, changes.Change) or receiver.site not in RECEIVERS):
        what = "a receiver is a Change of queries, keys or values with heads=[(layer, head)] or kv_heads, or None"
        raise InputError(f"{what}; got {receiver!r:.60}")
    to, of = _layers_of(receiver), _layers_of(sender)
    if to == {0}:
        raise InputError("nothing is sent to layer 0, which reads the embedding")
    if to and of and max(of) >= max(to):
        raise InputError(f"a sender in layer {max(of)} is not before the receiver, in layer {max(to)}")
    pair = runs_of(model, clean, corrupted, metric, sender)
    subject, read = pair.subject, pair.corrupted
    if frozen is None and not subject.shape.mlp_layers:
        raise InputError(
            f"{subject.name}: what its feed-forward layers add is not found in every block, so a direct path cannot be "
            "told from one through them; name what stays: frozen=(ChangeOutputs(),)"
        )
    what = "what stays is a change, such as ChangeOutputs()"
    named = edits_of(changes.ChangeMLP() if frozen is None else frozen)
    kept_sites: list[changes.Change] = [instance_of(each, changes.Change, what) for each in named]
    kept = tuple((site, activations(site, subject, read)) for site in kept_sites)
    runs = PathRuns(**vars(pair), receiver=receiver, kept=kept, is_direct=frozen is None)
    if runs.is_direct:
        _check_adds(subject, read, torch.stack([*runs.stream.values()], 1))
    return restored_table(runs, (LAYER, HEAD if sender.site == sites.OUTPUT else POSITION), progress)


def _layers_of(change: changes.Change | None) -> set[int]:
    """The layers that a change names, by itself or with its heads."""
    return {layer for layer, _ in getattr(change, "pairs", None) or ()} | {*(getattr(change, "layers", None) or ())}


def _check_adds(subject: Subject, tokens: Tokens, x: Stream) -> None:
    """Raises InputError where a block does not return its input plus its update, in the residuals `x`.

    To find it, one text runs with a large vector added in front of block 0. Its heads and feed-forward layers keep what
    they return. What else a block adds is small beside the vector.
    """
    edits: list[Edit] = [
        replace(site, operation=changes.Put(activations(site, subject, tokens[:1])))
        for site in (changes.ChangeMLP(), changes.ChangeOutputs())
    ]
    largest = min(_PROBE * float(x[:1].abs().max()), torch.finfo(x.dtype).max / 1e3)
    probe = largest * torch.randn(x[:1, 0].shape, generator=torch.Generator().manual_seed(0)).to(x)
    edits.append(changes.ChangeResidual(changes.Add({0: probe}), layers=[0]))
    moved = subject.run(tokens[:1], reads={"x": RESIDUAL.read(lambda x: x)}, edits=edits, logits=False)["x"] - x[:1]
    errors = (moved.float() - probe[:, None].float()).flatten(2).norm(dim=-1)[0] / probe.float().norm()
    if not (errors <= _TOLERANCE).all():
        block = int((errors > _TOLERANCE).int().argmax()) - 1
        raise InputError(
            f"{subject.name}: block {block} does not return its input and what it adds (a norm or a factor stands in "
            "the stream), so no path is direct; name what stays: frozen=(ChangeOutputs(), ChangeMLP())"
        )


@dataclass(frozen=True)
class PathRuns(Runs):
    """Runs in which one sender is patched for one receiver alone.

    kept: sites that are frozen, in the corrupted run. is_direct: whether everything is frozen.
    """

    receiver: changes.Change | None
    kept: Sequence[tuple[changes.Change, Activations]]
    is_direct: bool
    title: ClassVar[str] = "Which paths restore the clean run?"

    @property
    def protocol(self) -> str:
        heads = [f"{layer}.{head}" for layer, head in getattr(self.receiver, "pairs", None) or ()]
        to = "the logits" if self.receiver is None else f"{self.receiver.site.label} {', '.join(heads)}".strip()
        for name in ("layers", "positions"):
            chosen = getattr(self.receiver, name, None)
            to += f" of {name} {', '.join(map(str, chosen))}" if chosen else ""
        named = " and ".join(site.site.label for site, _ in self.kept) or "nothing"
        names = "all that blocks add" if self.is_direct else named
        return f"path from {self.site.site.label} to {to}; {names} frozen between, norms recomputed"

    def trace(self, pairs: Int[Tensor, " row"], put: changes.PutAt) -> Trace:
        """The corrupted run of some pairs, with the path patched."""
        mine, blocks, reads = self.corrupted[pairs], range(self.subject.shape.n_layers), self.metric.reads
        kept = [(site, changes.Put({n: x[pairs] for n, x in values.items()})) for site, values in self.kept]
        edits: list[Edit] = [replace(site, operation=given) for site, given in (*kept, (self.site, put))]
        if self.is_direct:
            edits, blocks = [self._shifted(mine, pairs, put.places[:, 0], edits)], blocks if reads else range(0)
        if self.receiver is None:
            return self.subject.run(mine, reads=reads, edits=edits, logits=self.metric.all_logits, blocks=blocks)
        values = activations(self.receiver, self.subject, mine, edits)
        return self.from_layer(min(values), pairs, replace(self.receiver, operation=changes.Put(values)))

    def _shifted(
        self, tokens: Tokens, pairs: Int[Tensor, " row"], layers: Int[Tensor, " row"], edits: Sequence[Edit]
    ) -> Edit:
        """Puts the corrupted residuals, and behind the block of each row's sender what the sender changes in them."""
        stream = torch.stack([x[pairs] for x in self.stream.values()], 1)
        senders = range(int(layers.min()), int(layers.max()) + 1)
        given = changes.ChangeResidual(changes.Put({senders[0]: stream[:, senders[0]]}), layers=senders[:1])
        with cross_attention_kept(self.subject, tokens):
            (x,) = answers_of(self.subject, tokens, {"x": RESIDUAL.read(lambda x: x)}, [given, *edits], senders)
        behind = (layers + 1).to(x.device)
        rows, blocks = torch.arange(len(x), device=x.device), torch.arange(x.shape[1], device=x.device)
        change = (x - stream.to(x))[rows, behind]
        is_behind = (blocks >= behind[:, None]).to(x)[:, :, None, None]
        shifted = stream.to(x) + is_behind * change[:, None]
        return changes.ChangeResidual(changes.Put(dict(enumerate(shifted.unbind(1)))))
