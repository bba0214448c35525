"""The models that an experiment measures: each a case, ready to run, with what is known of it and what it reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from sinkinterp.backends.encoder import EncoderInput
from sinkinterp.backends.load import load
from sinkinterp.backends.model_files import DeviceMap
from sinkinterp.backends.named_models import downloads, located
from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.progress import OnProgress, Progress, no_progress, silent
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokens import TokenSet, random_tokens, repeated_token
from sinkinterp.interventions.changes import RemovePosition
from sinkinterp.lm.variants import variants
from sinkinterp.runs import trained
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.inputs import Inputs
from sinkinterp.runs.workers import Here, in_order
from sinkinterp.table import MODEL, SEED, Cell, Table
from sinkinterp.train.recipe import RECIPES, Recipe, recipe_in

_DOWNLOADED = "local/"  # before the names of models that `make models` makes
OUR_SEQUENCES = 512  # for models of ours, as in their cards
READING = "reading docstrings"


@dataclass(frozen=True)
class Named:
    """A model of others: its name or folder, the input of its encoder, and how it is measured.

    most: how many sequences it is measured on at most; None: no limit. begins: how its texts begin.
    """

    source: str
    encoder: EncoderInput | None = None
    most: int | None = None
    begins: Bos = Bos.NEVER

    def __str__(self) -> str:
        return self.source


Model = str | Recipe | Named  # a name or folder, or how a model of ours is trained


@dataclass(frozen=True)
class Case:
    """A model that an experiment measures: its name or folder, its subject, and its recipe if it is one of ours.

    text: the user's own texts, a file, a folder or `si.texts(...)`; None for the model's natural input: English
    docstrings, or the task of a model of ours. most: how many sequences it is measured on at most; None: no limit.
    begins: how the texts of a model of others begin.
    """

    source: str
    subject: Subject
    recipe: Recipe | None
    text: Path | Texts | None = None
    most: int | None = None
    begins: Bos = Bos.NEVER

    @property
    def variant(self) -> str | None:
        """The name of the architecture, if the model is one of ours and its architecture has a name."""
        return None if self.recipe is None else _variant_of(self.recipe)

    @property
    def seed(self) -> int | None:
        """The seed of the training, if it is known."""
        return None if self.recipe is None else self.recipe.seed

    @property
    def names(self) -> dict[str, Cell]:
        """The first cells of each of the model's rows: its name, and the seed of its training."""
        return {MODEL: self.subject.name, SEED: self.seed}

    @property
    def bos(self) -> Bos:
        """Always BOS for models whose tokenizer has one."""
        return Bos.NEVER if self.bos_token is None else Bos.ALWAYS

    @property
    def start(self) -> Bos:
        """Never BOS, as in Gu et al. (2025), but for models that are said to need it, and for models of ours.

        Those are trained with it if they have one.
        """
        return self.begins if self.recipe is None else self.bos

    @property
    def bos_token(self) -> int | None:
        """The id of BOS, if the model has a tokenizer with one."""
        tokenizer = self.subject.tokenizer
        return None if tokenizer is None else tokenizer.bos_token_id

    def size(self, sequences: int = 100, length: int = 64) -> tuple[int, int]:
        """How many sequences to measure, and their length; the defaults are those of Gu et al. (2025).

        Models of ours take 512 sequences. The length is at most the model's context.
        """
        most = OUR_SEQUENCES if self.recipe else min(sequences, self.most or sequences)
        return most, min(length, self.subject.shape.n_ctx or length)

    def natural_tokens(self, size: tuple[int, int], bos: Bos, on_file: OnProgress = no_progress) -> TokenSet | None:
        """The input that the model was made for: text, or the task of a model of ours. None where it is not known."""
        if self.recipe is None and self.subject.tokenizer is None:
            return None
        sequences, length = size
        return Inputs(length, sequences, bos, self.text).token_set(self.subject, self.source, on_file)

    def tokens(self, size: tuple[int, int], progress: Progress = silent, bos: Bos | None = None) -> TokenSet:
        """The natural input, by default with BOS if the tokenizer has one; random tokens where it is not known."""
        sequences, length = size
        natural = self.natural_tokens(size, self.bos if bos is None else bos, progress(READING))
        return natural or random_tokens(self.subject.shape.vocab, length, sequences)

    def token_sets(self, size: tuple[int, int], bos: Bos, progress: Progress = silent) -> dict[str, TokenSet]:
        """The inputs of Gu et al. (2025), Table 1, by name: natural (where it is known), random and repeated tokens."""
        (sequences, length), vocab = size, self.subject.shape.vocab
        first = self.bos_token if bos is Bos.ALWAYS else None
        natural = self.natural_tokens(size, bos, progress(READING))
        drawn = (("random", random_tokens), ("repeated", repeated_token))
        sets = {name: draw(vocab, length, sequences, first=first) for name, draw in drawn}
        return sets if natural is None else {"natural": natural} | sets


