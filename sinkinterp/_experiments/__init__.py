"""The experiments, one module per table or figure: their folder, names and summaries. Nothing here imports torch.

They lie in `experiments` of a clone, and in `files` of a wheel.
"""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..checks import InputError, instance_of, nearest

_HERE = Path(__file__).parent
FOLDER = _HERE / "files" if (_HERE / "files").is_dir() else _HERE.parents[1] / "experiments"
__path__ = [str(FOLDER)]


def experiment_names() -> list[str]:
    """The names of all experiments. Raises InputError where their folder is absent."""
    names = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
    if not names:
        raise InputError(f"there is no experiment in {FOLDER}")
    return names


def full_name(beginning: str) -> str:
    """The one experiment whose name begins so. Raises InputError for none or several."""
    names, beginning = experiment_names(), instance_of(beginning, str, "an experiment has a name, such as 'table07'")
    matches = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
    if len(matches) == 1:
        return matches[0]
    if beginning and matches:
        fix = f"name one in full, such as {matches[0]}"
        raise InputError(f"several experiments begin with {beginning!r}: {', '.join(matches)}; {fix}")
    near = nearest(beginning, sorted({*names, *(name.split("_")[0] for name in names)} - {beginning}))
    raise InputError(f"no experiment begins with {beginning!r}{near}; see `sinkinterp list experiments`")


def summary_of(name: str) -> str:
    """The first line of an experiment's docstring, without the full stop."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or name).splitlines()[0].rstrip(".")


def load_module(name: str) -> ModuleType:
    """An experiment, or another module of their folder, such as "book.chapter"."""
    load_package()
    return import_module(f".{name}", __name__)


def load_package() -> None:
    """Imports the kinds of data that experiments have of their own, which recipes name."""
    import_module(".shared.tasks", __name__)
