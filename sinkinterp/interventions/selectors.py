"""Selectors: which layers, heads, positions and dimensions an intervention changes; all where none are named."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import AttentionCall, Edit, ModelShape
from ..checks import InputError, is_whole, whole_number
from ..table import HEAD, KV_HEAD, LAYER, Table

MOST = 2**20  # of layers, heads, positions or dimensions that are named
_PAIRS = "pairs (layer, head), such as [(2, 0), (4, 3)]"

Heads = Iterable[tuple[int, int]] | Table  # pairs (layer, head), or a table with a row for each, as `report.heads()`
LABELS = {"dims": "dimension", "positions": "position", "heads": "head", "kv_heads": "kv_head", "layers": "layer"}


def listed(label: str, chosen: Sequence[Any]) -> str:
    """The choices of a selector in words, such as "layers 3 to 8" and "head 18.7"."""
    names = [".".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in chosen]
    is_run = len(names) > 2 and is_whole(chosen[0]) and [*chosen] == [*range(chosen[0], chosen[0] + len(names))]
    text = f"{names[0]} to {names[-1]}" if is_run else ", ".join(names)
    return f"{label.replace('_', ' ')}{'s' * (len(names) > 1)} {text}"


@dataclass(frozen=True, repr=False)
class Choosing(Edit):
    """Base of edits with selectors: fields with the names in `LABELS`, from narrow to wide. None chooses all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, *self._selectors)

    @property
    def _selectors(self) -> list[str]:
        return [name for name in LABELS if hasattr(self, name)]

    def choices(self, shape: ModelShape, length: int) -> Mapping[str, Sequence[Any]]:
        """The choices of each selector in a model, and in sequences of this length."""
        layers = shape.attention_layers
        return {
            "dims": range(shape.d_model),
            "positions": range(length),
            "heads": [*product(layers, range(shape.n_heads))],
            "kv_heads": [*product(layers, range(shape.n_kv_heads))],
            "layers": layers,
        }

    def check(self, shape: ModelShape, length: int) -> None:
        choices, n_heads = self.choices(shape, length), {"heads": shape.n_heads, "kv_heads": shape.n_kv_heads}
        for name in self._selectors:
            if name in n_heads:
                check_heads(getattr(self, name) or (), shape.attention_layers, n_heads[name], LABELS[name])
            else:
                there_are = range(shape.n_layers) if name == "layers" else ()
                check_chosen(getattr(self, name), choices[name], LABELS[name], there_are)

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        """The edit with other choices for its narrowest selector: the same number, drawn at random.

        Raises InputError where the selector chooses all, or more than it leaves out.
        """
        name = next((name for name in self._selectors if getattr(self, name) is not None), self._selectors[-1])
        chosen, choices = getattr(self, name), self.choices(shape, length)[name]
        others = [choice for choice in choices if chosen is not None and choice not in chosen]
        if not others or len(others) < len(chosen):
            raise InputError(f"a control of {type(self).__name__} needs as many other {name}")
        drawn = torch.randperm(len(others), generator=generator)[: len(chosen)].tolist()
        return replace(self, **{name: tuple(others[i] for i in sorted(drawn))})


@dataclass(frozen=True, repr=False, kw_only=True)
class InLayers(Choosing):
    """Changes attention layers `layers`, counted among all blocks; all by default."""

    layers: Iterable[int] | None = None

    def check(self, shape: ModelShape, length: int) -> None:
        if not self.choices(shape, length)["layers"]:
            raise InputError(f"{type(self).__name__} finds no layer of this model to change")
        super().check(shape, length)

    def acts_in(self, layer: int) -> bool:
        """Whether it changes anything in this layer."""
        return self.layers is None or layer in self.layers


@dataclass(frozen=True, repr=False, kw_only=True)
class InCalls(InLayers):
    """Changes the attention calls of its layers, by `changed`."""

    def call(self, call: AttentionCall) -> AttentionCall:
        return self.changed(call) if self.acts_in(call.layer) else call

    def changed(self, call: AttentionCall) -> AttentionCall:
        """The call of a layer that it changes, after the change."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False, kw_only=True)
class OnPairs(InLayers):
    """Changes the heads that the field `selector` names, as (layer, head), or all heads of `layers`; all by default."""

    selector: ClassVar[str] = ""

    @property
    def pairs(self) -> Sequence[tuple[int, int]] | None:
        """The heads that are named; None for all."""
        return getattr(self, self.selector, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None and self.pairs is not None:
            name = self.selector
            raise InputError(f"{name} name their layers, as (layer, {name[:-1]}); give {name} or layers, not both")

    def acts_in(self, layer: int) -> bool:
        return super().acts_in(layer) and (self.pairs is None or any(layer == of_head for of_head, _ in self.pairs))

    def head_mask(self, layer: int, n_heads: int) -> Bool[Tensor, " head"]:
        """Which of a layer's heads are changed."""
        mask = torch.full((n_heads,), self.pairs is None)
        mask[[head for of_head, head in self.pairs or () if of_head == layer]] = True
        return mask


