"""Readings: everything that was read of one model on some tokens, as a frozen value, its protocol and its formats.

Formats are files (.safetensors, .json, .csv), a dictionary for JSON, and a pandas DataFrame.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ..checks import InputError, nearest, refusal, whole_number
from ..files import by_suffix, check_is_file, path_of, write_file
from ..metrics.estimates import Estimate, intervals, rate
from ..metrics.importance import VISIBLE, Alpha, PerHead, sink_rate
from ..metrics.instruments import INSTRUMENTS
from ..metrics.metric import AnyMetric
from ..metrics.residuals import norm_ratio


@dataclass(frozen=True)
class Protocol:
    """How a report's numbers were made."""

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
    revision: str
    versions: Mapping[str, str]
    shortest: int | None = None  # where sequences differ in length; `length` is then the longest
    encoder: str = ""  # what the encoder of an encoder-decoder model was given
    hides_first_key: bool = False  # whether a window hides the first key from some query
    attention: str = ""  # the implementation that the model ran: sdpa or eager; empty in reports of before
    attention_note: str = ""  # what to know about it
    ended: str = ""  # why fewer sequences were measured than there are; empty where all were

    @property
    def divisor_note(self) -> str:
        """What to know about the divisor of importance; empty where all conventions divide alike."""
        if not self.hides_first_key:
            return ""
        is_default = self.divisor == VISIBLE.description
        other = "the paper divides by T - k + 1" if is_default else f"the default is {VISIBLE.description}"
        return f"a window hides keys from later queries: importance is divided by {self.divisor}; {other}"

    @property
    def lengths(self) -> str:
        """T, or the shortest and the longest where sequences differ."""
        return str(self.length) if self.shortest is None else f"{self.shortest} to {self.length}"

    def line(self, *varying: str) -> str:
        """The part of the protocol that belongs beside every number, without the fields that vary from row to row."""
        skipped = self.texts_too_short
        parts = {
            "sequences": f"n={self.sequences}" + (f" ({self.ended})" if self.ended else ""),
            "length": f"T={self.lengths}",
            "bos": f"BOS {self.bos}",
            "encoder": self.encoder and f"encoder {self.encoder}",
            "dtype": self.dtype,
            "attention": self.attention_note,
            "source": self.source,
            "texts_too_short": skipped and f"{skipped} {'text' if skipped == 1 else 'texts'} too short",
            "revision": self.revision and f"weights: {self.revision}",
            "edits": self.edits and f"edits {'; '.join(self.edits)}",
        }
        return ", ".join(str(part) for name, part in parts.items() if part and name not in varying)


def public_name(model: str) -> str:
    """The name of a model as pages show it: of a folder on this machine, the last part of its path."""
    is_path = model.startswith(("/", "./", "../", "~")) or "\\" in model or model.count("/") > 1
    return short_name(model) if is_path else model


def short_name(model: str) -> str:
    """The last part of a model's name, for titles."""
    return next((part for part in reversed(re.split(r"[/\\]", model)) if part), model)


EXTRA = "extra."  # before the names of instruments' answers, among all tensors
TokenText = Callable[[int], str]  # from a token id to its text


