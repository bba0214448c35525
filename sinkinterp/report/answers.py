"""Answers of functions of a model: numbers that people print and compare, with the table behind them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.express as px
import plotly.graph_objects as go
import torch
from torch import Tensor

from ..checks import InputError, choice, is_whole, refusal, whole_numbers
from ..metrics.bootstrap import SHARES, intervals, mean_cells, rate
from ..metrics.importance import sink_rate
from ..plots.theme import MAGNITUDE, themed
from ..table import EPSILON, HEAD, LAYER, SINK_RATE, Table

_MOST_PANELS = 16


class OfTable:
    """The base of answers with a table, whose attributes and methods are theirs too: `to_pandas`, `plot`, `save`."""

    kind = "answer"

    @property
    def table(self) -> Table:
        """The table that pandas is given, and that is drawn and saved."""
        raise NotImplementedError

    def save(self, path: Path | str, **how: Any) -> Path:
        """Writes the table, or its figure, as `si.save` does, and returns the path."""
        return self.table.save(path, **how)

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_" or name in ("table", "columns") or not vars(self):  # plotly takes columns for a frame
            raise AttributeError(name)
        if hasattr(Tensor, name) or not hasattr(self.table, name):
            raise AttributeError(f"a {self.kind} has no attribute {name!r}")
        return getattr(self.table, name)


class NamedTensor(OfTable, Tensor):
    """A tensor that knows the names of its axes, as columns of its table. Operations on it return plain tensors.

    axes: by its name, the number of each place along an axis. quantity: what the numbers are.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    kind = "tensor"

    quantity: str
    axes: Mapping[str, Sequence[int]]

    @staticmethod
    def of(values: Tensor, quantity: str, **axes: Sequence[int] | int) -> "NamedTensor":
        """The tensor on the CPU, without gradients, with the names of its axes; a size stands for numbers from 0."""
        named = values.detach().cpu().as_subclass(NamedTensor)
        named.quantity = quantity
        named.axes = {name: range(n) if isinstance(n, int) else n for name, n in axes.items()}
        return named

    def at(self, **places: int | Sequence[int] | None) -> "NamedTensor":
        """The numbers at some places of its axes, such as layer=[2, 5]; a number leaves its axis out, None keeps all.

        Raises InputError for places that are not there; -1 is the last.
        """
        values, axes = self.as_subclass(Tensor), dict(self.axes)
        for name, chosen in places.items():
            if chosen is None:
                continue
            there = {**dict(enumerate(axes[name], -len(axes[name]))), **{n: n for n in axes[name]}}
            numbers = whole_numbers(chosen, f"{name}s")
            if absent := [n for n in numbers if n not in there]:
                raise InputError(f"there is no {name} {absent[0]} here; choose from {', '.join(map(str, axes[name]))}")
            numbers = [there[n] for n in numbers]
            axis, index = [*axes].index(name), torch.tensor([*map([*axes[name]].index, numbers)])
            values, axes[name] = values.index_select(axis, index), numbers
            if is_whole(chosen):
                values = values.squeeze(axis)
                del axes[name]
        return NamedTensor.of(values, self.quantity, **axes)

    def over(self, axis: str) -> "NamedTensor":
        """The mean over an axis of the numbers that are not missing."""
        axes = {name: places for name, places in self.axes.items() if name != axis}
        return NamedTensor.of(self.as_subclass(Tensor).nanmean([*self.axes].index(axis)), self.quantity, **axes)

    def plot(self, **named: Any) -> go.Figure:
        """The picture by `drawn`; words such as `layer=3` choose places, others are of `plotly.express.imshow`."""
        words = dict(named)
        shown = self.at(**{word: words.pop(word) for word in self.axes if word in words})
        return drawn(shown, self.quantity, shown.axes, **words)

    def sort_values(self, *by: Any, **how: Any) -> Any:
        """The frame sorted by columns, or without any, the numbers as a Series, sorted."""
        frame = self.table.frame
        of_pandas = frame if by or "by" in how else frame.set_index([*self.axes])[self.quantity]
        return of_pandas.sort_values(*by, **how)

    def topk(self, k: int, dim: int = -1, **how: Any) -> Any:  # type: ignore[override]
        """The k largest numbers along an axis, and where they are. Raises InputError where the axis has fewer."""
        with refusal("topk", f".flatten().topk({k}) are the largest of all", RuntimeError):
            return super().topk(k, dim, **how)

    def to_numpy(self) -> Any:
        """The numbers as an array."""
        return self.as_subclass(Tensor).numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.as_subclass(Tensor)!r}  # {self.quantity} by {', '.join(self.axes)}"

    def __getitem__(self, index: Any) -> Any:
        """Numbers by their places, or the column of the table that a text names."""
        if isinstance(index, str):
            return self.table.frame[index]
        try:
            return super().__getitem__(index)
        except IndexError as error:
            axes = ", ".join(f"{name} ({len(places)})" for name, places in self.axes.items())
            fix = "; position=2, in the call, reads another position" if "position" not in self.axes else ""
            raise IndexError(f"{error}; {self.quantity} has the axes {axes}{fix}") from None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return deepcopy(self.as_subclass(Tensor), memo)

    @property
    def table(self) -> Table:
        """A row for each number that is not missing."""
        rows = (
            {**dict(zip(self.axes, places, strict=True)), self.quantity: value}
            for places, value in zip(product(*self.axes.values()), self.flatten().tolist(), strict=True)
            if value == value  # not NaN
        )
        note = f"{self.quantity} by {', '.join(self.axes)}"
        return Table.of(note, note, tuple(rows), lambda table: self.plot())


