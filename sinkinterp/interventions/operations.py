"""Operations: what becomes of an activation. Every class of `changes` takes any of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError, check_fields, is_whole, whole_number
from ..guesses import Told
from ..spec import Limits
from .selectors import check_chosen

Activation = Float[Tensor, "*sequence_head pos d"]


@dataclass(frozen=True)
class Operation(metaclass=Told):
    """Makes new activations of a layer from old ones. A `Change` uses the entries that it chooses, and no others."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, layer: int, x: Activation) -> Activation:
        """The new activations of a layer, in the shape of the old ones. Positions in `x` count from the first token."""
        raise NotImplementedError

    def check(self, length: int) -> None:
        """Raises InputError where the operation does not fit sequences of this length."""

    def check_sequences(self, count: int) -> None:
        """Raises InputError where the operation does not fit a measurement of `count` sequences."""

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> "Operation":
        """The operation for the chosen sequences of a measurement; itself where it treats all sequences alike."""
        return self


@dataclass(frozen=True)
class Keep(Operation):
    """The identity."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x


@dataclass(frozen=True)
class NotGiven(Keep):
    """The operation of a `Change` that only names a site: it can be read, and is refused as an edit."""

    def check(self, length: int) -> None:
        fix = "give one, such as Zero(); Keep() is one that changes nothing"
        raise InputError(f"an edit without an operation only names a site; {fix}")


@dataclass(frozen=True)
class Apply(Operation):
    """The result of a function of the activations, in their shape. A `Change` makes it of a function."""

    function: Callable[[Activation], Activation]

    def __call__(self, layer: int, x: Activation) -> Activation:
        return self.function(x)


@dataclass(frozen=True)
class Zero(Operation):
    """Zero in every chosen entry."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class SetTo(Operation):
    """One number in every chosen entry."""

    value: float

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.full_like(x, self.value)


@dataclass(frozen=True)
class Scale(Operation):
    """Multiplied by a factor."""

    factor: float

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x * self.factor


@dataclass(frozen=True)
class ClampNorm(Operation):
    """Vectors longer than `limit` are shrunk to that length."""

    limit: float
    limits: ClassVar[Limits] = {"limit": 0}

    def __call__(self, layer: int, x: Activation) -> Activation:
        tiny = torch.finfo(x.dtype).tiny
        return x * (self.limit / x.norm(dim=-1, keepdim=True).clamp(min=tiny)).clamp(max=1)


@dataclass(frozen=True)
class MeanOfOthers(Operation):
    """Every chosen vector becomes the mean over the positions after the first `skip`, of its own sequence.

    It reads the whole sequence, which in a generation with a cache is the prompt. Use it to make a position look like
    any other, not where causality matters.
    """

    skip: int = 1

    def check(self, length: int) -> None:
        whole_number(self.skip, f"of {length} positions, how many a mean skips", 0, length - 1)

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x[..., self.skip :, :].mean(-2, keepdim=True).expand_as(x)


@dataclass(frozen=True)
class MatchedNoise(Operation):
    """Random numbers with the mean and variance that each dimension has over the positions of its own sequence.

    They are drawn from `seed`, and are the same for all sequences. In a generation with a cache the mean and the
    variance are those of the prompt.
    """

    seed: int = 0

    def __call__(self, layer: int, x: Activation) -> Activation:
        generator = torch.Generator().manual_seed(1000 * self.seed + layer)
        noise = torch.randn(x.shape[1:], generator=generator).to(x)
        return x.mean(-2, keepdim=True) + x.std(-2, correction=0, keepdim=True) * noise


@dataclass(frozen=True)
class SwapWith(Operation):
    """The positions `first` and `second` exchange their vectors."""

    first: int
    second: int

    def check(self, length: int) -> None:
        check_chosen((self.first, self.second), range(length), "position")

    def __call__(self, layer: int, x: Activation) -> Activation:
        order = torch.arange(x.shape[-2], device=x.device)
        order[[self.first, self.second]] = order[[self.second, self.first]]
        return x[..., order, :]


