"""Experiments: one table or figure of a paper each: its claim, its models by scale, its figure and its verdicts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..backends.model_files import DeviceMap
from ..backends.places import downloads
from ..data.progress import Progress, silent
from ..errors import InputError
from ..plots.columns import MODEL, SEED
from ..table import Table
from ..train.recipe import Recipe
from .case import Case, Model, open_case
from .experiment_files import load_module
from .finetune import Trainable
from .scale import Scale
from .verdict import Rule, Verdict
from .workers import Processes, Workers

SEEDS = 5
_ONLY_IF_ASKED = {
    Scale.SMOKE: "its models are not here; `make models` downloads some, --scale paper takes others from the Hub",
    Scale.TEXT: "it trains for hours; --scale text runs it",
}


@dataclass(frozen=True)
class Scope:
    """How an experiment is run: on which models, with what, and where.

    models: names or folders in place of those of the scale; only for experiments on models that exist.
    seeds: how many models of every kind are trained. text: the user's own text as natural input.
    """

    scale: Scale
    models: Sequence[Model] = ()
    seeds: int = SEEDS
    text: str | None = None
    workers: Workers = Processes()
    progress: Progress = silent
    cache: Path | None = None
    device_map: DeviceMap = None


@runtime_checkable
class Experiment(Protocol):
    """What the command `reproduce` needs of an experiment."""

    @property
    def claim(self) -> str: ...

    @property
    def scales(self) -> Sequence[Scale]: ...

    def default_scale(self) -> Scale:
        """The scale at which it is run where none is given."""
        ...

    def recipes_at(self, scope: Scope) -> Sequence[Trainable]:
        """The models that it trains."""
        ...

    def table(self, scope: Scope) -> Table:
        """The rows of all models."""
        ...

    def digest(self, table: Table) -> Table:
        """The rows in short, for people."""
        ...

    def draw(self, table: Table) -> Any:
        """The plotly figure of the rows."""
        ...

    def verdicts(self, table: Table) -> list[Verdict]:
        """What the rows say about the claim, by its rules."""
        ...


@runtime_checkable
class OnModels(Protocol):
    """A module of `experiments` that measures models one by one: constants, and two functions."""

    CLAIM: str
    REPORTED: Mapping[Any, Any]
    MODELS: Mapping[Scale, Sequence[Model]]
    RULES: Sequence[Rule]

    def measure(self, case: Case, progress: Progress) -> Table:
        """The rows of one model."""
        ...

    def draw(self, table: Table) -> Any:
        """The figure of all rows."""
        ...


@dataclass(frozen=True)
class ModelByModel:
    """An experiment that measures models one after the other, as its module says."""

    module: OnModels

    @property
    def claim(self) -> str:
        return self.module.CLAIM

    @property
    def scales(self) -> Sequence[Scale]:
        return tuple(self.module.MODELS)

    def default_scale(self) -> Scale:
        """The real models where `make models` made them all, else those that ship."""
        real = self.module.MODELS.get(Scale.REAL, ())
        is_made = real and all((downloads() / Path(_source(model)).name).is_dir() for model in real)
        return Scale.REAL if is_made else Scale.SMOKE

    def recipes_at(self, scope: Scope) -> list[Recipe]:
        return [model for model in self._models(scope) if isinstance(model, Recipe)]

    def table(self, scope: Scope) -> Table:
        return reproduce(self.module, self._models(scope), scope.progress, scope.cache, scope.device_map, scope.text)

    def digest(self, table: Table) -> Table:
        return without_constant_names(table)

    def draw(self, table: Table) -> Any:
        return self.module.draw(table)

    def verdicts(self, table: Table) -> list[Verdict]:
        return [rule.verdict(table) for rule in self.module.RULES]

    def _models(self, scope: Scope) -> Sequence[Model]:
        """The models that are named, or those of the scale with the first seeds."""
        models = scope.models or self.module.MODELS[scope.scale]
        return [model for model in models if not isinstance(model, Recipe) or model.seed < scope.seeds]


def _source(model: Model) -> str:
    return str(getattr(model, "source", model))


def load_experiment(name: str) -> Experiment:
    """The experiment of that name: the STUDY of its module, or the module itself, which measures model by model."""
    module = load_module(name)
    study = getattr(module, "STUDY", None)
    if isinstance(study, Experiment):
        return study
    assert isinstance(module, OnModels), f"{name} lacks a part of an experiment"
    return ModelByModel(module)


def check_scope(name: str, experiment: Experiment, scope: Scope) -> None:
    """Raises InputError where an experiment has no such scale, or trains its models and cannot take others."""
    if scope.models and not isinstance(experiment, ModelByModel):
        raise InputError(f"{name} trains its models itself; leave --model away")
    if not scope.models and scope.scale not in experiment.scales:
        raise InputError(f"{name} has no models of scale {scope.scale}; choose {' or '.join(experiment.scales)}")


def check_unasked(scope: Scope, asked: Scale | None) -> None:
    """Raises InputError for a scale that nobody asked for, and that takes hours or gives no result."""
    if scope.scale is not asked and scope.scale in _ONLY_IF_ASKED:
        raise InputError(_ONLY_IF_ASKED[scope.scale])


def reproduce(
    module: OnModels,
    models: Iterable[Model],
    progress: Progress = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
    text: str | None = None,
) -> Table:
    """The table of a module: each model is loaded, or trained where it is not in `cache`, and measured.

    `text` is read in place of the natural input of models with a tokenizer.
    """
    tables = [module.measure(open_case(model, progress, cache, device_map, text), progress) for model in models]
    note = "; ".join(dict.fromkeys(table.note for table in tables))
    return Table(module.CLAIM, note, tuple(row for table in tables for row in table.rows))


def of_first_model(table: Table, title: str) -> Table:
    """The rows of the first model and seed, under a title of their own."""
    first = table.where(**{MODEL: table.rows[0][MODEL], SEED: table.rows[0][SEED]})
    return Table(title, first.note, first.rows)


def without_constant_names(table: Table) -> Table:
    """The table without the columns `model` and `seed` where they are the same in every row."""
    constant = [name for name in (MODEL, SEED) if name in table.columns and len(set(table.column(name))) == 1]
    rows = tuple({name: cell for name, cell in row.items() if name not in constant} for row in table.rows)
    return Table(table.title, table.note, rows)
