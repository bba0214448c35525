"""How long the first token is where norms read it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sinkinterp.backends.anatomy import removed_after
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.metrics.estimates import mean_cells
from sinkinterp.runs.trained import Run
from sinkinterp.table import Cell

BEFORE = "ratio before the norms"


def read(run: Run, held_out: TokenSet) -> Mapping[str, Cell]:
    """How long the first token is where norms read it, with its interval over sequences."""
    return mean_cells(BEFORE, ratios_before_norms(load_model(run.folder), held_out.tokens))


@torch.no_grad()
def ratios_before_norms(model: Any, tokens: Tokens) -> Tensor:
    """The first token's norm over the mean of the others', where a norm of a block reads them: ` sequence`.

    Of all norms, the one with the largest mean ratio counts. With pre-norm they read the residual stream.
    """
    seen: list[Tensor] = []

    def record(norm: Any, args: tuple[Tensor]) -> None:
        lengths = args[0].norm(dim=-1)
        seen.append(lengths[:, 0] / lengths[:, 1:].mean(1))

    norms = [norm for block in model.model.layers for norm in (block.input_layernorm, block.post_attention_layernorm)]
    with removed_after([norm.register_forward_pre_hook(record) for norm in norms]):
        model.model(tokens)
    return max(seen, key=lambda ratios: ratios.mean().item())