def open_case(
    model: Model,
    progress: Progress = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
    text: Path | Texts | None = None,
) -> Case:
    """A model, loaded, or trained first where it is not in `cache`. Raises InputError where neither can be done."""
    source = _train(model, progress, cache) if isinstance(model, Recipe) else model
    given = source if isinstance(source, Named) else Named(source)
    folder = Path(located(given.source))
    recipe = recipe_in(folder) if (folder / "recipe.json").is_file() else None
    name = given.source if given.encoder is None else f"{given.source}, encoder {given.encoder.description}"
    if isinstance(model, Recipe):
        name = _variant_of(model) or model.key()
    subject = load(given.source, device_map=device_map, name=name, encoder=given.encoder)
    return Case(given.source, subject, recipe, text, given.most, given.begins)


def _train(recipe: Recipe, progress: Progress, cache: Path | None) -> str:
    on_step = progress(f"training {_variant_of(recipe)}, seed {recipe.seed}")
    return str(trained.trained(recipe, cache, lambda step, latest: on_step(step, recipe.steps)).folder)


def _variant_of(recipe: Recipe) -> str | None:
    """The name of the architecture among the variants of the named recipes; each one's own is "softmax"."""
    named = ({"softmax": base.model, **variants(base.model)} for base in RECIPES.values())
    return next((name for specs in named for name, spec in specs.items() if spec == recipe.model), None)


@dataclass(frozen=True)
class OnModels:
    """Makes the rows of an experiment that measures models."""

    models: Mapping[Scale, Sequence[Model]]
    measure: Callable[[Case, Progress], Table]

    def __call__(self, scope: Scope) -> Table:
        """The rows of every model, which is trained first where the cache lacks it; what notes share is said once."""
        told = scope if isinstance(scope.measurers, Here) else replace(scope, progress=silent)  # bars stay here
        tables = in_order(scope.measurers, partial(_rows_of, self.measure, told), self.chosen(scope))
        notes = [table.note for table in tables] + [f"not made here: {model}" for model in self._absent(scope)]
        note = "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ")))
        return Table.of("", note, tuple(row for table in tables for row in table.records()))

    def _absent(self, scope: Scope) -> list[Model]:
        """The models of the scale that `make models` makes, and has not; none where it made none of them."""
        of_scale = [] if scope.models else self.models[scope.scale]
        absent = [model for model in of_scale if str(model).startswith(_DOWNLOADED) and not _is_made(model)]
        return absent if any(map(_is_made, of_scale)) else []

    def recipes(self, scope: Scope) -> list[Recipe]:
        """The models that are trained first."""
        return [model for model in self.chosen(scope) if isinstance(model, Recipe)]

    def default_scale(self) -> Scale:
        """The real models where `make models` made one of them, else those that ship."""
        return Scale.REAL if any(map(_is_made, self.models.get(Scale.REAL, ()))) else Scale.SMOKE

    def chosen(self, scope: Scope) -> list[Model]:
        """The models that are named, or those of the scale that are here, with the first seeds."""
        absent = self._absent(scope)
        models = scope.models or [model for model in self.models[scope.scale] if model not in absent]
        if scope.encoder is not None:
            models = [Named(name, scope.encoder) for name in scope.models]
        return [model for model in models if not isinstance(model, Recipe) or model.seed < scope.seeds]


def _rows_of(measure: Callable[[Case, Progress], Table], scope: Scope, model: Model) -> Table:
    return measure(open_case(model, scope.progress, scope.cache, scope.device_map, scope.text), scope.progress)


def _is_made(model: Model) -> bool:
    """Tells if a model is one that `make models` makes, and has made."""
    name = str(model)
    return name.startswith(_DOWNLOADED) and (downloads() / name.removeprefix(_DOWNLOADED)).is_dir()


def on_models(
    claim: str,
    models: Mapping[Scale, Sequence[Model]],
    measure: Callable[[Case, Progress], Table],
    draw: Callable[[Table], go.Figure],
    rules: Sequence[Rule],
) -> Experiment:
    """An experiment on models by scale, or on those that the user names. `measure` returns the rows of one model."""
    rows = OnModels(models, measure)
    how: dict[str, Any] = {"recipes": rows.recipes, "measured": rows.chosen, "default_scale": rows.default_scale}
    return Experiment(claim, rows, draw, rules, tuple(models), **how)


def check_positions(case: Case) -> None:
    """Raises InputError for a model without a table of learned positions."""
    case.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition([0])])


def of_first_model(table: Table, title: str) -> Table:
    """The rows of the first model and seed, under the title."""
    row = table.records()[0]
    first = table.where(**{MODEL: row[MODEL], SEED: row[SEED]})
    return Table(title, first.note, first.frame)
