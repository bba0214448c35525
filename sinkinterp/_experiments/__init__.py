"""The experiments, one module per table or figure, which lie in `experiments` of a clone, and in `files` of a wheel."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).parent
FOLDER = _HERE / "files" if (_HERE / "files").is_dir() else _HERE.parents[1] / "experiments"
__path__ = [str(FOLDER)]


def module(name: str) -> ModuleType:
    """The module of that name, such as "table07_position_swap" or "book.story"."""
    return import_module(f".{name}", __name__)
