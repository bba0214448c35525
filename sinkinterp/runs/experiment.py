"""Reproduction: what the experiments of the repository share, and how one of them becomes a table.

A module of `experiments` says CLAIM, REPORTED (published numbers), MODELS by scale, `measure(case, tell)` and
`draw(table)`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from ..backends.load import DeviceMap, load, load_tokenizer, located
from ..backends.subject import Subject
from ..data.bos import Bos
from ..data.tokens import TokenSet
from ..errors import InputError
from ..interventions.positions import RemovePosition
from ..lm.variants import VARIANTS
from ..table import Table
from ..train.recipe import Recipe
from . import trained
from .inputs import Inputs

FOLDER = Path(__file__).parents[2] / "experiments"
OURS = 512  # sequences for models of ours, as in their cards
Model = str | Recipe  # a name or folder, or how a model of ours is trained
OnRun = Callable[[int, int], None]
Tell = Callable[[str], OnRun]  # from words to what is told how far the work that they name has come


def silent(words: str) -> OnRun:
    """Tells nobody."""
    return lambda done, of: None


@dataclass(frozen=True)
class Case:
    """A model that an experiment measures: its name or folder, what runs it, and its recipe where it is one of ours."""

    source: str
    subject: Subject
    recipe: Recipe | None

    @property
    def variant(self) -> str | None:
        """The name of its architecture where it is one of ours that has one."""
        return None if self.recipe is None else _variant(self.recipe)

    @property
    def seed(self) -> int | None:
        """That of its training, where it is known."""
        return None if self.recipe is None else self.recipe.seed

    def extent(self, sequences: int = 100, length: int = 64) -> tuple[int, int]:
        """How many sequences to measure and how long, by default as in Gu et al. (2025).

        512 for models of ours, as in their cards; shorter where the context is.
        """
        return OURS if self.recipe else sequences, min(length, self.subject.shape.n_ctx or length)

    @property
    def bos(self) -> Bos:
        """BOS first where its tokenizer has one."""
        tokenizer = load_tokenizer(self.source)
        return Bos.NEVER if tokenizer is None or tokenizer.bos_token_id is None else Bos.ALWAYS

    def natural(self, extent: tuple[int, int], bos: Bos, on_file: OnRun = lambda done, of: None) -> TokenSet | None:
        """What it reads: text, or its task where it is one of ours; None where neither is known."""
        if self.recipe is None and load_tokenizer(self.source) is None:
            return None
        sequences, length = extent
        return Inputs(length, sequences, bos).token_set(self.source, self.subject.shape.vocab, on_file)

    def check_positions(self) -> None:
        """Raises InputError for a model without a table of learned positions."""
        self.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition([0])])


@runtime_checkable
class Experiment(Protocol):
    """A module of `experiments`: a claim of a paper, what it is measured on, and how."""

    CLAIM: str
    REPORTED: Mapping[Any, Any]
    MODELS: Mapping[str, Sequence[Model]]

    def measure(self, case: Case, tell: Tell) -> Table:
        """The rows of one model."""
        ...

    def draw(self, table: Table) -> Any:
        """The figure of all rows."""
        ...


def names() -> list[str]:
    """Of all experiments. Raises InputError where the repository is absent."""
    found = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    if not found:
        raise InputError(
            "experiments lie in the repository, not in the package; clone it and run `pip install -e .` there"
        )
    return found


def chosen(beginning: str) -> str:
    """The name of the one experiment that begins so. Raises InputError, naming all, where there is not one."""
    found = [name for name in names() if name == beginning] or [n for n in names() if n.startswith(beginning)]
    if len(found) != 1:
        raise InputError(
            f"{beginning!r} is the beginning of {len(found)} experiments; choose one of {', '.join(names())}"
        )
    return found[0]


def named(name: str) -> Experiment:
    """The experiment of that name, from its file: other packages may be called `experiments`, too."""
    spec = spec_from_file_location(f"experiments.{name}", FOLDER / f"{name}.py")
    if spec is None or spec.loader is None:
        raise InputError(f"{name} is no Python file of {FOLDER}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module, Experiment), f"{name} lacks a part of an experiment"
    return module


def reproduce(
    experiment: Experiment,
    models: Iterable[Model],
    tell: Tell = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
) -> Table:
    """The experiment's table: every model loaded, or trained where it is not in `cache` yet, and measured."""
    tables = [experiment.measure(opened(model, tell, cache, device_map), tell) for model in models]
    note = "; ".join(dict.fromkeys(table.note for table in tables))
    return Table(experiment.CLAIM, note, tuple(row for table in tables for row in table.rows))


def condensed(table: Table) -> Table:
    """The table without a model and a seed that are the same in every row."""
    same = [name for name in ("model", "seed") if name in table.columns and len(set(table.column(name))) == 1]
    rows = tuple({name: cell for name, cell in row.items() if name not in same} for row in table.rows)
    return Table(table.title, table.note, rows)


def opened(model: Model, tell: Tell = silent, cache: Path | None = None, device_map: DeviceMap = None) -> Case:
    """A model, ready to be measured. Raises InputError where it can be neither loaded nor trained."""
    source = model if isinstance(model, str) else _trained(model, tell, cache)
    folder = Path(located(source))
    recipe = trained.recipe_of(folder) if (folder / "recipe.json").is_file() else None
    name = source if isinstance(model, str) else _variant(model) or model.key()
    return Case(source, load(source, device_map=device_map, name=name), recipe)


def _trained(recipe: Recipe, tell: Tell, cache: Path | None) -> str:
    on_run = tell(f"training {_variant(recipe)}, seed {recipe.seed}")
    return str(trained.trained(recipe, cache, lambda step, latest: on_run(step, recipe.steps)).folder)


def _variant(recipe: Recipe) -> str | None:
    return next((name for name, spec in VARIANTS.items() if spec == recipe.model), None)
