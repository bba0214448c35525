"""The files of the experiments: where they lie, their names, their summaries. Nothing here imports torch."""

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ..checks import nearest
from ..errors import InputError

_IN_WHEEL, _IN_REPOSITORY = Path(__file__).parents[1] / "_experiments", Path(__file__).parents[2] / "experiments"
FOLDER = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_REPOSITORY  # a wheel carries a copy of the repository's folder


def experiment_names() -> list[str]:
    """The names of all experiments. Raises InputError where their folder is absent."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    if not names:
        raise InputError(f"there is no experiment in {FOLDER}; install sinkinterp again")
    return names


def full_name(beginning: str) -> str:
    """The one experiment whose name begins so. Raises InputError, which lists all, where there is none or several."""
    names = experiment_names()
    matches = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
    if len(matches) != 1:
        beginnings = {*names, *(name.split("_")[0] for name in names)} - {beginning}
        near = nearest(beginning, sorted(beginnings))
        which = ", ".join(matches if beginning and matches else names)
        raise InputError(f"{beginning!r} is the beginning of {len(matches)} experiments{near}; choose one of {which}")
    return matches[0]


def load_module(name: str) -> ModuleType:
    """The module of an experiment, from its file, because other packages may also be called `experiments`."""
    spec = spec_from_file_location(f"experiments.{name}", FOLDER / f"{name}.py")
    if spec is None or spec.loader is None:
        raise InputError(f"{name} is no Python file of {FOLDER}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary_of(name: str) -> str:
    """The first line of an experiment's docstring, without the full stop."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or name).splitlines()[0].rstrip(".")