@dataclass(frozen=True, eq=False, repr=False)
class Readings:
    """The measurements of one model's attention calls and residuals on some tokens, and their protocol.

    Numbers are those of attention layers and query heads only.

    importance: alpha_k at the measured positions, of proxy scores where rows do not sum to one; 0..1.
    raw_importance: the same of the weights that multiply the values.
    null: importance under uniform attention over visible columns.
    bias_null: importance by position bias, mask and learned sink logits alone; `null` without them.
    slot_importance, slot_null: alpha_* and its null; None where no layer has a slot.
    off_sequence: 1 - row sum over tokens, mean over queries.
    residual_norms: inputs of all blocks, then the last block's output before the final norm.
    tokens: what the model read; -1 past the end of a sequence shorter than the longest, where numbers are NaN.
    positions: those that importance and nulls were measured at, their last axis.
    attention_layers: the layers' indices among all blocks.
    extras: answers of the instruments, by the names of their metrics; `extra` reads them.
    """

    importance: Alpha
    raw_importance: Alpha
    null: Alpha
    bias_null: Alpha
    slot_importance: PerHead | None
    slot_null: PerHead | None
    off_sequence: PerHead
    residual_norms: Float[Tensor, "batch block pos_all"]
    key_norms: Float[Tensor, "batch layer kv_head key"]
    value_norms: Float[Tensor, "batch layer kv_head key"]
    tokens: Int[Tensor, "batch pos_all"]
    positions: tuple[int, ...]
    attention_layers: tuple[int, ...]
    protocol: Protocol
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def extra(self, metric: AnyMetric | str) -> Tensor:
        """The answer to an instrument's metric, or to that of a name. Raises InputError where it was not measured."""
        name = metric.name if isinstance(metric, AnyMetric) else metric
        if name not in self.extras:
            holding = [key for key, metrics in INSTRUMENTS.items() if name in {each.name for each in metrics}]
            given = f"si.measurement.instruments.{holding[0]}" if holding else "[(metric,)]"
            raise InputError(
                f"{name!r:.40} was not measured{nearest(name, self.extras)}; measure with instruments={given}"
            )
        return self.extras[name]

    def has(self, metric: AnyMetric) -> bool:
        """Whether a metric of an instrument was measured."""
        return metric.name in self.extras

    def column_of(self, position: int) -> int:
        """The index of a position among the measured ones. Raises InputError where it was not."""
        if whole_number(position, "a position") not in self.positions:
            here = f"{_listed(self.positions)} of a sequence of {self.protocol.length}"
            raise InputError(f"position {position} was not measured; positions count from 0 and here are {here}")
        return self.positions.index(position)

    def alpha(self, position: int = 0) -> PerHead:
        """Importance of one position. Raises InputError where it was not measured."""
        return self.importance[..., self.column_of(position)]

    def raw_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, of the weights that multiply the values."""
        return self.raw_importance[..., self.column_of(position)]

    def null_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, under uniform attention over visible columns."""
        return self.null[..., self.column_of(position)]

    def bias_alpha(self, position: int = 0) -> PerHead:
        """As `alpha`, by position bias, mask and learned sink logits alone."""
        return self.bias_null[..., self.column_of(position)]

    def __eq__(self, other: object) -> bool:
        """Whether two reports hold the same numbers, bit for bit, and the same protocol."""
        return isinstance(other, Readings) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return int(_digest(json.loads(json.dumps(_about(self))), self.tensors()), 16)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was read, by field; instruments' answers as "extra.NAME"."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return own | {EXTRA + name: value for name, value in self.extras.items()}

    def sink_rate(self, position: int = 0, epsilon: float = 0.3) -> Estimate:
        """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) above epsilon, strictly; 0..1.

        Its 95% interval is over sequences.
        """
        return rate(sink_rate(self.alpha(position), epsilon))

    def null_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate under uniform attention."""
        return sink_rate(self.null_alpha(position), epsilon).nanmean().item()

    def bias_sink_rate(self, position: int = 0, epsilon: float = 0.3) -> float:
        """The sink rate by position bias, mask and learned sink logits alone."""
        return sink_rate(self.bias_alpha(position), epsilon).nanmean().item()

    def slot_rate(self, epsilon: float = 0.3) -> Estimate | None:
        """Sink_*^epsilon, the slot's sink rate; None where no layer has a slot."""
        return None if self.slot_importance is None else rate(sink_rate(self.slot_importance, epsilon))

    def residual_ratio(self) -> Float[Tensor, "batch block"]:
        """||h_1|| over the mean norm of the other tokens, per block."""
        return norm_ratio(self.residual_norms)

    def key_ratio(self) -> Float[Tensor, "batch layer kv_head"]:
        """||k_1|| over the mean of the others."""
        return norm_ratio(self.key_norms)

    def value_ratio(self) -> Float[Tensor, "batch layer kv_head"]:
        """||v_1|| over the mean of the others."""
        return norm_ratio(self.value_norms)

    def save(self, path: Path | str) -> None:
        """Writes the report to a file, whole or not at all, over one of that name; the suffix says in which format.

        .safetensors (also without suffix) and .json hold every number and the protocol, and `load` reads them. .csv
        holds what `to_pandas` gives. Raises InputError for another suffix.
        """
        write_file(path, writer_of(path)(self))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The report that `save` wrote to a .safetensors or .json file.

        Raises InputError for any other file, and for a damaged one.
        """
        path = path_of(path, "a saved report")
        check_is_file(path)
        fix = "give a .safetensors or .json file that Report.save wrote"
        with refusal(f"{path} is not a saved report", fix, (Exception, InputError)):
            if path.suffix.lower() == ".json":
                return cls(**_fields(*_from_json(json.loads(path.read_text(encoding="utf-8")))))
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})[_METADATA])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(**_fields(about, tensors))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, with the numbers that JSON cannot hold as text, and their digest.

        `from_dict` gives back every bit.
        """
        about, tensors = _about(self), dict(sorted(self.tensors().items()))
        plain = {name: _tensor_dict(tensor) for name, tensor in tensors.items()}
        return about | {"tensors": plain, DIGEST: _digest(about, tensors)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises InputError for anything else, and for numbers that are not the digest's."""
        with refusal("this is not a report", "give what Report.to_dict made", (Exception, InputError)):
            return cls(**_fields(*_from_json(plain)))

    def to_pandas(self) -> Any:
        """One row per sequence, layer, head and position: a pandas DataFrame, without padding.

        `sink_rate` is 1 where a head gives the first token more than 0.3, else 0, and missing at other positions: its
        mean over some rows is their Sink_1.
        """
        import pandas

        n, _, n_heads, _ = self.importance.shape
        levels = (range(n), self.attention_layers, range(n_heads), self.positions)
        index = pandas.MultiIndex.from_product(levels, names=("sequence", "layer", "head", "position"))
        data = {name: getattr(self, name).flatten().numpy() for name in _BY_POSITION}
        frame = pandas.DataFrame(data, index=index).dropna().reset_index()
        return frame.assign(sink_rate=(frame["importance"] > 0.3).astype(float).where(frame["position"] == 0))


def protocol_note(report: Readings, epsilon: float) -> str:
    """The protocol in a line: model, n, T, BOS, dtype, source, edits, epsilon; the divisor where windows matter."""
    divisor = f"; {report.protocol.divisor_note}" if report.protocol.divisor_note else ""
    name = public_name(report.protocol.model)
    return f"{name}: {report.protocol.line()}, epsilon={epsilon}; {intervals(report.protocol.sequences)}{divisor}"


def _listed(positions: Sequence[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if len(positions) > 3 else ", ".join(map(str, positions))


_METADATA = "sinkinterp"  # the entry of a file's metadata that holds what is not a tensor
DIGEST = "digest"  # of all that a file or dictionary holds: `load` and `from_dict` notice what was changed
_CONTENT = ("positions", "attention_layers", "protocol")
_BY_POSITION = ("importance", "raw_importance", "null", "bias_null")


def writer_of(path: Path | str) -> Callable[[Readings], bytes]:
    """What makes the file of a report in the format of a path's suffix. Raises InputError for any other suffix."""
    suffix = path_of(path, "where a report is saved").suffix.lower() or ".safetensors"
    page = f"; sinkinterp.pages.report.write(report, {str(path)!r}) writes its page" if "htm" in suffix else ""
    return by_suffix(suffix, _WRITERS, "a report", fix=page)


def _safetensors(readings: Readings) -> bytes:
    """All tensors; positions, layers, protocol and their hash are in its metadata."""
    about = json.loads(json.dumps(_about(readings)))
    tensors = {name: tensor.contiguous() for name, tensor in readings.tensors().items()}
    return save(tensors, {_METADATA: json.dumps(about | {DIGEST: _digest(about, tensors)})})


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The hash of a report. The order of its tensors does not matter."""
    plain = {name: about[name] for name in _CONTENT}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_WRITERS: Mapping[str, Callable[[Readings], bytes]] = {
    ".safetensors": _safetensors,
    ".json": lambda readings: json.dumps(readings.to_dict(), allow_nan=False).encode(),
    ".csv": lambda readings: readings.to_pandas().to_csv(index=False).encode(),
}


def _about(readings: Readings) -> dict[str, Any]:
    """What is not a tensor."""
    return {name: getattr(readings, name) for name in _CONTENT} | {"protocol": asdict(readings.protocol)}


def _fields(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a report that was written. Raises InputError for other numbers than its digest's."""
    if about.keys() - {DIGEST, *_CONTENT}:
        raise InputError(f"it holds {', '.join(map(str, about))}, as a table or a damaged file does")
    if about.get(DIGEST) not in (None, _digest(about, tensors)):
        raise InputError("it is damaged: its numbers are not those that were written")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(EXTRA)}
    return {
        "slot_importance": None,
        "slot_null": None,
        **own,
        "positions": tuple(about["positions"]),
        "attention_layers": tuple(about["attention_layers"]),
        "protocol": Protocol(**about["protocol"] | {"edits": tuple(about["protocol"]["edits"])}),
        "extras": {name.removeprefix(EXTRA): value for name, value in tensors.items() if name.startswith(EXTRA)},
    }


def _from_json(plain: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is not a tensor, and the tensors, of what `to_dict` made."""
    tensors = {name: _tensor(**tensor) for name, tensor in plain.get("tensors", {}).items()}
    return {name: value for name, value in plain.items() if name != "tensors"}, tensors


def _tensor_dict(tensor: Tensor) -> dict[str, Any]:
    if tensor.is_complex():
        raise InputError("JSON holds no complex numbers; save the report as .safetensors")
    values = [value if math.isfinite(value) else str(value) for value in tensor.flatten().tolist()]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": values}


def _tensor(dtype: str, shape: Sequence[int], values: Sequence[float | int | str]) -> Tensor:
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_floating_point and any(number != int(number) for number in numbers):
        raise InputError(f"a number of type {dtype} is whole")
    return torch.tensor(numbers, dtype=kind).reshape(tuple(shape))
