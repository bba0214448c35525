"""What a measurement asks of a model, whichever library runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..interventions.edit import Edit

Tokens = Int[Tensor, "sequence pos"]
Residual = Float[Tensor, "sequence pos d_model"]
CallRead = Callable[[AttentionCall], Tensor]
ResidualRead = Callable[[Residual], Tensor]


@dataclass(frozen=True)
class Trace:
    """What the reads returned during one forward pass, and its logits, which `fetch` gets.

    calls: read name -> `sequence layer ...`, over attention layers.
    residuals: read name -> `sequence block ...`: the input of every block, then the output of the last one, before
    the final norm.
    mlps: read name -> `sequence block ...`: what every block's feed-forward layer adds to the residual stream.
    """

    calls: dict[str, Tensor]
    residuals: dict[str, Tensor]
    mlps: dict[str, Tensor]
    fetch: Callable[[], Tensor]

    @cached_property
    def logits(self) -> Float[Tensor, "sequence pos vocab"]:
        """What the model returned. On a server it is made and sent only when first asked for."""
        return self.fetch()

    @staticmethod
    def stack(rows: Sequence[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
        """A dictionary of tensors stacked over layers, from one dictionary per layer; layers may be on any device."""
        return {name: torch.stack([row[name].to(device) for row in rows], 1) for name in rows[0]} if rows else {}


@runtime_checkable
class Subject(Protocol):
    """A language model that answers questions about its attention calls while it runs."""

    name: str
    shape: ModelShape
    dtype: torch.dtype
    device: torch.device
    libraries: tuple[str, ...]  # what runs it, beside torch and transformers
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
        """One forward pass. Reads are pure functions evaluated during it; nothing else is kept.

        With `gradients`, logits can be differentiated by tensors that edits brought in.
        """
        ...
