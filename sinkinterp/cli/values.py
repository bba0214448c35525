"""Values of options: each parser takes what the user typed, and returns a value in the option's domain or refuses it.

A refusal becomes one line that names the option, exit code 2, before anything is loaded or written.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

import typer

MOST = 2**31 - 1  # of anything that is counted
LARGEST_SEED = 2**63 - 1  # random generators take 64 bits


def whole(least: int, most: int = MOST) -> Callable[[str | int], int]:
    """Returns a parser of whole numbers from `least` to `most`."""

    def parse(text: str | int) -> int:
        try:
            number = int(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is no whole number, such as {max(least, 1)}") from None
        if not least <= number <= most:
            raise typer.BadParameter(f"{_short(number)} is not in the range from {least} to {most}")
        return number

    return parse


def number(above: float, most: float) -> Callable[[str | float], float]:
    """Returns a parser of finite numbers greater than `above` and at most `most`."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is no number, such as {most}") from None
        if not (math.isfinite(value) and above < value <= most):
            raise typer.BadParameter(f"{value} is not a number above {above:g} and at most {most:g}")
        return value

    return parse


def share(text: str | float) -> float:
    """The threshold epsilon: a number between 0 and 1, both left out."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise typer.BadParameter(f"epsilon is a share of attention, between 0 and 1; got {_short(text)}")
    return value


def output_file(text: str | Path) -> Path:
    """The path of a file that can be written: its folder, or the nearest one that exists, is a folder open to us."""
    path = _output(text)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; give the name of a file in it")
    if path.is_file() and not os.access(path, os.W_OK):
        raise typer.BadParameter(f"{path} is read-only; choose another file")
    return path


def output_folder(text: str | Path) -> Path:
    """The path of a folder that exists or can be made."""
    path = _output(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file; give the name of a folder")
    return path


def input_file(text: str | Path) -> Path:
    """The path of a file that exists."""
    path = Path(text)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if is_folder:
        raise typer.BadParameter(f"cannot read {path}: it is a folder; give a file")
    if not is_file and not path.exists():
        raise typer.BadParameter(f"cannot read {path}: there is no such file; check the path")
    return path


def filled(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give a value, or leave the option out")
    return text


def _output(text: str | Path) -> Path:
    path = Path(text)
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give the name of a file or folder")
    try:
        nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if nearest != path.absolute() and not nearest.is_dir():
        raise typer.BadParameter(f"{path} cannot be made: {nearest} is a file; choose another place")
    if nearest.is_dir() and not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: {nearest} is read-only; choose another place")
    return path


def _unusable(path: Path, error: Exception) -> typer.BadParameter:
    reason = getattr(error, "strerror", None) or str(error)
    return typer.BadParameter(f"{_short(path)} cannot be used: {reason}; choose another name")


def _short(value: object) -> str:
    """A value for a message, short enough to read."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:50]}...{text[-20:]}"
