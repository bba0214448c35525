"""Names for the shapes of tensors that several packages share, and the sizes of a model.

Axes: batch (sequences), head, query, key, pos.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError

Residual = Float[Tensor, "batch pos d_model"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch kv_head key d_head"]
Values = Float[Tensor, "batch kv_head key d_value"]
Scores = Float[Tensor, "batch head query key"]
Pattern = Float[Tensor, "batch head query column"]  # a column is a key, or the slot, which comes first
PerQuery = Float[Tensor, "batch head query"]  # one number for each query
HeadOutput = Float[Tensor, "batch head query d_value"]
Allowed = Bool[Tensor, "#batch #head query key"]
KeyIndex = Int[Tensor, " some_key"]
SomePairs = Float[Tensor, "batch head some_query some_key"]  # one number for each pair of some queries and some keys
SomeAllowed = Bool[Tensor, "#batch #head some_query some_key"]
KeyMass = Float[Tensor, "batch head some_key"]


def numbers(given: Any, axes: str, what: str) -> Tensor:
    """The tensor itself. Raises InputError, which calls it `what`, unless it holds real numbers along these axes.

    axes: their names, such as "sequence pos d_model"; "..." for any number of them.
    """
    named = [axis for axis in axes.split() if axis != "..."]
    if isinstance(given, Tensor) and not given.is_complex() and given.dtype != torch.bool and not given.is_meta:
        rank = given.ndim if "..." in axes else len(named)
        if len(named) <= given.ndim == rank:
            return given
        got = f"a tensor of {tuple(given.shape)}"
    else:
        got = f"{given.dtype} on {given.device}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise InputError(f"{what} are a tensor of real numbers `{axes}`; got {got}; torch.as_tensor makes one of a list")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    attention_layers: indices of the blocks that attend, among all `n_layers` blocks.
    mlp_layers: indices of those whose feed-forward layer can be seen and edited. d_mlp: how many neurons it has, where
    they can be.
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
    d_mlp: int | None = None
