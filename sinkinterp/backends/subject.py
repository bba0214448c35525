"""What a measurement needs of a model, whichever library runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import Residual
from ..data.bos import Bos
from ..data.tokens import Tokens, TokenSet
from ..interventions.edit import Edit

Logits = Float[Tensor, "sequence pos vocab"]
CallRead = Callable[[AttentionCall], Tensor]
ResidualRead = Callable[[Residual], Tensor]


@dataclass(frozen=True, repr=False)
class Trace:
    """What the reads returned during one forward pass, and the logits of the model.

    calls: read name -> `sequence layer ...`, over attention layers.
    residuals: read name -> `sequence block ...`: the input of every block, then the output of the last one, before
    the final norm.
    mlps: read name -> `sequence block ...`: what every block's feed-forward layer adds to the residual stream.
    """

    calls: dict[str, Tensor]
    residuals: dict[str, Tensor]
    mlps: dict[str, Tensor]
    logits: Logits

    def __repr__(self) -> str:
        answers = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.answers.items())
        return f"<Trace: {answers or 'no reads'}; logits {tuple(self.logits.shape)}>"

    @property
    def answers(self) -> dict[str, Tensor]:
        """What all reads returned, by name, whatever they saw."""
        return self.calls | self.residuals | self.mlps


@runtime_checkable
class Subject(Protocol):
    """A language model whose attention calls and residuals can be read and edited while it runs."""

    name: str
    shape: ModelShape
    dtype: torch.dtype
    device: torch.device
    libraries: tuple[str, ...]  # what runs it, beside torch and transformers
    n_keys: int | None  # of every attention call; None where there are as many keys as tokens
    encoder: str  # what the encoder of an encoder-decoder model is given; empty for other models
    revision: str  # commit of the weights on the Hub; empty for a model in memory or in a folder

    def run(
        self,
        tokens: Tokens,
        *,
        calls: Mapping[str, CallRead] = {},
        residuals: Mapping[str, ResidualRead] = {},
        mlps: Mapping[str, ResidualRead] = {},
        edits: Sequence[Edit] = (),
        gradients: bool = False,
    ) -> Trace:
        """One forward pass. Reads are pure functions that are evaluated during it; nothing else is kept.

        With `gradients`, logits can be differentiated by tensors that edits hold.
        """
        ...

    def tokens(
        self, texts: str | Sequence[str], length: int | None = None, bos: Bos | str | bool = Bos.TOKENIZER
    ) -> TokenSet:
        """The tokens of a text or of several. Raises InputError for a model without a tokenizer."""
        ...
