"""The path of the massive activation: which part writes it, which heads' keys read it, and what cutting each costs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention.shapes import Residual
from ..attention.sites import MLP, RESIDUAL, Edit
from ..backends.anatomy.modules import removed_after, token_mixer
from ..backends.frozen import FrozenRun, freezable
from ..backends.huggingface import HuggingFaceSubject
from ..backends.subject import Subject
from ..data.tokens import Tokens
from ..interventions.changes import ChangeKeys, ChangeMLP, ChangeOutputs
from ..interventions.operations import Add
from ..metrics.bootstrap import SHARES, SIZES, difference, estimate_cells, mean_cells
from ..metrics.metric import NEXT_TOKEN_LOSS
from ..metrics.residuals import is_massive, lifetime
from ..report.explained import CUT, READER, STANDS_OUT, Head, Neuron, NoPath, Path
from ..report.report import Report
from ..table import ALPHA_1, Cell
from .inputs import passes, reads_inputs
from .lens import AS_OTHERS, FIRST, contrast_of, score_of, whole_score

COVERED = 0.8  # of the entry, by the neurons that are counted
Keys = Float[Tensor, "sequence kv_head d_head"]


class Reads(NamedTuple):
    """How a layer's heads read what was written: the score that it makes, the whole score, and it in the first key."""

    made: Float[Tensor, "sequence head"]
    whole: Float[Tensor, "sequence head"]
    keys: Keys


@reads_inputs
def massive_path(subject: Subject, tokens: Tokens) -> Path | NoPath:
    """Finds the writer of the first token's largest entry in the inputs of all blocks. One pass.

    An entry stands out where it is the largest of its block and `STANDS_OUT` times its mean size at other tokens. The
    largest of all blocks is followed if it does, else the one that does most; one that the embedding makes is followed
    nowhere. If nothing is left, this says so, with the numbers of the one that comes nearest.
    """
    hf = freezable(subject)
    reads = {
        "first": RESIDUAL.read(_first),
        "others": RESIDUAL.read(lambda x: x[:, 1:].float().abs().mean(1)),
        "massive": RESIDUAL.read(lambda x: is_massive(x)[:, 0].float()),
        "mlp": MLP.read(_first),
    }
    traces = [hf.run(batch, reads=reads, logits=False) for _, batch in passes(subject, tokens)]
    first, others, massive, mlp = (torch.cat([trace[name] for trace in traces]).mean(0) for name in reads)
    dims = first[:-1].abs().argmax(-1, keepdim=True)
    sizes, means = (x[:-1].gather(1, dims)[:, 0] for x in (first.abs(), others))
    times, stands_out = (sizes / means).nan_to_num(0), sizes >= STANDS_OUT * means
    in_order = [int(sizes.argmax()), *times.argsort(descending=True).tolist()]
    lives = [lifetime(massive[:, dim] > 0.5) for dim in dims[:, 0].tolist()]
    found = [block for block in in_order if stands_out[block]]
    for block in found:
        dim = int(dims[block])
        path = _path_to(hf, block, dim, first[:, dim], mlp[:, dim])
        if path is not None:
            return replace(path, times=float(times[block]), life=lives[block])
    nearest = (found or in_order[1:])[0]
    dim, is_embedding = int(dims[nearest]), bool(found)
    return NoPath(dim, nearest, float(first[nearest, dim]), float(times[nearest]), lives[nearest], is_embedding)


def _path_to(hf: HuggingFaceSubject, block: int, dim: int, entry: Tensor, of_mlps: Tensor) -> Path | None:
    """Who writes and erases an entry, by its values and what feed-forward layers add; None if the embedding does.

    The erased part is a share of the entry at its largest, which may be behind the block with the largest ratio.
    """
    value = entry[block]
    shares = torch.stack((entry.diff() - of_mlps, of_mlps), 1) / value  # of what mixes tokens, and feed-forward layers
    if block == 0 or shares[:block].max() < entry[0] / value:
        return None
    at, is_mlp = divmod(int(shares[:block].argmax()), 2)
    last, of_last = divmod(int(shares[block:].argmin()), 2)
    erased = -float(shares[block + last, of_last] * value / entry[entry.abs().argmax()])
    eraser = (_part(hf, block + last, bool(of_last)), erased) if erased >= 0.5 else None
    share = float(shares[at, is_mlp])
    return Path(dim, bool(is_mlp), at, share * float(value), share, eraser, _part(hf, at, bool(is_mlp)), block)


