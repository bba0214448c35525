"""The formats of a report: a .safetensors file, a dictionary for JSON, and a pandas DataFrame.

What is read back is handed, as keyword arguments, to the class of report that is to be made.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import InputError
from ..files import replacing
from ..seals import STAMP, Damaged, check_stamp, stamp
from .provenance import Protocol
from .readings import EXTRA, Readings
from .shape_check import checked

R = TypeVar("R", bound=Readings)
_METADATA = "sinkinterp"  # the entry of a file's metadata that holds what is no tensor
_SHA256 = "sha256"  # in that entry: the hash of the file; files of earlier versions have none
_ABOUT = {_SHA256, "positions", "attention_layers", "protocol"}


def write_file(readings: Readings, path: Path | str) -> None:
    """Writes a .safetensors file, whole or not at all; positions, layers, protocol and a hash are in its metadata."""
    if not isinstance(path, str | PathLike):
        raise InputError(f"a report is saved to a file; give its path, such as report.safetensors; got {path!r:.40}")
    metadata = {_METADATA: json.dumps({_SHA256: STAMP} | _about(readings))}
    with replacing(path) as draft:
        # save_file would write a draft of its own beside ours, which a kill leaves there
        draft.write_bytes(save({name: tensor.contiguous() for name, tensor in readings.tensors().items()}, metadata))
        stamp(draft)


def read_file(path: Path | str, report_class: Callable[..., R]) -> R:
    """The report that `write_file` wrote. Raises InputError for any other file, and for a damaged one."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_METADATA])
            _check_hash(Path(path), about)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return checked(report_class(**_fields(about, tensors)))
    except Damaged:
        raise
    except InputError as error:
        raise InputError(f"{path} is a damaged report: {error}") from error
    except Exception as error:
        raise InputError(f"{path} is no saved report; give a file that Report.save wrote") from error


def _check_hash(path: Path, about: Mapping[str, Any]) -> None:
    """Raises Damaged unless a file that says this about itself is as it was written."""
    if about.keys() - _ABOUT:
        raise Damaged(path, f"its metadata holds {', '.join(about)}", "copy it again or make it again")
    if _SHA256 in about:
        check_stamp(path, str(about[_SHA256]))


def to_dict(readings: Readings) -> dict[str, Any]:
    """A JSON-ready copy, with the numbers that JSON cannot hold as text; `from_dict` gives back every bit."""
    return _about(readings) | {"tensors": {name: _tensor_dict(tensor) for name, tensor in readings.tensors().items()}}


def from_dict(plain: Mapping[str, Any], report_class: Callable[..., R]) -> R:
    """The inverse of `to_dict`. Raises InputError for anything else."""
    try:
        tensors = {name: _tensor(**tensor) for name, tensor in plain["tensors"].items()}
        return checked(report_class(**_fields(plain, tensors)))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise InputError("this is no report; give what Report.to_dict made") from error


def to_pandas(readings: Readings) -> Any:
    """One row per sequence, layer, head and position: a pandas DataFrame, without padding."""
    import pandas

    n, _, n_heads, _ = readings.importance.shape
    index = pandas.MultiIndex.from_product(
        (range(n), readings.attention_layers, range(n_heads), readings.positions),
        names=("sequence", "layer", "head", "position"),
    )
    columns = {
        "importance": readings.importance,
        "raw_importance": readings.raw_importance,
        "null": readings.null,
        "bias_null": readings.bias_null,
    }
    data = {name: values.flatten().numpy() for name, values in columns.items()}
    return pandas.DataFrame(data, index=index).dropna().reset_index()


def _about(readings: Readings) -> dict[str, Any]:
    """What is no tensor."""
    return {
        "positions": readings.positions,
        "attention_layers": readings.attention_layers,
        "protocol": asdict(readings.protocol),
    }


def _fields(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(EXTRA)}
    return {
        "slot_importance": None,
        "slot_null": None,
        **own,
        "positions": tuple(about["positions"]),
        "attention_layers": tuple(about["attention_layers"]),
        "protocol": Protocol.from_dict(about["protocol"]),
        "extras": {name.removeprefix(EXTRA): value for name, value in tensors.items() if name.startswith(EXTRA)},
    }


def _tensor_dict(tensor: Tensor) -> dict[str, Any]:
    values = [value if math.isfinite(value) else str(value) for value in tensor.flatten().tolist()]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": values}


def _tensor(dtype: str, shape: Sequence[int], values: Sequence[float | int | str]) -> Tensor:
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(tuple(shape))
