"""What people write in other libraries, as edits: ablations, and hooks by the names of TransformerLens."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..attention.sites import ATTENTION_INPUT, MLP, NEURONS, OUTPUT, RESIDUAL, Edit, Site
from ..errors import InputError
from ..guesses import keywords
from .changes import (
    Change,
    ChangeAttentionInput,
    ChangeKeys,
    ChangeMLP,
    ChangeNeurons,
    ChangeOutputs,
    ChangePattern,
    ChangeQueries,
    ChangeResidual,
    ChangeValues,
)
from .operations import Apply, MeanOfOthers, Operation, Zero

_AT: Mapping[Site, type[Change]] = {
    RESIDUAL: ChangeResidual,
    ATTENTION_INPUT: ChangeAttentionInput,
    OUTPUT: ChangeOutputs,
    NEURONS: ChangeNeurons,
    MLP: ChangeMLP,
}
_BY: Mapping[str, Operation] = {"zero": Zero(), "mean": MeanOfOthers()}


@keywords
def Ablate(
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[tuple[int, int]] | None = None,
    positions: Iterable[int] | None = None,
    dims: Iterable[int] | None = None,
    site: Site | None = None,
    by: Literal["zero", "mean"] = "zero",
) -> Edit:
    """The edit that sets what is chosen to zero, or to the mean of the other positions::

        Ablate(heads=[(5, 3)])  # what the head returns
        Ablate(positions=[0])  # the residual stream there, before every block
        Ablate(layers=[11], site=si.sites.MLP)

    The site is the output of heads where heads are named, else the residual stream. Raises InputError for a site that
    is not changed by position, and where nothing is chosen.
    """
    site = site or (RESIDUAL if heads is None else OUTPUT)
    if site not in _AT or (heads is not None and site is not OUTPUT):
        raise InputError(f"Ablate changes {', '.join(each.label for each in _AT)}; heads are of the attention output")
    if by not in _BY:
        raise InputError(f'by is "zero" or "mean"; got {by!r:.40}')
    chosen: dict[str, Any] = {"layers": layers, "positions": positions, "dims": dims} | (
        {"heads": heads} if site is OUTPUT else {}
    )
    if all(choice is None for choice in chosen.values()):
        raise InputError("Ablate needs layers, heads, positions or dims")
    return _AT[site](_BY[by], **chosen)


@dataclass(frozen=True)
class Hook:
    """What a hook of TransformerLens is given beside the activation: its name and its layer."""

    name: str

    def layer(self) -> int:
        """The block that the name has."""
        return int(self.name.split(".")[1])


Function = Callable[..., Tensor | None]
_BLOCK = re.compile(r"blocks\.(\d+)\.([\w.]+)")
_HOOKS: Mapping[str, tuple[type[Change], int]] = {  # the change, and how many blocks later it is
    "hook_resid_pre": (ChangeResidual, 0),
    "hook_resid_post": (ChangeResidual, 1),
    "hook_mlp_out": (ChangeMLP, 0),
    "mlp.hook_post": (ChangeNeurons, 0),
    "attn.hook_rot_q": (ChangeQueries, 0),
    "attn.hook_rot_k": (ChangeKeys, 0),
    "attn.hook_v": (ChangeValues, 0),
    "attn.hook_z": (ChangeOutputs, 0),
    "attn.hook_pattern": (ChangePattern, 0),
}
_ELSEWHERE = {
    "attn.hook_q": "ChangeQueries, or attn.hook_rot_q, which is after the rotation",
    "attn.hook_k": "ChangeKeys, or attn.hook_rot_k, which is after the rotation",
    "attn.hook_attn_scores": "a function of the attention call: replace(call, bias=...), or attn.hook_pattern",
    "hook_resid_mid": "ChangeResidual(layers=[block]), before the attention",
    "hook_attn_out": "ChangeOutputs, what heads return before they are mixed",
    "attn.hook_result": "ChangeOutputs, what heads return before they are mixed",
}
_BY_HEAD = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_v", "attn.hook_z")  # `batch pos head d` there


def is_hook(given: Any) -> bool:
    """Whether something is a hook of TransformerLens: its name and a function."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and callable(given[1])


def edit_of_hook(name: str, function: Function) -> Edit:
    """The edit that does what a hook of TransformerLens does: `function(activation, hook=...)`; None changes nothing.

    Activations have TransformerLens' shapes, and the function may change them in place. Raises InputError for a name
    that no site has.
    """
    found = _BLOCK.fullmatch(name)
    block, point = (int(found[1]), found[2]) if found else (0, name)
    if point not in _HOOKS:
        known = f"one of blocks.0.{', blocks.0.'.join(_HOOKS)}"
        raise InputError(f"no edit is at {name}; write {_ELSEWHERE.get(point, known)}")
    change, later = _HOOKS[point]

    def changed(x: Tensor) -> Tensor:
        there = x.transpose(-2, -3) if point in _BY_HEAD else x
        answer = function(there.clone(), hook=Hook(name))
        if answer is None:
            return x
        return answer.transpose(-2, -3) if point in _BY_HEAD else answer

    return change(Apply(changed), layers=[block + later])
