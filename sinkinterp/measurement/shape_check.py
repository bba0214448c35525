"""Whether what was read back as a report has the shapes of one."""

from collections.abc import Iterator
from typing import TypeVar

from ..checks import whole_number
from ..errors import InputError
from .readings import Readings

R = TypeVar("R", bound=Readings)
Shape = tuple[int, ...]


def checked(readings: R) -> R:
    """The readings themselves. Raises InputError where a tensor does not fit the others, or the protocol."""
    for name, shape in _expected(readings):
        value = readings.tensors()[name]
        if tuple(value.shape) != shape:
            raise InputError(f"its {name} is {tuple(value.shape)}, not {shape}; take the file or dictionary as it was")
    _check_numbers(readings)
    return readings


def _expected(readings: Readings) -> Iterator[tuple[str, Shape]]:
    """The shape that each tensor has to have, given the tokens, layers, heads and positions."""
    sizes = {name: len(value.shape) for name, value in readings.tensors().items()}
    axes = {"tokens": 2, "importance": 4, "residual_norms": 3, "key_norms": 4, "value_norms": 4}
    wrong = [name for name, n_axes in axes.items() if sizes[name] != n_axes]
    if wrong:
        raise InputError(f"its {wrong[0]} has {sizes[wrong[0]]} axes, not {axes[wrong[0]]}; take it as it was")
    n, length = readings.tokens.shape
    n_layers, n_heads = len(readings.attention_layers), readings.importance.shape[2]
    for name in ("importance", "raw_importance", "null", "bias_null"):
        yield name, (n, n_layers, n_heads, len(readings.positions))
    for name in {"slot_importance", "slot_null", "off_sequence"} & sizes.keys():
        yield name, (n, n_layers, n_heads)
    yield "residual_norms", (n, readings.residual_norms.shape[1], length)
    yield "key_norms", (n, n_layers, *readings.key_norms.shape[2:])
    yield "value_norms", tuple(readings.key_norms.shape)
    for name, value in readings.extras.items():
        yield f"extra.{name}", (n, *value.shape[1:])


def _check_numbers(readings: Readings) -> None:
    n, length = readings.tokens.shape
    if readings.tokens.is_floating_point() or readings.importance.shape[2] % max(1, readings.key_norms.shape[2]):
        raise InputError("its tokens are no whole numbers, or its kv heads do not divide its heads; take it as it was")
    if (readings.protocol.sequences, readings.protocol.length) != (n, length):
        said = f"n={readings.protocol.sequences}, T={readings.protocol.length}"
        raise InputError(f"its protocol says {said} of {n} x {length} tokens; take it as it was")
    for position in readings.positions:
        whole_number(position, "a position of a report", 0, readings.key_norms.shape[3] - 1)
    for layer in readings.attention_layers:
        whole_number(layer, "an attention layer of a report", 0, readings.residual_norms.shape[1] - 2)