@dataclass(frozen=True, repr=False, kw_only=True)
class OnKVHeads(OnPairs):
    """Changes heads of keys and values, `kv_heads`, as (layer, kv_head); each serves a group of query heads."""

    selector = "kv_heads"
    kv_heads: Heads | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class OnHeads(OnPairs):
    """Changes query heads `heads`, as (layer, head)."""

    selector = "heads"
    heads: Heads | None = None

    def on_heads(self, call: AttentionCall, edited: AttentionCall) -> AttentionCall:
        """`edited` on the chosen heads and `call` on the others, with one dense pattern for all; both have one slot."""
        chosen = self._chosen_heads(call)
        if chosen.all():
            return edited
        return call.with_pattern(torch.where(chosen[:, None, None], edited.pattern(), call.pattern()), chosen)

    def rescored(self, call: AttentionCall, **fields: Any) -> AttentionCall:
        """The call with other fields that scores are made of, on the chosen heads.

        If only some are chosen, one dense pattern is set for all. Raises InputError where an edit set the pattern
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
        return self.head_mask(call.layer, call.q.shape[1]).to(call.q.device)


def store_chosen(edit: Edit, *selectors: str) -> None:
    """Turns what an edit's selectors choose into tuples of whole numbers, or of (layer, head).

    Raises InputError for one that names nothing, or one thing twice.
    """
    for selector in selectors:
        given = getattr(edit, selector)
        if given is None:
            continue
        name = f"{selector} of {type(edit).__name__}"
        if isinstance(given, Table):
            given = _pairs_in(given, {"heads": HEAD, "kv_heads": KV_HEAD}.get(selector, selector), name)
        object.__setattr__(edit, selector, tuple(_distinct(given, name, selector.endswith("heads"))))


def _pairs_in(table: Table, column: str, name: str) -> list[tuple[int, int]]:
    """The (layer, head) of every row of a table. Raises InputError unless it has these columns."""
    if missing := sorted({LAYER, column} - set(table.frame)):
        raise InputError(
            f"{name} may be a table with a row for each, but {table.title!r} has no {' and '.join(missing)}"
        )
    return [(row[LAYER], row[column]) for row in table.records()]


def _distinct(given: Any, name: str, of_heads: bool) -> list[Any]:
    """The named things, each once: whole numbers, of which one stands for itself, or heads as pairs."""
    choices = (given,) if is_whole(given) and not of_heads else given
    if isinstance(choices, str | bytes) or not isinstance(choices, Iterable) or getattr(choices, "ndim", 1) == 0:
        raise InputError(f"{name}: give a list of {_PAIRS if of_heads else 'whole numbers'}; got {given!r:.40}")
    read = _head_pair if of_heads else whole_number
    chosen = [read(choice, name) for choice in islice(choices, MOST + 1)]
    if not 0 < len(set(chosen)) == len(chosen) <= MOST:
        shown = textwrap.shorten(str(chosen), 60)
        raise InputError(f"{name} must name each once, and some, at most {MOST:,}; got {shown}; leave them out for all")
    return chosen


def named_heads(given: Any, name: str, layers: Sequence[int], n_heads: int) -> list[tuple[int, int]]:
    """Heads of a model as pairs (layer, head), in order.

    Raises InputError for anything else, for heads that the attending layers do not have, for none, and for one twice.
    """
    pairs = sorted(_distinct(given, name, of_heads=True))
    check_heads(pairs, layers, n_heads, "head")
    return pairs


def check_heads(pairs: Iterable[tuple[int, int]], layers: Sequence[int], n_heads: int, label: str) -> None:
    """Raises InputError for a (layer, head) that the attending layers do not have. `label` is "head" or "kv_head"."""
    for layer, head in pairs:
        if layer not in layers or not 0 <= head < n_heads:
            span = f"{label}s count from 0 to {n_heads - 1} in layers {', '.join(map(str, layers))}"
            raise InputError(f"there is no {label} {head} of layer {layer}; {span}")


def _head_pair(choice: Any, name: str) -> tuple[int, int]:
    """A head as its layer and its index in it. Raises InputError for anything but two whole numbers."""
    is_row = isinstance(choice, Iterable) and not isinstance(choice, str | bytes) and not is_whole(choice)
    if not is_row or len(parts := tuple(choice)) != 2:
        raise InputError(f"{name}: give a list of {_PAIRS}; got {choice!r:.40}")
    return whole_number(parts[0], f"a layer of {name}"), whole_number(parts[1], f"a head of {name}")


def check_chosen(
    chosen: Iterable[int] | None, choices: Sequence[int], label: str, there_are: Sequence[int] = ()
) -> None:
    """Raises InputError unless every choice is among the sorted `choices` that a model and its input have.

    there_are: other ones that exist, in which there is nothing to change.
    """
    absent = [choice for choice in chosen or () if choice not in choices]
    if absent:
        has_gaps = len(choices) < 2 or choices[-1] - choices[0] >= len(choices)
        span = (", ".join(map(str, choices)) or "none") if has_gaps else f"{choices[0]} to {choices[-1]}"
        fix = "; name one of them" if choices else ""
        kind = f"{label} that this edit changes" if absent[0] in there_are else label
        raise InputError(f"there is no {kind} {absent[0]}; this model and input have {span}{fix}")
