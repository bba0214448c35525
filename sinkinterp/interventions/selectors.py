"""Selectors: which layers, heads, positions and dimensions an intervention changes; all where none are named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..errors import InputError
from .edit import Edit

Layers = Iterable[int] | None
Heads = Iterable[tuple[int, int]] | None
Positions = Iterable[int] | None


@dataclass(frozen=True, kw_only=True)
class InLayers(Edit):
    """Changes attention layers `layers`, counted among all blocks; all by default."""

    layers: Layers = None

    def __post_init__(self) -> None:
        settle(self, "layers")

    def check(self, shape: ModelShape, length: int) -> None:
        if not self.layers_of(shape):
            raise InputError(f"{type(self).__name__} finds no layer of this model to change; take another family")
        inside(self.layers, self.layers_of(shape), "layer")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        return drawn(self, "layers", self.layers_of(shape), generator)

    def acts_in(self, layer: int) -> bool:
        """Whether it changes anything in this layer."""
        return self.layers is None or layer in self.layers

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        """The layers of a model that can be chosen from, in order."""
        return shape.attention_layers


@dataclass(frozen=True, kw_only=True)
class OnHeads(InLayers):
    """Changes query heads `heads`, as (layer, head), or all heads of `layers`; all by default."""

    heads: Heads = None

    def __post_init__(self) -> None:
        settle(self, "layers", "heads")
        if self.layers is not None and self.heads is not None:
            raise InputError("heads name their layers, as (layer, head); give heads or layers, not both")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        inside(self.heads, _heads_of(shape), "head")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        if self.heads is None:
            return super().control(shape, length, generator)
        return drawn(self, "heads", _heads_of(shape), generator)

    def acts_in(self, layer: int) -> bool:
        return super().acts_in(layer) and (self.heads is None or any(layer == one for one, _ in self.heads))

    def of_heads(self, layer: int, n_heads: int, n_query_heads: int) -> Bool[Tensor, " head"]:
        """Which of a layer's heads are changed; a kv head where any of its query heads is."""
        if self.heads is None:
            return torch.ones(n_heads, dtype=torch.bool)
        mask = torch.zeros(n_heads, dtype=torch.bool)
        mask[[head * n_heads // n_query_heads for one, head in self.heads if one == layer]] = True
        return mask

    def on_heads(self, call: AttentionCall, edited: AttentionCall) -> AttentionCall:
        """`edited` on the chosen heads and `call` on the others, which then share a dense pattern; the same slot."""
        n_heads = call.q.shape[1]
        chosen = self.of_heads(call.layer, n_heads, n_heads).to(call.q.device)
        if chosen.all():
            return edited
        return edited.with_pattern(torch.where(chosen[:, None, None], edited.pattern(), call.pattern()))


def drawn(edit: Edit, selector: str, of: Sequence[Any], generator: torch.Generator) -> Edit:
    """The edit with as many other choices for a selector, drawn at random; all is no choice, so it has no control."""
    chosen = getattr(edit, selector)
    if chosen is None:
        raise InputError(f"{type(edit).__name__} changes all {selector}; a control needs some to be chosen")
    others = [one for one in of if one not in chosen]
    if len(others) < len(chosen):
        raise InputError(f"a control of {len(chosen)} {selector} needs as many others; there are {len(others)}")
    picked = torch.randperm(len(others), generator=generator)[: len(chosen)].tolist()
    return replace(edit, **{selector: tuple(others[i] for i in sorted(picked))})


def settle(edit: Edit, *selectors: str) -> None:
    """Turns an edit's selectors into tuples. Raises InputError for one that selects nothing, or one thing twice."""
    for selector in selectors:
        chosen = getattr(edit, selector)
        if chosen is None:
            continue
        chosen = tuple(tuple(one) if isinstance(one, Sequence) else int(one) for one in chosen)
        if not chosen or len(set(chosen)) < len(chosen):
            raise InputError(
                f"{type(edit).__name__}({selector}={list(chosen)}) must name each of its {selector} once, and some; "
                "leave it out to change all"
            )
        object.__setattr__(edit, selector, chosen)


def inside(chosen: Iterable[Any] | None, of: Sequence[Any], what: str) -> None:
    """Raises InputError where something is chosen that a model lacks."""
    outside = [one for one in chosen or () if one not in of]
    if outside:
        span = f"{of[0]} to {of[-1]}" if of else "none"
        raise InputError(f"there is no {what} {outside[0]}; this model and input have {span}")


def _heads_of(shape: ModelShape) -> list[tuple[int, int]]:
    return [(layer, head) for layer in shape.attention_layers for head in range(shape.n_heads)]
