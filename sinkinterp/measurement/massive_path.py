"""The path of the massive activation: which part writes it, which heads' keys read it, and what cutting each costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.shapes import Residual
from ..backends.frozen import FrozenRun
from ..backends.neurons import Neurons
from ..backends.subject import Subject
from ..data.tokens import Tokens
from ..interventions.changes import ChangeKeys, ChangeMLP, ChangeOutputs
from ..interventions.edit import Edit
from ..interventions.operations import Add
from ..report.explained import READER, Neuron, Path
from .inputs import passes
from .score_parts import AS_OTHERS, FIRST, above_others, score

STANDS_OUT = 10  # times its mean size at other tokens, for the first token's largest entry to be followed
COVERED = 0.8  # of the entry, by the neurons that are counted


@dataclass(frozen=True)
class Write:
    """The first token's largest residual entry, and the part that writes most of it.

    block: before which the entry is largest. kind, at: "attention" or "MLP", and its block. written: what the writer
    adds to the entry. eraser: which part takes most of it away from `block` on, and the share; None for less than half.
    """

    dim: int
    value: float
    block: int
    times: float
    kind: str
    at: int
    written: float
    eraser: tuple[str, float] | None

    @property
    def writer(self) -> str:
        """The name of the part that writes."""
        return f"{self.kind} {self.at}"

    def vector(self, run: FrozenRun) -> Residual:
        """What the writer adds at the first token, and zero at others."""
        x, mlps = run.trace.residuals["x"], run.trace.mlps["mlp"]
        added = mlps[:, self.at]
        if self.kind == "attention":
            added = x[:, self.at + 1] - x[:, self.at] - added
        only_first = torch.zeros_like(added)
        only_first[:, 0] = added[:, 0]
        return only_first

    def cut(self) -> Edit:
        """The edit that makes the whole write, at the first token, its mean over the others."""
        site = ChangeMLP if self.kind == "MLP" else ChangeOutputs
        return site(AS_OTHERS, layers=[self.at], positions=FIRST)


def massive_write(subject: Subject, tokens: Tokens) -> Write | None:
    """Who writes the first token's largest entry; None where none stands out, or the embedding makes it. One pass."""
    found: dict[str, list[Tensor]] = {"first": [], "others": [], "mlp": []}
    for _, batch in passes(subject, tokens):
        trace = subject.run(batch, residuals={"first": _first, "others": _others}, mlps={"mlp": _first})
        for name, parts in found.items():
            parts.append(trace.answers[name])
    first, others, mlp = (torch.cat(parts).mean(0) for parts in found.values())  # block d_model
    n_layers = len(mlp)
    block, dim = divmod(int(first[:n_layers].abs().argmax()), first.shape[1])
    value = first[block, dim]
    times = float(value.abs() / others[block, dim])
    if not times >= STANDS_OUT:
        return None
    attention = first[1:, dim] - first[:-1, dim] - mlp[:, dim]
    added: dict[tuple[str, int], Tensor] = {}
    for i in range(n_layers):
        added |= {("attention", i): attention[i], ("MLP", i): mlp[i, dim]}
    shares = {part: float(x / value) for part, x in added.items()}
    before = [part for part in shares if part[1] < block]
    if not before or max(shares[part] for part in before) < float(first[0, dim] / value):
        return None  # it is the embedding's
    kind, at = max(before, key=shares.__getitem__)
    last = min(shares, key=lambda part: shares[part] if part[1] >= block else 0.0)
    eraser = (f"{last[0]} {last[1]}", -shares[last]) if shares[last] <= -0.5 else None
    return Write(dim, float(value), block, times, kind, at, float(added[kind, at]), eraser)


def _first(x: Residual) -> Tensor:
    return x[:, 0].float()


def _others(x: Residual) -> Tensor:
    return x[:, 1:].float().abs().mean(1)


def read_scores(
    run: FrozenRun, layer: int, vector: Residual
) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head"], Float[Tensor, "batch kv_head d_head"]]:
    """Per head, the score that what was written makes in the first key, the whole score, and that part of the key."""
    call = run.calls[layer]
    key = run.call(layer, vector).k - run.call(layer, torch.zeros_like(vector)).k
    from_write = key[:, :, :1].expand(-1, -1, call.q.shape[2], -1)
    whole = above_others(call, call.k, on_slot=False)
    return score(call, from_write, False), score(call, whole, False), key[:, :, 0]


def readers_of(
    made: Mapping[int, Float[Tensor, "sequence head"]], whole: Mapping[int, Float[Tensor, "sequence head"]]
) -> dict[tuple[int, int], float]:
    """The heads with a positive score, at least half of which the write makes: its share, by (layer, head)."""
    readers = {}
    for layer in made:
        share = made[layer].mean(0) / whole[layer].mean(0)
        for head in ((share >= READER) & (whole[layer].mean(0) > 0)).nonzero().flatten().tolist():
            readers[layer, head] = share[head].item()
    return readers


def path_edit(
    keys: Mapping[int, Float[Tensor, "sequence kv_head d_head"]], heads: Sequence[tuple[int, int]], length: int
) -> Edit:
    """The edit that takes a part out of the first key of some heads, and leaves the residual as it is."""
    values = {}
    for layer in {layer for layer, _ in heads}:
        values[layer] = keys[layer].new_zeros(*keys[layer].shape[:2], length, keys[layer].shape[2])
        values[layer][:, :, 0] = -keys[layer]
    return ChangeKeys(Add(values), heads=heads)


def as_long(keys: Mapping[int, Tensor], generator: torch.Generator) -> dict[int, Tensor]:
    """Vectors of the same lengths that point at random."""
    drawn = {layer: torch.randn(x.shape, generator=generator) for layer, x in keys.items()}
    return {n: x * (keys[n].norm(dim=-1) / x.norm(dim=-1))[..., None] for n, x in drawn.items()}


def path_of(write: Write, readers: dict[tuple[int, int], float], n_heads: int, neurons: Neurons | None) -> Path:
    """The path as a report holds it."""
    shown: tuple[Neuron, ...] = ()
    count, covered = 0, 0.0
    if neurons is not None:
        shares = neurons.writes.mean(0) / write.written
        sums = shares.sort(descending=True).values.cumsum(0)
        count = int((sums < COVERED).sum().clamp(max=len(sums) - 1)) + 1
        covered = float(sums[count - 1])
        shown = tuple(
            Neuron(
                index,
                float(shares[index]),
                {name: (float(x[:, 0, i].mean()), float(x[:, 1:, i].mean())) for name, x in neurons.cosines.items()},
            )
            for i, index in enumerate(neurons.top)
        )
    share = write.written / write.value
    return Path(
        write.dim, write.written, write.block, write.times, write.writer, write.at, share, write.eraser,
        shown, count, covered, readers, n_heads,
    )  # fmt: skip
