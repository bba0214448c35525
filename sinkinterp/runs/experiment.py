"""Experiments: one table or figure of a paper each: its claim, what makes its rows, its figure and its verdicts.

`experiments/shared/rules.py` has the rules that experiments are judged by.
"""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from .. import table as col
from ..backends.files.model_files import DeviceMap
from ..backends.files.named_models import downloads
from ..checks import InputError, choice, instance_of, refuse_first, whole_number
from ..data.progress import Progress, progress_bars, silent
from ..data.texts import TextStream, source_of
from ..measurement.measure import PACKAGES
from ..table import MODEL, SEED, Cell, Table
from ..train.recipe import Recipe
from .case import Case, Model, open_case
from .catalogue import Scale, full_name, load_module
from .trained import Trainable
from .workers import Here, Processes, Workers, in_order

TRAINED = "trained"  # the state of a run that ended well; any other text says why it did not


class Outcome(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    CONFOUNDED = "confounded"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"
    NOT_ASKED = "not asked"
    REFUSED = "refused"  # the edit did not do what its name says
    SINK = "sink"
    NO_SINK = "no sink"


OUTCOMES = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}  # by whether the claim is shown


@dataclass(frozen=True)
class Verdict:
    """A claim, what the runs say about it, and the numbers that decide; a set-up is needed, and claims nothing."""

    claim: str
    outcome: Outcome
    reason: str
    is_setup: bool = False


Decision = tuple[Outcome | bool | None, str]  # what rows say (True: the claim is shown, None: undecided), and why
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Rule:
    """A claim, and a function that decides about it by the rows of an experiment.

    models: the models whose rows it needs. trained: rows that must come from trainings that ended well. is_setup: it
    says that the comparison can be made, such as that a baseline has a sink, and is not counted among the claims.
    """

    claim: str
    decide: Callable[[Table], Decision]
    models: tuple[str, ...] = ()
    trained: Callable[[Table], Sequence[Row]] = lambda runs: ()
    is_setup: bool = False

    def verdict(self, runs: Table) -> Verdict:
        """What these rows say about the claim."""
        failed = failed_in(self.trained(runs))
        shown, reason = (Outcome.DIVERGED, failed) if failed else self.decide(runs)
        return Verdict(self.claim, shown if isinstance(shown, Outcome) else OUTCOMES[shown], reason, self.is_setup)


def counted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that count: of claims that were asked, without set-ups and what a check refused."""
    not_asked = (Outcome.NOT_ASKED, Outcome.REFUSED)
    return [verdict for verdict in verdicts if not verdict.is_setup and verdict.outcome not in not_asked]


def standing(verdicts: Sequence[Verdict]) -> str:
    """How many rules hold, in words; empty where none says so, as in a list of models with a sink and without one."""
    judged = counted(verdicts)
    hold = sum(verdict.outcome is Outcome.HOLDS for verdict in judged)
    if not judged or any(verdict.outcome in (Outcome.SINK, Outcome.NO_SINK) for verdict in judged):
        return ""
    if hold == len(judged):
        return "the rule holds" if hold == 1 else f"all {hold} rules hold"
    return f"{hold} of {len(judged)} rules hold"


def failed_in(rows: Sequence[Row]) -> str:
    """The first of these rows whose training failed, in words; empty if all of them ended well."""
    failed = [row for row in rows if row.get(col.STATE, TRAINED) != TRAINED]
    if not failed:
        return ""
    model, seed, state = (failed[0].get(name) for name in (col.MODEL, col.SEED, col.STATE))
    return f"{len(failed)} trainings failed, such as {model}, seed {seed}: {state}"


_DOWNLOADED = "local/"  # before the names of models that `make models` makes
GIVEN = "given models"  # in place of a scale, where the user names models
_OF_TEXT = (Scale.TEXT, Scale.GPU, Scale.PAPER)
_NOT_BY_DEFAULT = {
    Scale.SMOKE: "its models are not here; `make models` downloads some, scale=paper takes others from the Hub",
    Scale.TEXT: "it trains for hours; scale=text runs it",
    Scale.GPU: "it trains for hours without a GPU; scale=gpu runs it",
}


@dataclass(frozen=True)
class Scope:
    """How an experiment is run: on which models, with what, and where.

    models: names or folders in place of those of the scale; only for experiments on models that exist.
    seeds: how many models of every kind are trained. text: the user's own text as natural input.
    workers: train models. measurers: measure those that exist, one by one unless given.
    settings: changes of the recipe that all trained models start from, such as "micro_batch=4".
    """

    scale: Scale
    models: Sequence[Model] = ()
    seeds: int = 5
    text: Path | TextStream | None = None
    workers: Workers = Processes()
    measurers: Workers = Here()
    progress: Progress = silent
    cache: Path | None = None
    device_map: DeviceMap = None
    settings: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The scale, or that the user named the models."""
        return GIVEN if self.models else self.scale.value


def without_constant_names(table: Table) -> Table:
    """The table without the columns `model` and `seed` where they are the same in every row."""
    constant = [name for name in (MODEL, SEED) if name in table.frame and table.frame[name].nunique(dropna=False) == 1]
    return Table(table.title, table.note, table.frame.drop(columns=constant))