def _part(subject: HuggingFaceSubject, block: int, is_mlp: bool) -> str:
    mixer = token_mixer(subject.modules.blocks[block], block in subject.shape.attention_layers)
    return f"{'MLP' if is_mlp else mixer} {block}"


def _first(x: Residual) -> Tensor:
    return x[:, 0].float()


def reads_of(run: FrozenRun, path: Path) -> dict[int, Reads]:
    """How the layers behind the writer read its update of the first token."""
    x, written = run.trace["x"], run.trace["mlp"][:, path.at].clone()
    if not path.is_mlp:
        written = x[:, path.at + 1] - x[:, path.at] - written
    written[:, 1:] = 0
    reads = {}
    for layer, call in run.calls.items():
        if layer > path.at:
            key = (run.call(layer, written).k - run.call(layer, torch.zeros_like(written)).k)[:, :, :1]
            made = score_of(call, contrast_of(call, False)[..., :1] @ key)
            reads[layer] = Reads(made.cpu(), whole_score(call, False).cpu(), key[:, :, 0].cpu())
    return reads


def readers_of(reads: Mapping[int, Reads]) -> dict[Head, float]:
    """The heads with a positive score, at least half of which the write makes: its share, by (layer, head)."""
    readers = {}
    for layer, (made, whole, _) in reads.items():
        share = made.mean(0) / whole.mean(0)
        for head in ((share >= READER) & (whole.mean(0) > 0)).nonzero().flatten().tolist():
            readers[layer, head] = share[head].item()
    return readers


def followed(path: Path, subject: Subject, tokens: Tokens, reads: Mapping[int, Reads]) -> Path:
    """The path with the heads that read it, and the neurons that write it where they are found."""
    path = replace(path, readers=readers_of(reads), n_heads=len(reads) * subject.shape.n_heads)
    if not path.is_mlp or not isinstance(subject, HuggingFaceSubject):
        return path
    if (neurons := _neurons_of(subject, tokens, path.at, path.dim)) is None:
        return path
    shares = neurons.writes.mean(0) / path.value
    sums = shares.sort(descending=True).values.cumsum(0)
    count = int((sums < COVERED).sum().clamp(max=len(sums) - 1)) + 1
    cosines = {name: (x[:, 0].mean(0), x[:, 1:].mean((0, 1))) for name, x in neurons.cosines.items()}
    shown = tuple(
        Neuron(index, float(shares[index]), {name: (float(a[i]), float(b[i])) for name, (a, b) in cosines.items()})
        for i, index in enumerate(neurons.top)
    )
    return replace(path, neurons=shown, n_neurons=count, covered=float(sums[count - 1]))


def path_edit(keys: Mapping[int, Keys], kv_heads: Collection[Head], length: int) -> Edit:
    """The edit that takes a part out of the first key of some kv_heads, and leaves the residual as it is."""
    values = {}
    for layer in {layer for layer, _ in kv_heads}:
        values[layer] = keys[layer].new_zeros(*keys[layer].shape[:2], length, keys[layer].shape[2])
        values[layer][:, :, 0] = -keys[layer]
    return ChangeKeys(Add(values), kv_heads=sorted(kv_heads))