@dataclass(frozen=True, eq=False, repr=False)
class _WithValues(Operation):
    """Base of operations with given activations, by layer: of each sequence, or of one that stands for all.

    One vector stands for all layers, sequences and positions, also for those that are generated.
    """

    values: Mapping[int, Tensor] | Float[Tensor, " d"]

    def __post_init__(self) -> None:
        if isinstance(self.values, Tensor) and self.values.ndim == 1:
            return
        given = self.values.items() if isinstance(self.values, Mapping) else [(None, None)]
        if not all(is_whole(layer) and isinstance(value, Tensor) and value.ndim > 1 for layer, value in given):
            raise InputError("activations are tensor(d), or by layer, {3: tensor(sequence, ..., pos, d)}")

    def __repr__(self) -> str:
        if isinstance(self.values, Tensor):
            return f"{type(self).__name__}(tensor{tuple(self.values.shape)})"
        shapes = ", ".join(f"{layer}: tensor{tuple(value.shape)}" for layer, value in self.values.items())
        return f"{type(self).__name__}({{{shapes}}})"

    def check_sequences(self, count: int) -> None:
        wrong = next((len(value) for value in self._by_layer().values() if len(value) not in (1, count)), None)
        if wrong is not None:
            raise InputError(f"{type(self).__name__} holds {wrong} sequences, for {count}; take the same inputs")

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Operation:
        values = {n: v if len(v) == 1 else v[chosen.to(v.device)] for n, v in self._by_layer().items()}
        return self if all(len(value) == 1 for value in self._by_layer().values()) else replace(self, values=values)

    def _by_layer(self) -> Mapping[int, Tensor]:
        """The activations by layer; none for one vector."""
        return {} if isinstance(self.values, Tensor) else self.values

    def _values_like(self, layer: int, x: Activation) -> Activation:
        if isinstance(self.values, Tensor):
            if len(self.values) != x.shape[-1]:
                raise self._misfit(layer, self.values, x)
            return self.values.to(x).expand_as(x)
        value = self._of_layer(layer, x)
        if len(value) not in (1, len(x)):
            raise self._misfit(layer, value, x)
        return value.expand_as(x)

    def _of_layer(self, layer: int, x: Activation) -> Tensor:
        """The given activations of a layer. Raises InputError where there are none, or they do not fit `x`."""
        if layer not in self._by_layer():
            raise InputError(f"no activations were taken of layer {layer}; choose among {sorted(self._by_layer())}")
        value = self._by_layer()[layer].to(x)
        if value.shape[1:] != x.shape[1:]:
            raise self._misfit(layer, value, x)
        return value

    def _misfit(self, layer: int, value: Tensor, x: Activation) -> InputError:
        what = f"activations {tuple(value.shape)} do not fit {tuple(x.shape)} of layer {layer}"
        return InputError(f"{what}; patch between models of one shape and inputs of one length")


class Put(_WithValues):
    """The given activations replace the model's own."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return self._values_like(layer, x)


class Add(_WithValues):
    """The given activations are added to the model's own."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x + self._values_like(layer, x)


@dataclass(frozen=True, eq=False, repr=False)
class PutAt(_WithValues):
    """Every sequence takes the given activations at one place of its own, and keeps its others.

    rows: which of the given sequences a sequence takes them from. places: its layer, head, position and dimension (of a
    pattern, the column); -1 for all. So each sequence of a pass tries one place.
    """

    rows: Int[Tensor, " sequence"]
    places: Int[Tensor, "sequence 4"]

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Operation:
        return replace(self, rows=self.rows[chosen], places=self.places[chosen])

    def __call__(self, layer: int, x: Activation) -> Activation:
        mine = (self.places[:, 0] == layer).nonzero().flatten()
        if not len(mine):
            return x
        new, given = x.clone(), self._of_layer(layer, x)
        for i in mine.tolist():
            at = tuple(slice(None) if k < 0 else k for k in self.places[i, 1:].tolist())[-(x.ndim - 1) :]
            new[(i, *at)] = given[(int(self.rows[i]), *at)]
        return new
