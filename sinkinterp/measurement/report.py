"""Report: what was read of one model on some tokens, and how. A value that can be saved, loaded and compared."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import InputError
from ..files import replacing
from ..metrics import sink
from ..metrics.bootstrap import Estimate, estimate
from ..metrics.norms import Steps, norm_ratio, steps
from .provenance import Protocol

Alpha = Float[Tensor, "sequence layer head pos"]
SlotAlpha = Float[Tensor, "sequence layer head"]
_EXTRA = "extra."


@dataclass(frozen=True)
class Report:
    """What one model's attention calls and residuals were on some tokens; attention layers and query heads only.

    tokens: what the model read; -1 past the end of a sequence shorter than the longest, where numbers are NaN.
    importance: alpha_k at `positions`, of proxy scores where rows do not sum to one; 0..1.
    raw_importance: the same of the weights that multiply the values.
    null: importance under uniform attention over visible columns.
    bias_null: importance by position bias, mask and learned sink logits alone; `null` where there are none.
    slot_importance, slot_null: alpha_* and its null; None where no layer has a slot.
    off_sequence: 1 - row sum over tokens, mean over queries.
    residual_norms: inputs of all blocks, then the last block's output before the final norm.
    extras: answers of the instruments that were taken along, by name.
    """

    tokens: Int[Tensor, "sequence pos_all"]
    positions: tuple[int, ...]
    attention_layers: tuple[int, ...]
    importance: Alpha
    raw_importance: Alpha
    null: Alpha
    bias_null: Alpha
    slot_importance: SlotAlpha | None
    slot_null: SlotAlpha | None
    off_sequence: SlotAlpha
    residual_norms: Float[Tensor, "sequence block pos_all"]
    key_norms: Float[Tensor, "sequence layer kv_head pos_all"]
    value_norms: Float[Tensor, "sequence layer kv_head pos_all"]
    protocol: Protocol
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def extra(self, name: str) -> Tensor:
        """An instrument's answer. Raises InputError where that was not taken along."""
        if name not in self.extras:
            raise InputError(f"{name} was not measured; pass instruments=sinkinterp.measurement.instruments.ALL")
        return self.extras[name]

    def has(self, name: str) -> bool:
        """Whether an instrument answered under this name."""
        return name in self.extras

    def alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """Importance of one position. Raises InputError where it was not measured."""
        return self.importance[..., self._column(position)]

    def raw_alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """As `alpha`, of the weights that multiply the values."""
        return self.raw_importance[..., self._column(position)]

    def null_alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """As `alpha`, under uniform attention over visible columns."""
        return self.null[..., self._column(position)]

    def bias_alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """As `alpha`, by position bias, mask and learned sink logits alone."""
        return self.bias_null[..., self._column(position)]

    def sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) above epsilon, strictly; 0..1."""
        return self.sink(position, epsilon).mean

    def sink(self, position: int = 0, epsilon: float = 0.3) -> Estimate:
        """`sink_rate` with its 95% bootstrap interval over sequences."""
        return estimate(sink.sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate that uniform attention would have."""
        return sink.sink_rate(self.null_alpha(position), epsilon).nanmean().item()

    def bias_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate that position bias, mask and learned sink logits alone would make."""
        return sink.sink_rate(self.bias_alpha(position), epsilon).nanmean().item()

    def slot_rate(self, epsilon: float = 0.3) -> Estimate | None:
        """Sink_*^epsilon, the slot's sink rate; None where no layer has a slot."""
        return None if self.slot_importance is None else estimate(sink.sink_rate(self.slot_importance, epsilon))

    def residual_ratio(self) -> Float[Tensor, "sequence block"]:
        """||h_1|| over the mean norm of the other tokens, per block."""
        return norm_ratio(self.residual_norms)

    def key_ratio(self) -> Float[Tensor, "sequence layer kv_head"]:
        """||k_1|| over the mean of the others."""
        return norm_ratio(self.key_norms)

    def value_ratio(self) -> Float[Tensor, "sequence layer kv_head"]:
        """||v_1|| over the mean of the others."""
        return norm_ratio(self.value_norms)

    def _column(self, position: int) -> int:
        if position not in self.positions:
            raise InputError(
                f"position {position} was not measured; positions count from 0 and here are "
                f"{_span(self.positions)} of a sequence of {self.protocol.length}"
            )
        return self.positions.index(position)

    def steps(self, least: float = 2.0) -> Steps | None:
        """Between which blocks the first token's residual stands out, of the ratio's mean over sequences."""
        return steps(self.residual_ratio().mean(0), least)

    def _repr_html_(self) -> str:
        """What a notebook shows: whose report it is, and Sink_1 beside its null where it was measured."""
        words = f"{self.protocol.model}: {self.protocol.line()}"
        if 0 not in self.positions:
            return f"<b>Report</b> {escape(words)}"
        sink = f"Sink_1 at epsilon 0.3: {self.sink()} (uniform attention: {self.null_sink_rate():.3g})"
        return f"<b>Report</b> {escape(words)}<br>{sink}"

    def to_pandas(self) -> Any:
        """One row per sequence, layer, head and position: a pandas DataFrame, without padding."""
        import pandas

        n, _, n_heads, _ = self.importance.shape
        names = ("sequence", "layer", "head", "position")
        index = pandas.MultiIndex.from_product(
            (range(n), self.attention_layers, range(n_heads), self.positions), names=names
        )
        columns = ("importance", "raw_importance", "null", "bias_null")
        data = {name: getattr(self, name).flatten().numpy() for name in columns}
        return pandas.DataFrame(data, index=index).dropna().reset_index()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, numbers that JSON lacks as words; `from_dict` gives back every bit."""
        return {
            **{name: getattr(self, name) for name in ("positions", "attention_layers")},
            "protocol": asdict(self.protocol),
            "tensors": {
                name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "values": _listed(t)}
                for name, t in self.tensors().items()
            },
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Report":
        """The inverse of `to_dict`. Raises InputError for anything else."""
        try:
            return Report._of(plain, {name: _unlisted(**tensor) for name, tensor in plain["tensors"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("this is no report; give what Report.to_dict made") from error

    def save(self, path: Path | str) -> None:
        """Writes the report to a .safetensors file, whole or not at all; the protocol is in its metadata."""
        words = {name: getattr(self, name) for name in ("positions", "attention_layers")}
        metadata = {"sinkinterp": json.dumps(words | {"protocol": asdict(self.protocol)})}
        with replacing(path) as draft:
            save_file({name: tensor.contiguous() for name, tensor in self.tensors().items()}, draft, metadata)

    @staticmethod
    def load(path: Path | str) -> "Report":
        """The report that `save` wrote. Raises InputError for any other file."""
        try:
            with safe_open(path, framework="pt") as file:
                words = json.loads((file.metadata() or {})["sinkinterp"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return Report._of(words, tensors)
        except Exception as error:
            raise InputError(f"{path} is no saved report; give a file that Report.save wrote") from error

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was read, by field; instruments' answers as "extra.NAME"."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in own.items() if isinstance(value, torch.Tensor)} | {
            _EXTRA + name: value for name, value in self.extras.items()
        }

    @staticmethod
    def _of(words: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Report":
        own: dict[str, Any] = {name: value for name, value in tensors.items() if not name.startswith(_EXTRA)}
        return Report(
            **{"slot_importance": None, "slot_null": None} | own,
            positions=tuple(words["positions"]),
            attention_layers=tuple(words["attention_layers"]),
            protocol=Protocol.from_dict(words["protocol"]),
            extras={name.removeprefix(_EXTRA): value for name, value in tensors.items() if name.startswith(_EXTRA)},
        )


def _listed(tensor: Tensor) -> list[float | int | str]:
    return [value if math.isfinite(value) else str(value) for value in tensor.flatten().tolist()]


def _unlisted(dtype: str, shape: Sequence[int], values: Sequence[float | int | str]) -> Tensor:
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(tuple(shape))


def _span(positions: Sequence[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 3 else ", ".join(map(str, positions))
