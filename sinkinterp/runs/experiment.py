"""Experiments: one table or figure of a paper each: its claim, what makes its rows, its figure and its verdicts.

`experiments/shared/rules.py` has the rules that experiments are judged by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from .. import table as col
from .._experiments import full_name, load_module
from ..backends.encoder import EncoderInput
from ..backends.model_files import DeviceMap
from ..checks import InputError, choice, instance_of, refuse_first, whole_number
from ..data.choices import Scale
from ..data.progress import Progress, progress_bars, silent
from ..data.texts import Texts, source_of
from ..table import MODEL, SEED, Cell, Table
from .trained import Trainable
from .workers import Here, Processes, Workers

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
    encoder: what the encoders of `models` are given.
    """

    scale: Scale
    models: Sequence[Any] = ()
    seeds: int = 5
    text: Path | Texts | None = None
    workers: Workers = Processes()
    measurers: Workers = Here()
    progress: Progress = silent
    cache: Path | None = None
    device_map: DeviceMap = None
    settings: Sequence[str] = ()
    encoder: EncoderInput | None = None

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

    rows: makes the rows of all models.
    draw: makes the figure of the rows. rules: what decides about the claim. digest: the rows in short, for people.
    recipes: the models that are trained. measured: the models that it measures; None where it trains its own.
    default_scale: the scale at which it is run where the user chooses none.
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
    measured: Callable[[Scope], Sequence[Any]] | None = None

    def table(self, scope: Scope) -> Table:
        """The rows of all models under the claim."""
        made = self.rows(scope)
        return Table(self.claim, made.note, made.frame)

    def verdicts(self, table: Table, scale: str = GIVEN) -> list[Verdict]:
        """Returns what the rows say about the claim, rule by rule. None at scale smoke, which only checks the path."""
        rules = self.rules_at.get(scale, self.rules)
        return [] if scale == Scale.SMOKE else [rule.verdict(table) for rule in rules]


def load_experiment(name: str) -> Experiment:
    """The experiment of that name: the EXPERIMENT of its module."""
    experiment = load_module(name).EXPERIMENT
    assert isinstance(experiment, Experiment), f"{name} has no EXPERIMENT"
    return experiment


def check_scope(name: str, experiment: Experiment, scope: Scope) -> None:
    """Raises InputError where an experiment has no such scale, cannot take the models, or reads no text there."""
    trains = experiment.measured is None
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
        source_of(scope.text).check_text()


def check_default(experiment: Experiment, scope: Scope, chosen: Scale | None) -> None:
    """Raises InputError for a scale that the user did not choose, and that takes hours or gives no result.

    So it does for an experiment that runs by its name alone.
    """
    why = "" if scope.scale is chosen else _NOT_BY_DEFAULT.get(scope.scale, "")
    if scope.scale in experiment.only_by_name:
        why = f"it trains genuine models for hours; its name and scale={scope.scale} run it"
    if why:
        raise InputError(why)


def reproduce(name: str, model: Any = None, scale: str | None = None, seeds: int = 5) -> Table:
    """The table of an experiment in short, as `sinkinterp reproduce NAME` prints it: "table07", "figure02".

    `model` is the name of one, or what `si.load` made of it, or a list of these, in place of its own. `seeds` is how
    many models of each kind are trained, from seed 0 on. Raises InputError for names that there are not, and as
    `check_scope` does.
    """
    full, chosen = full_name(name), None if scale is None else choice(scale, {x: x for x in Scale}, "scale")
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
