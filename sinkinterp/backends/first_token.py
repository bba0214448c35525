"""What the literature reads of the first token, in one pass: hidden states, massive activations, angles and norms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention.shapes import Residual
from ..attention.sites import CALL, RESIDUAL, Edit
from ..checks import whole_number
from ..data.tokens import Tokens
from ..guesses import Answering
from ..metrics.importance import importance
from ..metrics.qk import qk_angles, qk_norm_products
from ..metrics.residuals import is_massive, vector_norms


@dataclass(frozen=True, repr=False)
class FirstToken(Answering):
    """Tensors of one token of every sequence, the first by default. `layer` counts attention layers.

    hidden_states: inputs of all blocks, then the last block's output before the final norm. norms: their lengths, and
    `norms_of_others` the mean length of the other tokens. massive: which entries are massive activations (above 100,
    and 1,000 times the median of the sequence). importance: alpha, the mean attention that the token receives.
    qk_cosines, qk_norms: [this token, the others], mean over queries of cos(q, k) and of `|q| |k| * scale`.
    key_norms, value_norms: lengths of its key and value.
    """

    kind = "first token"

    hidden_states: Float[Tensor, "sequence block d_model"]
    norms: Float[Tensor, "sequence block"]
    norms_of_others: Float[Tensor, "sequence block"]
    massive: Bool[Tensor, "sequence block d_model"]
    importance: Float[Tensor, "sequence layer head"]
    qk_cosines: Float[Tensor, "sequence layer head 2"]
    qk_norms: Float[Tensor, "sequence layer head 2"]
    key_norms: Float[Tensor, "sequence layer kv_head"]
    value_norms: Float[Tensor, "sequence layer kv_head"]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{field.name} {tuple(getattr(self, field.name).shape)}" for field in fields(self))
        return f"<FirstToken: {shapes}>"

    def massive_activations(self) -> Int[Tensor, "activation 3"]:
        """[sequence, block, channel] of every massive activation of the token."""
        return self.massive.nonzero()


def first_token(run: Callable[..., Any], tokens: Tokens, position: int, edits: Sequence[Edit]) -> FirstToken:
    """The tensors of the token at `position`, from one pass of `Subject.run`."""
    position = whole_number(position, "position", 0, tokens.shape[1] - 1)

    def lengths(x: Residual) -> Float[Tensor, "batch 2"]:
        norms = vector_norms(x)
        others = torch.cat((norms[:, :position], norms[:, position + 1 :]), 1)
        return torch.stack((norms[:, position], others.mean(1)), -1)

    of_calls = {
        "importance": lambda call: importance(call, call.keys[position : position + 1])[..., 0],
        "qk_cosines": lambda call: qk_angles(call, position),
        "qk_norms": lambda call: qk_norm_products(call, position),
        "key_norms": lambda call: vector_norms(call.k[:, :, position]),
        "value_norms": lambda call: vector_norms(call.v[:, :, position]),
    }
    of_residuals = {
        "hidden_states": lambda x: x[:, position].clone(),
        "lengths": lengths,
        "massive": lambda x: is_massive(x)[:, position],
    }
    reads = {name: CALL.read(read) for name, read in of_calls.items()}
    reads |= {name: RESIDUAL.read(read) for name, read in of_residuals.items()}
    answers = run(tokens, reads=reads, edits=edits).answers
    norms, others = answers.pop("lengths").unbind(-1)
    return FirstToken(norms=norms, norms_of_others=others, **answers)
