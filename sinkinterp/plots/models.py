"""One colour and marker per model, on every figure and every page."""

import zlib
from collections.abc import Sequence

from ..table import Cell
from .theme import COLOURS

FIXED = {
    name: i for i, name in enumerate(("softmax", "sigmoid", "k_bias", "sigmoid_length", "softmax-48k"))
}  # colours of the models that ship; their names begin with the task, as in demo-softmax
TASKS = ("demo-", "text-")


def model_numbers(models: Sequence[Cell]) -> dict[Cell, int]:
    """The number of each model's colour. A model has the same number in every figure, whatever stands beside it.

    Models that ship have fixed numbers, others a number that follows from the name. Where two models of a figure would
    have the same number, the later one takes the next that is free.
    """
    numbers: dict[Cell, int] = {}
    in_order = sorted(dict.fromkeys(models), key=lambda model: _bare(model) not in FIXED)
    for model in in_order:
        wanted, taken = _wanted(model), {number % len(COLOURS) for number in numbers.values()}
        free = [i for i in range(len(COLOURS)) if (wanted + i) % len(COLOURS) not in taken]
        numbers[model] = (wanted + (free[0] if free else 0)) % len(COLOURS)
    return numbers


def _wanted(model: Cell) -> int:
    name = _bare(model)
    return FIXED[name] if name in FIXED else zlib.crc32(name.encode()) % len(COLOURS)


def _bare(model: Cell) -> str:
    """The name of a model without owner, folder and task."""
    name = str(model).rstrip("/").split("/")[-1]
    return next((name.removeprefix(task) for task in TASKS if name.startswith(task)), name)
