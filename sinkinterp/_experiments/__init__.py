"""The experiments, one module per table or figure, which lie in `experiments` of a clone, and in `files` of a wheel."""

from pathlib import Path

_HERE = Path(__file__).parent
FOLDER = _HERE / "files" if (_HERE / "files").is_dir() else _HERE.parents[1] / "experiments"
__path__ = [str(FOLDER)]
