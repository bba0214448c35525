"""What a measurement asks of a model, whichever library runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..interventions.edit import Edit

Tokens = Int[Tensor, "sequence pos"]
Residual = Float[Tensor, "sequence pos d_model"]
CallRead = Callable[[AttentionCall], Tensor]
ResidualRead = Callable[[Residual], Tensor]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    attention_layers: indices of the blocks that attend, among all `n_layers` blocks.
    n_ctx: the longest sequence that its configuration knows; None without a limit.
    """

    n_layers: int
    attention_layers: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    vocab: int
    n_ctx: int | None = None


@dataclass(frozen=True)
class Trace:
    """What the reads returned during one forward pass, and its logits.

    calls: read name -> `sequence layer ...`, over attention layers.
    residuals: read name -> `sequence block ...`: the input of every block, then the output of the last one, before
    the final norm.
    """

    calls: dict[str, Tensor]
    residuals: dict[str, Tensor]
    logits: Float[Tensor, "sequence pos vocab"]

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
        edits: Sequence[Edit] = (),
    ) -> Trace:
        """One forward pass. Reads are pure functions evaluated during it; nothing else is kept."""
        ...