def path_cuts(
    path: Path, reads: Mapping[int, Reads], layers: Sequence[int], length: int, generator: torch.Generator
) -> dict[str, Sequence[Edit]]:
    """Returns what is cut of a path, and the control, vectors of the same lengths that point at random.

    layers: those that attend. A writer that is neither a feed-forward layer nor attention is cut in keys alone.
    """
    keys = {layer: of_layer.keys for layer, of_layer in reads.items()}
    n_heads = path.n_heads // len(reads)  # of a layer
    read = {(layer, head * keys[layer].shape[1] // n_heads) for layer, head in path.readers}
    drawn = {layer: torch.randn(x.shape, generator=generator) for layer, x in keys.items()}
    as_long = {layer: x * (keys[layer].norm(dim=-1) / x.norm(dim=-1))[..., None] for layer, x in drawn.items()}
    can_be_cut = path.is_mlp or path.at in layers
    change = ChangeMLP if path.is_mlp else ChangeOutputs
    writer = {"whole write": (change(AS_OTHERS, layers=[path.at], positions=FIRST),)} if can_be_cut else {}
    return {
        "none": (),
        "path: the readers' first keys": (path_edit(keys, read, length),),
        **writer,
        "control: random vectors as long": (path_edit(as_long, read, length),),
    }


def path_row(cut: str, report: Report, before: Report, readers: Sequence[Head]) -> dict[str, Cell]:
    """Returns what a cut does to the readers, to all heads, and to the loss."""
    losses = [r.extra(NEXT_TOKEN_LOSS).nanmean(1) for r in (before, report)]
    alpha, layers = report.alpha(), [report.attention_layers.index(layer) for layer, _ in readers]
    row: dict[str, Cell] = {CUT: cut}
    row |= mean_cells(f"{ALPHA_1} of readers", alpha[:, layers, [head for _, head in readers]].mean(1), SHARES)
    row |= mean_cells(f"{ALPHA_1} of all heads", alpha.mean((1, 2)), SHARES)
    row |= mean_cells("loss", losses[1], SIZES)
    return row | estimate_cells("change of loss", difference(losses[0], losses[1], paired=True))


# The neurons of a feed-forward layer: what each writes into a dimension, and which way its input points


@dataclass(frozen=True)
class Neurons:
    """What the neurons of a block write into one dimension at the first token.

    writes: by neuron. cosines: of every token's input with each neuron's row, by the name of the input matrix.
    """

    writes: Float[Tensor, "sequence neuron"]
    cosines: dict[str, Float[Tensor, "sequence pos some_neuron"]]
    top: list[int]


def _neurons_of(subject: HuggingFaceSubject, tokens: Tokens, block: int, dim: int, count: int = 5) -> Neurons | None:
    """The neurons of a block's feed-forward layer, with cosines for the `count` that write most.

    None where the layer has no single output matrix, as with experts.
    """
    seen: list[tuple[str, Any, Tensor, Tensor]] = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if args[0].shape[:-1].numel() == tokens.numel():  # cross-attention reads the encoder's output
                seen.append((name, module, args[0].view(*tokens.shape, -1), output.view(*tokens.shape, -1)))

        return hook

    linears = {n: m for n, m in subject.modules.blocks[block].named_modules() if isinstance(m, nn.Linear | Conv1D)}
    with removed_after([module.register_forward_hook(keep(name)) for name, module in linears.items()]):
        update = subject.run(tokens, reads={"mlp": MLP.read(lambda x: x[:, 0])})["mlp"][
            :, subject.shape.mlp_layers.index(block)
        ]
    _, down, hidden, output = seen[-1]
    if output.shape[-1] != update.shape[-1] or not _is_alike(output[:, 0], update):
        return None
    writes = hidden[:, 0] * _rows(down)[dim]
    writes = writes * (update[:, dim] / output[:, 0, dim])[:, None]  # a factor or a norm after it
    top = writes.mean(0).abs().topk(min(count, writes.shape[1])).indices
    inputs = [(n, m, x) for n, m, x, y in seen[:-1] if y.shape[-1] == hidden.shape[-1] and "attn" not in n]
    cosines = {
        name.rpartition(".")[2]: F.cosine_similarity(x[:, :, None], _rows(module)[top], dim=-1)
        for name, module, x in inputs
        if x.shape[-1] == _rows(module).shape[-1] and "query" not in name
    }
    return Neurons(writes, cosines, top.tolist())


def _rows(module: Any) -> Float[Tensor, "output input"]:
    weight = module.weight.detach()
    return weight.T if isinstance(module, Conv1D) else weight


def _is_alike(output: Tensor, update: Tensor) -> bool:
    """Whether an update is a matrix's output up to a factor for each sequence."""
    factor = (output * update).sum(-1, keepdim=True) / output.square().sum(-1, keepdim=True)
    return torch.allclose(factor * output, update, rtol=1e-3, atol=1e-3 * float(update.abs().max()))
