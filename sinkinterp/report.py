"""Report: what was read of one model on some tokens, and how. A value that can be saved, loaded and compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import InputError
from .metrics import sink
from .metrics.intervals import Estimate, estimate
from .metrics.norms import norm_ratio

Alpha = Float[Tensor, "sequence layer head pos"]
SlotAlpha = Float[Tensor, "sequence layer head"]


@dataclass(frozen=True)
class Protocol:
    """How a report's numbers came about."""

    model: str
    sequences: int
    length: int
    dtype: str
    bos: str
    source: str
    source_sha256: str
    texts_too_short: int
    edits: tuple[str, ...]
    divisor: str
    versions: Mapping[str, str]

    def line(self) -> str:
        """The part of the protocol that belongs beside every number."""
        edited = f", edits {'; '.join(self.edits)}" if self.edits else ""
        return f"n={self.sequences}, T={self.length}, BOS {self.bos}, {self.dtype}, {self.source}{edited}"


@dataclass(frozen=True)
class Report:
    """What one model's attention calls and residuals were on some tokens; attention layers and query heads only.

    importance: alpha_k at `positions`, of proxy scores where rows do not sum to one; 0..1.
    raw_importance: the same of the weights that multiply the values.
    null: importance under uniform attention over visible columns.
    slot_importance, slot_null: alpha_* and its null; None where no layer has a slot.
    residual_norms: inputs of all blocks, then the last block's output before the final norm.
    """

    positions: tuple[int, ...]
    attention_layers: tuple[int, ...]
    importance: Alpha
    raw_importance: Alpha
    null: Alpha
    slot_importance: SlotAlpha | None
    slot_null: SlotAlpha | None
    residual_norms: Float[Tensor, "sequence block pos_all"]
    key_norms: Float[Tensor, "sequence layer kv_head pos_all"]
    value_norms: Float[Tensor, "sequence layer kv_head pos_all"]
    protocol: Protocol

    def alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """Importance of one position. Raises InputError where it was not measured."""
        return self.importance[..., self._column(position)]

    def raw_alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """As `alpha`, of the weights that multiply the values."""
        return self.raw_importance[..., self._column(position)]

    def null_alpha(self, position: int = 0) -> Float[Tensor, "sequence layer head"]:
        """As `alpha`, under uniform attention over visible columns."""
        return self.null[..., self._column(position)]

    def sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) above epsilon, strictly; 0..1."""
        return self.sink(position, epsilon).mean

    def sink(self, position: int = 0, epsilon: float = 0.3) -> Estimate:
        """`sink_rate` with its 95% bootstrap interval over sequences."""
        return estimate(sink.sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate that uniform attention would have."""
        return sink.sink_rate(self.null_alpha(position), epsilon).mean().item()

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

    def save(self, path: Path | str) -> None:
        """Writes the report to a .safetensors file, whole or not at all; the protocol is in its metadata."""
        path = Path(path)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value.contiguous() for name, value in values.items() if isinstance(value, torch.Tensor)}
        words = {name: values[name] for name in ("positions", "attention_layers")} | {"protocol": asdict(self.protocol)}
        draft = path.with_name(f".{path.name}.draft")
        save_file(tensors, draft, {"sinkinterp": json.dumps(words)})
        draft.replace(path)

    @staticmethod
    def load(path: Path | str) -> "Report":
        """The report that `save` wrote. Raises InputError for any other file."""
        try:
            with safe_open(path, framework="pt") as file:
                words = json.loads((file.metadata() or {})["sinkinterp"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise InputError(f"{path} is no saved report; give a file that Report.save wrote") from error
        protocol = words["protocol"] | {"edits": tuple(words["protocol"]["edits"])}
        places = {name: tuple(words[name]) for name in ("positions", "attention_layers")}
        return Report(**{"slot_importance": None, "slot_null": None} | places | tensors, protocol=Protocol(**protocol))


def _span(positions: Sequence[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 3 else ", ".join(map(str, positions))
