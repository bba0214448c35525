"""Sizes of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    attention_layers: indices of the blocks that attend, among all `n_layers` blocks.
    mlp_layers: indices of those whose feed-forward layer can be seen and edited.
    d_head: of queries and keys. d_model: of residuals.
    n_ctx: the longest sequence that its configuration knows; None without a limit.
    d_embedding: of the token table, where it is not d_model (OPT-350m). d_value: of values, where it is not d_head.
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
    d_embedding: int | None = None
    d_value: int | None = None
