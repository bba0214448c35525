"""What users give as edits: one or several, functions of attention calls, and what they write in other libraries.

The last are ablations, and hooks by the names of TransformerLens.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from itertools import product
from types import NoneType
from typing import Any, Literal

import torch
from torch import Tensor

from ..attention import CHANGES, OUTPUT, RESIDUAL, AttentionCall, Edit, Site, called
from ..checks import InputError, accepting, choice, instance_of, is_whole
from . import changes
from .changes import Apply, MeanOfOthers, Operation, Zero
from .selectors import is_pair, several


@dataclass(frozen=True)
class CallFunction(Edit):
    """A plain function from the call of every attention layer to the call that takes its place."""

    function: Callable[..., AttentionCall]

    def call(self, call: AttentionCall) -> AttentionCall:
        who = description(self.function)
        must = "must return a call: replace(call, q=...), call.with_pattern(...), or the call itself"
        return instance_of(called(self.function, who, call), AttentionCall, f"{who} {must}")


AnyEdit = Edit | Callable[[AttentionCall], AttentionCall]
Edits = AnyEdit | Sequence[AnyEdit]


def edits_of(edits: Any) -> tuple[Edit, ...]:
    """One edit, or several in their order. A function takes and returns an attention call.

    A pair of a name of TransformerLens and a function is an edit too; see `edit_of_hook`. Raises InputError for others.
    """
    given = (edits,) if isinstance(edits, Edit) or callable(edits) or is_hook(edits) else edits
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        given = (edits,)
    return tuple(_edit_of(edit) for edit in given)


def _edit_of(edit: Any) -> Edit:
    if is_hook(edit):
        return edit_of_hook(*edit)
    if isinstance(edit, Edit):
        if all(getattr(type(edit), name) is getattr(Edit, name) for name in CHANGES):
            raise InputError(f"{type(edit).__name__} overrides none of {', '.join(CHANGES)}, so it changes nothing")
        return edit
    if callable(edit) and not isinstance(edit, type | torch.nn.Module) and not is_dataclass(edit):  # an operation
        return CallFunction(edit)
    what = edit.__name__ if isinstance(edit, type) else type(edit).__name__
    raise InputError(f"{what} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")


def makers() -> dict[str, Any]:
    """The classes and functions that make edits, by their names in `si.interventions`."""
    public = vars(sys.modules[__package__])
    made = {name: public[name] for name in public["__all__"]}
    return {name: kind for name, kind in made.items() if not isinstance(kind, type) or Edit in kind.mro()[1:]}


def edit_names() -> list[str]:
    """The names of all edits in `si.interventions`."""
    return [*makers()]


def description(value: object) -> str:
    """An edit as code would write it, without fields that have their default value; tensors by their shape."""
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {description(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(description, value)) + "]"
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [description(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={description(getattr(value, f.name))}" for f in shown if f.kw_only]
    return f"{type(value).__name__}({', '.join(by_place + by_name)})"


def _is_default(field: Field, value: object) -> bool:
    is_plain = isinstance(value, int | float | str | tuple | NoneType)
    return value is field.default or (is_plain and value == field.default)


# What people write in other libraries

_BY: Mapping[str, Operation] = {"zero": Zero(), "mean": MeanOfOthers()}


def Ablate(
    heads: Iterable[tuple[int, int]] | None = None,
    *,
    layers: Iterable[int] | None = None,
    positions: Iterable[int] | None = None,
    dims: Iterable[int] | None = None,
    site: Site | str | None = None,
    by: Literal["zero", "mean"] = "zero",
) -> Edit:
    """The edit that sets what is chosen to zero, or to the mean of the other positions::

        Ablate(heads=[(5, 3)])  # what the head returns; Ablate(layers=5, heads=3) is the same
        Ablate(positions=[0])  # the residual stream there, before every block
        Ablate(layers=[11], site=si.sites.MLP)

    The site is the output of heads where heads are named, else the residual stream; "mlp" names it too. Raises
    InputError for a site that is not changed by position, and where nothing is chosen.
    """
    site = site or (RESIDUAL if heads is None else OUTPUT)
    named = {each.method.__name__: each for each in changes.AT}
    site = choice(site, named, "site that is ablated called") if isinstance(site, str) else site
    if site not in named.values() or (heads is not None and site is not OUTPUT):
        raise InputError(f"Ablate changes {', '.join(named)}; heads are of the attention output")
    chosen = {"layers": layers, "heads": heads, "positions": positions, "dims": dims}
    if all(choice is None for choice in chosen.values()):
        raise InputError("Ablate needs layers, heads, positions or dims")
    return in_places(changes.AT[site](choice(by, _BY, "way to ablate")), **chosen)


PLACES = ("layers", "heads", "positions", "dims")


def in_places(site: Any, layers: Any = None, heads: Any = None, **chosen: Any) -> Any:
    """The edit in chosen layers, heads, positions and dimensions; heads are pairs, or numbers beside their layers."""
    if layers is not None and heads is not None and not is_pair(heads) and all(map(is_whole, several(heads, "heads"))):
        layers, heads = None, [*product(several(layers, "layers"), several(heads, "heads"))]
    if heads is not None:
        if not hasattr(site, "selector"):
            raise InputError(f"{type(site).__name__} has no heads; leave heads=... out, or take ChangeOutputs()")
        chosen[site.selector] = heads
    chosen["layers"] = layers
    return replace(site, **{name: value for name, value in chosen.items() if value is not None})


def site_of(given: Any, layers: Any = None, heads: Any = None, positions: Any = None) -> changes.Change:
    """The place that a change without an operation names, or a word for it: "resid_pre", ("mlp", 3), "blocks.1.hook_z".

    `layers`, `heads` and `positions` narrow it. None is the residual stream, or the output of heads where heads are
    named. Raises InputError for anything else.
    """
    word, *of_layer = given if isinstance(given, tuple) else (given,)
    if isinstance(word, list):
        raise InputError(f"sites are patched one a call, such as site='k'; got {word!r:.60}")
    if word is None:
        word = "residual" if heads is None else "output"
    if isinstance(word, str):
        if found := _BLOCK.fullmatch(word):
            of_layer, word = [int(found[1])], found[2]
        word = re.sub(r".*hook_(rot_)?|^(attn|mlp)\W", "", word)
        change, later = choice(word, SITE_WORDS, "site")
        layers = of_layer if of_layer else layers
        word = change()
        layers = [layer + later for layer in several(layers, "layers")] if layers is not None and later else layers
    fix = f"a change without an operation, such as ChangeResidual(layers=[1]), or one of {', '.join(SITE_WORDS)}"
    return in_places(instance_of(word, changes.Change, f"a site is {fix}"), layers, heads, positions=positions)


def ZeroMassive(*, layers: Iterable[int] | None = None, least: float = 100.0, times: float = 1000.0) -> Edit:
    """The edit that sets massive activations of the residual stream to zero before every block, or before some."""
    return changes.ChangeResidual(changes.WithoutMassive(least, times), layers=layers)


@dataclass(frozen=True)
class Hook:
    """What a hook of TransformerLens is given beside the activation: its name and its layer."""

    name: str

    def layer(self) -> int:
        """The block that the name has."""
        return int(self.name.split(".")[1])


Function = Callable[..., Tensor | None]
_BLOCK = re.compile(r"blocks\.(\d+)\.([\w.]+)")
_HOOKS: Mapping[str, tuple[type[changes.Change], int]] = {  # the change, and how many blocks later it is
    "hook_resid_pre": (changes.ChangeResidual, 0),
    "hook_resid_post": (changes.ChangeResidual, 1),
    "hook_mlp_out": (changes.ChangeMLP, 0),
    "mlp.hook_post": (changes.ChangeNeurons, 0),
    "attn.hook_rot_q": (changes.ChangeQueries, 0),
    "attn.hook_rot_k": (changes.ChangeKeys, 0),
    "attn.hook_v": (changes.ChangeValues, 0),
    "attn.hook_z": (changes.ChangeOutputs, 0),
    "attn.hook_pattern": (changes.ChangePattern, 0),
}
SITE_WORDS: Mapping[str, tuple[type[changes.Change], int]] = {
    **{re.sub(r".*hook_(rot_)?", "", point): at for point, at in _HOOKS.items()},
    **{kind.site.method.__name__: (kind, 0) for kind in changes.AT.values()},
    "attn_out": (changes.ChangeOutputs, 0),
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
        raise InputError(f"no edit is at {name}; write one of blocks.0.{', blocks.0.'.join(_HOOKS)}")
    change, later = _HOOKS[point]
    accepting(function, f"the function at {name}", None, hook=None)

    def changed(x: Tensor) -> Tensor:
        there = x.transpose(-2, -3) if point in _BY_HEAD else x
        answer = function(there.clone(), hook=Hook(name))
        if answer is None:
            return x
        return answer.transpose(-2, -3) if point in _BY_HEAD else answer

    return change(Apply(changed), layers=[block + later])
