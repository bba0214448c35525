"""Mechanistic interpretability of attention sinks: read them, move them, train them away.

import sinkinterp as si

report = si.measure("gpt2", "Language models pour attention onto their first token.")
report.summary()
moved = si.measure("gpt2", text, edits=si.SwapPositions(0, 4))
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import lazy_loader

__version__ = "0.1.0"
_loaded, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)  # a name waits for its use: torch takes seconds
__all__ = [name for name in _names if name not in ("interventions", "measurement")]  # packages that documents name


def save(what: Any, path: Path | str, *, width: float = 5.5, height: float | None = None) -> Path:
    """Writes a figure, a table, a report or a page, and returns the path; see `sinkinterp.pages.report.save`.

    It stands here because nnsight gives every object a `save`, which a name that waits for its use would lose to.
    """
    written: Path = import_module(".pages.report", __name__).save(what, path, width=width, height=height)
    return written


def __getattr__(name: str) -> Any:
    if name in _names:
        return _loaded(name)
    from .files import data_of

    hint = data_of("coming_from.toml")["names"].get(name, "")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and f'; {hint}'}", name=name)
