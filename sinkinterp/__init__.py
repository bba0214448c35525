"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

report = si.measure("gpt2", "Language models pour attention onto their first token.")
report.summary()
moved = si.measure("gpt2", text, edits=si.SwapPositions(0, 4))
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"
_IMPORTS = [
    (line.module, name.name)
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
]
_HOMES = {name: module for module, name in _IMPORTS if module}  # each is imported at its first use: torch takes seconds
_PACKAGES = [name for module, name in _IMPORTS if not module]  # which documents name
__all__ = sorted(_HOMES)


def save(what: Any, path: Path | str, *, width: float = 5.5, height: float | None = None) -> Path:
    """Writes a figure, a table, a report or a page, and returns the path; see `sinkinterp.pages.report.save`."""
    written: Path = import_module(".pages.report", __name__).save(what, path, width=width, height=height)
    return written


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        from .files import data_of

        hint = data_of("coming_from.toml")["names"].get(name, "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and f'; {hint}'}", name=name)
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