@dataclass(frozen=True)
class Experiment:
    """The claim of a paper, and the functions that measure, draw and judge it.

    rows: makes the rows of all models: a function, or `OnModels`, or the `Trainings` of a study.
    draw: makes the figure of the rows. rules: what decides about the claim. digest: the rows in short, for people.
    recipes: the models that are trained. default_scale: the scale at which it is run where the user chooses none.
    rules_at: other rules, by scale. only_by_name: the scales at which it trains genuine models, which takes hours; a
    run of all experiments leaves it out there.
    """

    claim: str
    rows: Callable[[Scope], Table]
    draw: Callable[[Table], go.Figure]
    rules: Sequence[Rule]
    scales: Sequence[Scale] = (Scale.SMOKE, Scale.DEMO)
    recipes: Callable[[Scope], Sequence[Trainable]] = lambda scope: ()
    digest: Callable[[Table], Table] = without_constant_names
    default_scale: Callable[[], Scale] = lambda: Scale.DEMO
    rules_at: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    only_by_name: Sequence[Scale] = ()

    def table(self, scope: Scope) -> Table:
        """The rows of all models under the claim."""
        made = self.rows(scope)
        return Table(self.claim, made.note, made.frame)

    def verdicts(self, table: Table, scale: str = GIVEN) -> list[Verdict]:
        """Returns what the rows say about the claim, rule by rule. None at scale smoke, which only checks the path."""
        rules = self.rules_at.get(scale, self.rules)
        return [] if scale == Scale.SMOKE else [rule.verdict(table) for rule in rules]


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
    return Experiment(claim, rows, draw, rules, tuple(models), recipes=rows.recipes, default_scale=rows.default_scale)


def load_experiment(name: str) -> Experiment:
    """The experiment of that name: the EXPERIMENT of its module."""
    experiment = load_module(name).EXPERIMENT
    assert isinstance(experiment, Experiment), f"{name} has no EXPERIMENT"
    return experiment


def check_scope(name: str, experiment: Experiment, scope: Scope) -> None:
    """Raises InputError where an experiment has no such scale, cannot take the models, or reads no text there."""
    trains = not isinstance(experiment.rows, OnModels)
    larger = [scale for scale in _OF_TEXT if scale in experiment.scales]
    or_larger = f", or add scale={' or scale='.join(larger)}" if larger else ""
    refused = {
        "trains its models itself; leave model=... away": trains and scope.models,
        "measures models that are there; leave settings=... away": not trains and scope.settings,
        "trains its models itself, where it runs; leave device_map=... away": trains and scope.device_map is not None,
        f"has no models of scale {scope.scale}; choose {' or '.join(experiment.scales)}":
            not scope.models and scope.scale not in experiment.scales,
        f"trains toys, which learn a task and read no text; leave text=... away{or_larger}":
            trains and scope.text is not None and scope.scale not in _OF_TEXT,
    }  # fmt: skip
    refuse_first(refused, name)
    if scope.text is not None and trains:
        source_of(scope.text).check()


def check_default(experiment: Experiment, scope: Scope, chosen: Scale | None) -> None:
    """Raises InputError for a scale that the user did not choose, and that takes hours or gives no result.

    So it does for an experiment that runs by its name alone.
    """
    why = "" if scope.scale is chosen else _NOT_BY_DEFAULT.get(scope.scale, "")
    if scope.scale in experiment.only_by_name:
        why = f"it trains genuine models for hours; its name and scale={scope.scale} run it"
    if why:
        raise InputError(why)


def reproduce(name: str | int, model: Any = None, scale: str | None = None, seeds: int = 5) -> Table:
    """The table of an experiment in short, as `sinkinterp reproduce NAME` prints it: "table07", 7, "figure02".

    `model` is the name of one, or what `si.load` made of it, or a list of these, in place of its own. `seeds` is how
    many models of each kind are trained, from seed 0 on. Raises InputError for names that there are not, and as
    `check_scope` does.
    """
    full, chosen = full_name(str(name)), None if scale is None else choice(scale, {x: x for x in Scale}, "scale")
    given = [getattr(x, "name", x) for x in (model if isinstance(model, list) else [model]) if x is not None]
    models = [instance_of(each, str, "a model is its name here, such as 'gpt2'") for each in given]
    experiment = load_experiment(full)
    with progress_bars() as progress:
        seeds = whole_number(seeds, "seeds", 1)
        scope = Scope(chosen or experiment.default_scale(), models, seeds, workers=Here(), progress=progress)
        check_scope(full, experiment, scope)
        rows = experiment.table(scope)
    held = standing(experiment.verdicts(rows, scope.label))
    titled = replace(rows, title=f"The claim: {experiment.claim}{f' Here {held}.' if held else ''}")
    return replace(experiment.digest(titled), title=titled.title, draw=lambda digest: experiment.draw(titled))


def provenance() -> dict[str, Cell]:
    """Versions, commit and machine of this process."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "versions": f"python {platform.python_version()}, {versions}",
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }


def _commit() -> str:
    """The commit of this code's repository, with "-dirty" where code differs; "unknown" outside a repository.

    Only code counts, since a book in the repository changes with every chapter.
    """
    # without --no-optional-locks git rewrites its index, and leaves a lock behind where it is killed
    options = ("--porcelain=v2", "--branch", "--untracked-files=no")
    command = ("git", "--no-optional-locks", "status", *options, "--", ":(top)*.py")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.splitlines()
    ids = [line.split()[2][:12] for line in lines if line.startswith("# branch.oid ")]
    changed = "-dirty" if any(not line.startswith("#") for line in lines) else ""
    return f"{ids[0]}{changed}" if ids else "unknown"
