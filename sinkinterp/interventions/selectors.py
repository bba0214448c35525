"""Selectors: which layers, heads, positions and dimensions an intervention changes; all where none are named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import ModelShape
from ..checks import is_whole, whole_number
from ..errors import InputError
from .edit import Edit

MOST = 2**20  # of layers, heads, positions or dimensions that are named


@dataclass(frozen=True, kw_only=True)
class InLayers(Edit):
    """Changes attention layers `layers`, counted among all blocks; all by default."""

    layers: Iterable[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "layers")

    def check(self, shape: ModelShape, length: int) -> None:
        if not self.layers_of(shape):
            raise InputError(f"{type(self).__name__} finds no layer of this model to change; take another family")
        check_chosen(self.layers, self.layers_of(shape), "layer")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        return draw_others(self, "layers", self.layers_of(shape), generator)

    def acts_in(self, layer: int) -> bool:
        """Whether it changes anything in this layer."""
        return self.layers is None or layer in self.layers

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        """The layers of a model that can be chosen, in order."""
        return shape.attention_layers


@dataclass(frozen=True, kw_only=True)
class OnHeads(InLayers):
    """Changes query heads `heads`, as (layer, head), or all heads of `layers`; all by default."""

    heads: Iterable[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "heads")
        if self.layers is not None and self.heads is not None:
            raise InputError("heads name their layers, as (layer, head); give heads or layers, not both")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        check_chosen(self.heads, _query_heads_of(shape), "head")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        if self.heads is None:
            return super().control(shape, length, generator)
        return draw_others(self, "heads", _query_heads_of(shape), generator)

    def acts_in(self, layer: int) -> bool:
        return super().acts_in(layer) and (self.heads is None or any(layer == of_head for of_head, _ in self.heads))

    def head_mask(self, layer: int, n_heads: int, n_query_heads: int) -> Bool[Tensor, " head"]:
        """Which of a layer's `n_heads` heads are changed; a kv head where any of its query heads is chosen."""
        if self.heads is None:
            return torch.ones(n_heads, dtype=torch.bool)
        mask = torch.zeros(n_heads, dtype=torch.bool)
        mask[[head * n_heads // n_query_heads for of_head, head in self.heads if of_head == layer]] = True
        return mask

    def on_heads(self, call: AttentionCall, edited: AttentionCall) -> AttentionCall:
        """`edited` on the chosen heads and `call` on the others, with one dense pattern for all; both have one slot."""
        chosen = self._chosen_heads(call)
        if chosen.all():
            return edited
        return call.with_pattern(torch.where(chosen[:, None, None], edited.pattern(), call.pattern()), chosen)

    def rescored(self, call: AttentionCall, **fields: Any) -> AttentionCall:
        """The call with other fields that scores are made of, on the chosen heads.

        Where only some are chosen, one dense pattern is set for all. Raises InputError where an edit set the pattern
        of a chosen head before.
        """
        chosen = self._chosen_heads(call)
        if chosen.all() or call.set_pattern is None:
            return self.on_heads(call, replace(call, **fields))
        call.set_pattern.check_computes(chosen)
        return self.on_heads(call, replace(call.with_pattern(None), **fields))

    def rescored_by_head(self, call: AttentionCall, **fields: Any) -> AttentionCall:
        """As `rescored`, with a mask or a bias that is the call's own on the other heads, so that no pattern is set."""
        return replace(call, **fields) if call.set_pattern is None else self.rescored(call, **fields)

    def _chosen_heads(self, call: AttentionCall) -> Bool[Tensor, " head"]:
        n_heads = call.q.shape[1]
        return self.head_mask(call.layer, n_heads, n_heads).to(call.q.device)


@dataclass(frozen=True, kw_only=True)
class OnKVHeads(InLayers):
    """Changes key-value heads `kv_heads`, as (layer, kv head), or all of `layers`; all by default."""

    kv_heads: Iterable[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "kv_heads")
        if self.layers is not None and self.kv_heads is not None:
            raise InputError("kv_heads name their layers, as (layer, kv_head); give kv_heads or layers, not both")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        check_chosen(self.kv_heads, _kv_heads_of(shape), "kv head")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        if self.kv_heads is None:
            return super().control(shape, length, generator)
        return draw_others(self, "kv_heads", _kv_heads_of(shape), generator)

    def acts_in(self, layer: int) -> bool:
        return super().acts_in(layer) and (self.kv_heads is None or layer in dict(self.kv_heads))

    def kv_head_mask(self, layer: int, n_kv_heads: int) -> Bool[Tensor, " head"]:
        """Which of a layer's kv heads are changed."""
        mask = torch.full((n_kv_heads,), self.kv_heads is None)
        mask[[head for of_head, head in self.kv_heads or () if of_head == layer]] = True
        return mask


def draw_others(edit: Edit, selector: str, choices: Sequence[Any], generator: torch.Generator) -> Edit:
    """The edit with as many other choices for a selector, drawn at random.

    Raises InputError where the selector chooses all, or more than it leaves out.
    """
    chosen = getattr(edit, selector)
    if chosen is None:
        raise InputError(f"{type(edit).__name__} changes all {selector}; a control needs some to be chosen")
    others = [choice for choice in choices if choice not in chosen]
    if len(others) < len(chosen):
        raise InputError(f"a control of {len(chosen)} {selector} needs as many others; there are {len(others)}")
    drawn = torch.randperm(len(others), generator=generator)[: len(chosen)].tolist()
    return replace(edit, **{selector: tuple(others[i] for i in sorted(drawn))})


def store_chosen(edit: Edit, *selectors: str) -> None:
    """Turns what an edit's selectors choose into tuples of whole numbers, or of (layer, head).

    Raises InputError for one that names nothing, or one thing twice.
    """
    for selector in selectors:
        given = getattr(edit, selector)
        if given is None:
            continue
        name = f"{selector} of {type(edit).__name__}"
        read = head_pair if selector.endswith("heads") else whole_number
        chosen = tuple(read(choice, name) for choice, _ in zip(_several(given, name), range(MOST + 1), strict=False))
        if len(chosen) > MOST:
            raise InputError(f"{name} name more than {MOST:,}; leave them out to change all")
        if not chosen or len(set(chosen)) < len(chosen):
            raise InputError(
                f"{type(edit).__name__}({selector}={list(chosen)}) must name each of its {selector} once, and some; "
                "leave it out to change all"
            )
        object.__setattr__(edit, selector, chosen)


def _several(given: Any, name: str) -> Iterable[Any]:
    """The choices of a selector; one whole number stands for itself."""
    if is_whole(given):
        return (given,)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"{name} are a list of whole numbers, heads of pairs (layer, head); got {given!r:.40}")
    return given


def head_pair(choice: Any, name: str) -> tuple[int, int]:
    """A head as its layer and its index in it. Raises InputError for anything else."""
    if isinstance(choice, str) or not isinstance(choice, Iterable) or len(parts := tuple(choice)) != 2:
        raise InputError(f"{name} are pairs (layer, head), such as [(2, 0), (4, 3)]; got {choice!r:.40}")
    return whole_number(parts[0], name), whole_number(parts[1], name)


def check_chosen(chosen: Iterable[Any] | None, choices: Sequence[Any], label: str) -> None:
    """Raises InputError for a choice that is none of the `choices`, in order, that a model and its input have."""
    absent = [choice for choice in chosen or () if choice not in choices]
    if absent:
        span = f"{choices[0]} to {choices[-1]}" if choices else "none"
        raise InputError(f"there is no {label} {absent[0]}; this model and input have {span}")


def _query_heads_of(shape: ModelShape) -> list[tuple[int, int]]:
    return [(layer, head) for layer in shape.attention_layers for head in range(shape.n_heads)]


def _kv_heads_of(shape: ModelShape) -> list[tuple[int, int]]:
    return [(layer, head) for layer in shape.attention_layers for head in range(shape.n_kv_heads)]
