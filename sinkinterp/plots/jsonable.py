"""Figures as values that JSON can hold: lists, numbers and text, no packed arrays."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go


def json_ready(figure: go.Figure) -> dict[str, Any]:
    """The figure's data and layout, with arrays as lists; a number that JSON cannot hold (NaN, infinity) is None."""
    converted: dict[str, Any] = _converted(figure.to_dict())
    return converted


def _converted(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() >= {"dtype", "bdata"}:
            return _converted(_unpacked(value))
        return {name: _converted(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _converted(value.tolist())
    if isinstance(value, list | tuple):
        return [_converted(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _unpacked(packed: Mapping[str, Any]) -> np.ndarray:
    """Plotly's packed array: base64 of its bytes, its type, and its shape ("3, 5") where it has more than one axis."""
    flat = np.frombuffer(b64decode(packed["bdata"]), packed["dtype"])
    return flat.reshape([int(n) for n in packed["shape"].split(",")]) if "shape" in packed else flat
