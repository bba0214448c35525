"""A lens: what every part of the residual stream writes into the logits of an answer (direct logit attribution).

The last residual is a sum of parts: embedding, position, heads, feed-forward layers, biases. At the scale that the
final norm has in a pass, logits are linear in the residual. So the parts sum to the difference of two answers' logits.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..backends.anatomy.modules import removed_after
from ..backends.frozen import FrozenNorm, FrozenRun, freezable, frozen
from ..backends.subject import Subject
from ..data.tokens import Tokens, TokensLike
from ..errors import InputError
from ..metrics.metric import PerSequence
from .explain.score_parts import parts_by_block
from .inputs import ModelLike, equal_inputs_of

CONSTANT = "final bias"
CHUNK = 512  # tokens whose parts are held at once
TOLERANCE = 1e-3  # relative; what rounding makes of fp32 is far less
Ids = Int[Tensor, " sequence"]


def logit_parts(
    subject: ModelLike, tokens: TokensLike | Any, right: Ids, wrong: Ids, position: int = -1
) -> dict[str, PerSequence]:
    """What each part adds to the logit of `right` less that of `wrong`, at one position, by the part's name.

    right, wrong: a token id for each sequence. Raises InputError for models whose norms cannot be frozen, and where
    the parts do not add up to the difference, as behind a softcap.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    size = max(1, CHUNK // tokens.shape[1])
    given = zip(*(x.split(size) for x in (tokens, right, wrong)), strict=True)
    found = [_parts(subject, batch, a, b, position) for batch, a, b in given]
    return {name: torch.cat([parts[name] for parts in found]).cpu() for name in found[0]}


def _parts(subject: Subject, tokens: Tokens, right: Ids, wrong: Ids, position: int) -> dict[str, PerSequence]:
    decoder, seen = freezable(subject), list[tuple[nn.Module, Tensor, Tensor]]()
    inside = {module for block in decoder.modules.blocks for module in block.modules()}
    norms = [m for m in decoder.model.modules() if "norm" in type(m).__name__.lower() and m not in inside]

    def see(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.append((module, args[0], output))

    with torch.no_grad(), ExitStack() as stack:
        with removed_after([module.register_forward_hook(see) for module in norms]):
            run = stack.enter_context(frozen(subject, tokens))
        *_, (_, values, _) = parts_by_block(run)
        return _written(run, values, _at(seen, position), (right, wrong), position)


def _at(seen: list[tuple[nn.Module, Tensor, Tensor]], position: int) -> Callable[[Tensor], Tensor]:
    """The norm before the logits at the scale that it has at a position; the identity without a norm."""
    if not seen:
        return lambda x: x
    norm = FrozenNorm.of(*seen[-1])
    return replace(norm, scale=norm.scale[:, [position]])


def _written(
    run: FrozenRun, values: dict[str, Tensor], norm: Callable[[Tensor], Tensor], answers: tuple[Ids, Ids], position: int
) -> dict[str, PerSequence]:
    """The difference of the answers' logits in parts. Raises InputError where they do not add up to it."""
    unembed: Any = run.subject.model.get_output_embeddings()
    logits = run.trace.logits[:, position].float()
    right, wrong = (ids.to(logits.device) for ids in answers)
    direction = (unembed.weight[right] - unembed.weight[wrong]).float()
    nothing = norm(torch.zeros_like(run.trace["x"][:, -1, [position]]))
    found = {name: ((norm(x[:, [position]]) - nothing)[:, 0] * direction).sum(-1) for name, x in values.items()}
    bias = getattr(unembed, "bias", None)
    found[CONSTANT] = (nothing[:, 0] * direction).sum(-1) + (0 if bias is None else bias[right] - bias[wrong])
    rows = torch.arange(len(logits), device=logits.device)
    parts, whole = torch.stack([*found.values()]), logits[rows, right] - logits[rows, wrong]
    if ((parts.double().sum(0) - whole).abs() > TOLERANCE * parts.abs().amax(0).maximum(whole.abs())).any():
        raise InputError(
            f"the parts of {run.subject.name} do not add up to its logits: a softcap or a factor is behind its last "
            "norm, or its numbers are rounded; load it in float32, or take another family"
        )
    return found
