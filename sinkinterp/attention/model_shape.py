"""Sizes of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    attention_layers: indices of the blocks that attend, among all `n_layers` blocks.
    mlp_layers: indices of those whose feed-forward layer can be seen and edited.
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
    mlp_layers: tuple[int, ...] = ()
