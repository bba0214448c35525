"""The formats of a report: files (.safetensors, .json, .csv), a dictionary for JSON, and a pandas DataFrame.

The parts of a file are handed, as keyword arguments, to the class of report that is to be made.
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

from ..checks import InputError, refusal
from ..files import path_of
from ..outputs import csv_bytes, stamped, write_output
from ..seals import SEALED, SHA256, STAMP, Damaged, check_signed, check_stamp, signed
from .readings import EXTRA, Protocol, Readings, of_report

R = TypeVar("R", bound=Readings)
_METADATA = "sinkinterp"  # the entry of a file's metadata that holds what is not a tensor
_ABOUT = {SEALED, SHA256, "positions", "attention_layers", "protocol"}
_BY_POSITION = ("importance", "raw_importance", "null", "bias_null")
_NOT_A_REPORT = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


@of_report
def write_file(readings: Readings, path: Path | str, force: bool = False) -> None:
    """Writes a file, whole or not at all, in the format of its suffix; a path without suffix is .safetensors.

    Raises InputError for a file that sinkinterp did not write, unless `force`.
    """
    content = writer_of(path)(readings)
    write_output(Path(path), content, force)


def writer_of(path: Path | str) -> Callable[[Readings], bytes]:
    """What makes the file of a report in the format of a path's suffix. Raises InputError for any other suffix."""
    suffix = path_of(path, "where a report is saved").suffix.lower() or ".safetensors"
    if suffix not in _WRITERS:
        page = f"; si.pages.report.write(report, {str(path)!r}) writes its page" if "htm" in suffix else ""
        raise InputError(f"a report is not saved as {suffix}; name a file that ends in {', '.join(_WRITERS)}{page}")
    return _WRITERS[suffix]


def _safetensors(readings: Readings) -> bytes:
    """All tensors; positions, layers, protocol and a hash of the file are in its metadata."""
    metadata = {_METADATA: json.dumps({SEALED: True, SHA256: STAMP} | _about(readings))}
    return stamped(save({name: tensor.contiguous() for name, tensor in readings.tensors().items()}, metadata))


_WRITERS: Mapping[str, Callable[[Readings], bytes]] = {
    ".safetensors": _safetensors,
    ".json": lambda readings: json.dumps(to_dict(readings), allow_nan=False).encode(),
    ".csv": lambda readings: csv_bytes(to_pandas(readings)),
}


def read_file(path: Path | str, report_class: Callable[..., R]) -> R:
    """The report that `write_file` wrote. Raises InputError for any other file, and for a damaged one."""
    if isinstance(path, str | PathLike) and not Path(path).is_file():
        raise InputError(f"{path} is not a file that is there; give one that Report.save wrote")
    try:
        if Path(path).suffix.lower() == ".json":
            return from_dict(json.loads(Path(path).read_text(encoding="utf-8")), report_class)
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_METADATA])
            _check_hash(Path(path), about)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return report_class(**_fields(about, tensors))
    except Damaged:
        raise
    except InputError as error:
        what = "is not a report" if ", not of a report" in str(error) else "is a damaged report"
        raise InputError(f"{path} {what}: {error}") from error
    except Exception as error:
        raise InputError(
            f"{path} is not a saved report; give a .safetensors or .json file that Report.save wrote"
        ) from error


def _check_hash(path: Path, about: Mapping[str, Any]) -> None:
    """Raises Damaged unless a file that says this about itself is as it was written."""
    if about.keys() - _ABOUT:
        raise Damaged(path, f"its metadata holds {', '.join(about)}", "copy it again or make it again")
    check_stamp(path, str(about.get(SHA256)))


@of_report
def to_dict(readings: Readings) -> dict[str, Any]:
    """A JSON-ready copy with its hash, and with the numbers that JSON cannot hold as text.

    `from_dict` gives back every bit.
    """
    tensors = {name: _tensor_dict(tensor) for name, tensor in sorted(readings.tensors().items())}
    return signed(_about(readings) | {"tensors": tensors})


def from_dict(plain: Mapping[str, Any], report_class: Callable[..., R]) -> R:
    """The inverse of `to_dict`. Raises InputError for anything else, and where the hash is not that of the content."""
    with refusal("this is not a report", "give what Report.to_dict made", _NOT_A_REPORT):
        if plain.keys() - _ABOUT - {"tensors"}:
            tables = {"tables", "rows"} & plain.keys()
            is_of = f"the JSON of {'tables' if 'tables' in plain else 'a table'}, not of a report" if tables else ""
            fix = "give what Report.save wrote" if tables else "take it as it was"
            raise InputError(f"it holds {is_of or ', '.join(map(str, plain))}; {fix}")
        tensors = {name: _tensor(**tensor) for name, tensor in plain["tensors"].items()}
        report = report_class(**_fields(plain, tensors))
        check_signed(plain, to_dict(report))  # of the numbers, however JSON wrote them
        return report


@of_report
def to_pandas(readings: Readings) -> Any:
    """One row per sequence, layer, head and position: a pandas DataFrame, without padding."""
    import pandas

    n, _, n_heads, _ = readings.importance.shape
    index = pandas.MultiIndex.from_product(
        (range(n), readings.attention_layers, range(n_heads), readings.positions),
        names=("sequence", "layer", "head", "position"),
    )
    data = {name: getattr(readings, name).flatten().numpy() for name in _BY_POSITION}
    return pandas.DataFrame(data, index=index).dropna().reset_index()


def _about(readings: Readings) -> dict[str, Any]:
    """What is not a tensor."""
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
    if tensor.is_complex():
        raise InputError("JSON holds no complex numbers; save the report as .safetensors")
    values = [value if math.isfinite(value) else str(value) for value in tensor.flatten().tolist()]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": values}


def _tensor(dtype: str, shape: Sequence[int], values: Sequence[float | int | str]) -> Tensor:
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    made = torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(tuple(shape))
    kinds = {bool} if made.dtype == torch.bool else {float, int} if made.is_floating_point() else {int}
    if not set(map(type, numbers)) <= kinds:
        raise InputError(f"it holds other values than {dtype}; take it as it was")
    return made
