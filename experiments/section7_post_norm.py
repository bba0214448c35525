"""Section 7.2 and Figure 7 (left): a model with norms after its branches has a sink too, and is long before them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkinterp.backends.anatomy import removed_after
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.metrics.estimates import mean_cells
from sinkinterp.runs.trained import Run
from sinkinterp.table import ALPHA_1, MODEL, RESIDUAL_RATIO, Cell

from .shared.rules import above, has_sink, setup, times
from .shared.study import Trainings, architecture, by_model, study

PRE, POST = "pre_norm", "post_norm"
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


_STUDY = study(
    claim="Where the norms stand does not matter: with norms after the branches the sink is still there, and the first "
    "token is long before them.",
    arms=(architecture("softmax", PRE, sink=18.18, loss=3.73), architecture(POST, sink=13.54)),
    rules=(
        setup(has_sink(PRE)),
        has_sink(POST, baseline=PRE),
        above(
            "with post-norm the first token is at least twice as long before the norms as after them",
            BEFORE,
            {MODEL: POST},
            {MODEL: POST},
            other_column=RESIDUAL_RATIO,
            bound=times(2.0),
        ),
    ),
    note=f"{RESIDUAL_RATIO}: the first token's norm over the others', the largest over blocks; {BEFORE}: the same "
    "where a norm reads it",
)
assert isinstance(_STUDY.rows, Trainings)
EXPERIMENT = replace(
    _STUDY, rows=replace(_STUDY.rows, more=read), draw=partial(by_model, quantities=(ALPHA_1, RESIDUAL_RATIO, BEFORE))
)
