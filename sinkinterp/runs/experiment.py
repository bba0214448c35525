"""Experiments: what a module of the folder `experiments` holds, how it is found, and how it becomes a table."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..backends.load import DeviceMap, downloads
from ..data.progress import Progress, silent
from ..errors import InputError
from ..plots.columns import MODEL, SEED
from ..table import Table
from .case import Case, Model, open_case

SMOKE, REAL = "smoke", "real"  # scales: models that ship, models that `make models` downloads
FOLDER = Path(__file__).parents[2] / "experiments"


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments`: a claim of a paper, the published numbers, the models by scale, and two functions."""

    CLAIM: str
    REPORTED: Mapping[Any, Any]
    MODELS: Mapping[str, Sequence[Model]]

    def measure(self, case: Case, progress: Progress) -> Table:
        """The rows of one model."""
        ...

    def draw(self, table: Table) -> Any:
        """The figure of all rows."""
        ...


def experiment_names() -> list[str]:
    """The names of all experiments. Raises InputError where the repository is absent."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    if not names:
        raise InputError(
            "experiments lie in the repository, not in the package; clone it and run `pip install -e .` there"
        )
    return names


def full_name(beginning: str) -> str:
    """The one experiment whose name begins so. Raises InputError, which lists all, where there is none or several."""
    names = experiment_names()
    matches = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
    if len(matches) != 1:
        raise InputError(
            f"{beginning!r} is the beginning of {len(matches)} experiments; choose one of {', '.join(names)}"
        )
    return matches[0]


def load_experiment(name: str) -> Experiment:
    """The experiment of that name, loaded from its file because other packages may also be called `experiments`."""
    spec = spec_from_file_location(f"experiments.{name}", FOLDER / f"{name}.py")
    if spec is None or spec.loader is None:
        raise InputError(f"{name} is no Python file of {FOLDER}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module, Experiment), f"{name} lacks a part of an experiment"
    return module


def models_of(experiment: Experiment, scale: str | None = None) -> Sequence[Model]:
    """The models of a scale; by default the real ones where `make models` made them all, else those that ship.

    Raises InputError for a scale that the experiment does not have.
    """
    if scale is None:
        real = experiment.MODELS.get(REAL, ())
        scale = REAL if real and all((downloads() / Path(str(model)).name).is_dir() for model in real) else SMOKE
    if scale not in experiment.MODELS:
        raise InputError(f"there are no models of scale {scale}; choose {' or '.join(experiment.MODELS)}, or --model")
    return experiment.MODELS[scale]


def reproduce(
    experiment: Experiment,
    models: Iterable[Model],
    progress: Progress = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
    text: str | None = None,
) -> Table:
    """The experiment's table: each model is loaded, or trained where it is not in `cache`, and measured.

    `text` is read in place of the natural input of models with a tokenizer.
    """
    tables = [experiment.measure(open_case(model, progress, cache, device_map, text), progress) for model in models]
    note = "; ".join(dict.fromkeys(table.note for table in tables))
    return Table(experiment.CLAIM, note, tuple(row for table in tables for row in table.rows))


def of_first_model(table: Table, title: str) -> Table:
    """The rows of the first model and seed, under a title of their own."""
    first = table.where(**{MODEL: table.rows[0][MODEL], SEED: table.rows[0][SEED]})
    return Table(title, first.note, first.rows)


def without_constant_names(table: Table) -> Table:
    """The table without the columns `model` and `seed` where they are the same in every row."""
    constant = [name for name in (MODEL, SEED) if name in table.columns and len(set(table.column(name))) == 1]
    rows = tuple({name: cell for name, cell in row.items() if name not in constant} for row in table.rows)
    return Table(table.title, table.note, rows)
