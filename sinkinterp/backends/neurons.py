"""The neurons of a feed-forward layer: what each writes into a dimension, and which way its input points."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention.sites import MLP
from ..data.tokens import Tokens
from .anatomy.modules import removed_after
from .huggingface import HuggingFaceSubject


@dataclass(frozen=True)
class Neurons:
    """What the neurons of a block write into one dimension at the first token.

    writes: by neuron. cosines: of every token's input with each neuron's row, by the name of the input matrix.
    """

    writes: Float[Tensor, "sequence neuron"]
    cosines: dict[str, Float[Tensor, "sequence pos some_neuron"]]
    top: list[int]


def neurons_of(subject: HuggingFaceSubject, tokens: Tokens, block: int, dim: int, count: int = 5) -> Neurons | None:
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
        update = subject.run(tokens, reads={"mlp": MLP.read(_first)})["mlp"][:, subject.shape.mlp_layers.index(block)]
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


def _first(x: Tensor) -> Tensor:
    return x[:, 0]


def _is_alike(output: Tensor, update: Tensor) -> bool:
    """Whether an update is a matrix's output up to a factor for each sequence."""
    factor = (output * update).sum(-1, keepdim=True) / output.square().sum(-1, keepdim=True)
    return torch.allclose(factor * output, update, rtol=1e-3, atol=1e-3 * float(update.abs().max()))