def drawn(values: Any, title: str = "", axes: Mapping[str, Sequence[int]] = {}, **named: Any) -> go.Figure:
    """A plotly figure of numbers along one or two axes, or a panel for each place of the smallest axis of three.

    `named` are words of `plotly.express.imshow`. Raises InputError for more axes.
    """
    x = torch.as_tensor(values).detach().cpu().float().as_subclass(Tensor)
    names = [name for name, n in zip(axes, x.shape, strict=False) if n > 1 or x.ndim < 3]
    x = x if x.ndim < 3 else x.squeeze()
    if x.ndim < 2:
        places = [*axes[names[0]]] if names else None
        figure = go.Figure().add_scatter(x=places, y=x.reshape(-1).numpy(), mode="lines+markers")
        return themed(figure.update_layout(xaxis_title="".join(names), yaxis_title=title), title)
    panel = min(range(x.ndim), key=lambda axis: x.shape[axis]) if x.ndim == 3 else None
    if x.ndim > 3 or (panel is not None and x.shape[panel] > _MOST_PANELS):
        fix = "choose a layer and a head: layer=3, head=5"
        raise InputError(f"a picture shows two axes, and these numbers have {tuple(x.shape)}; {fix}")
    if panel is not None:
        named |= {"facet_col": 0, "facet_col_wrap": 4}
        x, names = x.movedim(panel, 0), [names[panel], *names[:panel], *names[panel + 1 :]] if names else names
    labels = dict(zip("yx", names[-2:], strict=False)) | {"color": title} | dict(named.pop("labels", {}))
    words = {"labels": labels, "color_continuous_scale": MAGNITUDE, "aspect": "auto"}
    return themed(px.imshow(x.numpy(), **words | named), title)


def several_of(chosen: Any) -> Any:
    """The chosen places as a list, so that one number keeps its axis."""
    return [chosen] if is_whole(chosen) else chosen


class Number(float):
    """A number that has what people ask of a tensor of one number."""

    def mean(self, axis: None = None, dtype: Any = None, out: Any = None) -> float:
        """The number itself, which is a mean; numpy.mean calls this."""
        return float(self)

    item = mean


class Rate(OfTable, Number):
    """Sink_k^epsilon, a number between 0 and 1: the mean over sequences, layers and heads.

    per_sequence, per_layer, per_head: the rate of each. low, high: its 95% interval over sequences. table: a row for
    each head, with alpha_k and its rate, whose attributes are the rate's too.
    """

    kind = "rate"

    low: float
    high: float

    def __new__(cls, alpha: NamedTensor, position: int = 0, epsilon: float = 0.3) -> "Rate":
        """The rate of the importance `alpha` of a position, by sequence, layer and head."""
        estimate = rate(sink_rate(alpha, epsilon))
        self: Any = super().__new__(cls, estimate.mean)
        self.low, self.high, self._estimate = estimate.low, estimate.high, estimate
        self._alpha, self._k, self._epsilon = alpha, position + 1, epsilon
        above = (alpha > epsilon).float().masked_fill(alpha.isnan(), torch.nan)
        self._above = NamedTensor.of(above, SINK_RATE, **alpha.axes)
        rate_made: Rate = self
        return rate_made

    def __repr__(self) -> str:
        return str(self._estimate)

    def __reduce__(self) -> Any:
        return float, (float(self),)

    @property
    def per_sequence(self) -> NamedTensor:
        """The rate of each sequence: the share of its heads above epsilon."""
        return self._above.over("head").over("layer")

    @property
    def per_layer(self) -> NamedTensor:
        """The share of (sequence, head) above epsilon in each layer."""
        return self.per_head.over("head")

    @property
    def per_head(self) -> NamedTensor:
        """The share of sequences in which each head is above epsilon, `layer head`."""
        return self._above.over("sequence")

    @property
    def table(self) -> Table:
        """A row for each head."""
        rates, alpha = self.per_head, self._alpha
        places = product(enumerate(alpha.axes[LAYER]), enumerate(alpha.axes[HEAD]))
        cells = [(layer, head, alpha[:, i, j], rates[i, j].item()) for (i, layer), (j, head) in places]
        rows = [{LAYER: i, HEAD: j, **mean_cells(alpha.quantity, x, SHARES), SINK_RATE: y} for i, j, x, y in cells]
        note = f"Sink_{self._k} {self} at epsilon {self._epsilon}; {intervals(len(self._alpha))}"
        return Table.of(f"Sink_{self._k} of each head", note, tuple(rows), lambda table: rates.plot())


def rates(alpha: NamedTensor, position: int, epsilon: Any, by: str | None, layers: Any, heads: Any) -> Any:
    """The rate of the importance `alpha` of some layers and heads, by None, "sequence", "layer" or "head".

    Several epsilons give a tensor with that at each.
    """
    alpha = alpha.at(layer=several_of(layers), head=several_of(heads))
    parts = {"sequence": "per_sequence", "text": "per_sequence", "layer": "per_layer", "head": "per_head"}
    part = None if by is None else choice(by, parts, "rate by")
    several: Any = epsilon if isinstance(epsilon, list | tuple | np.ndarray | Tensor) else [epsilon]
    each = [Rate(alpha, position, one) for one in several]
    answers = each if part is None else [getattr(rate, part) for rate in each]
    if several is not epsilon:
        return answers[0]
    axes = {} if part is None else answers[0].axes
    return NamedTensor.of(torch.stack([*map(torch.as_tensor, answers)]), SINK_RATE, **{EPSILON: several, **axes})
