"""The commands that run experiments, with a verdict on every claim, and that list what has a name.

Listing imports no torch.
"""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._experiments import experiment_names, full_name, load_module, summary_of
from ..backends.named_models import MADE, models
from ..checks import InputError, each_once
from ..data.choices import Scale
from ..data.progress import progress_bars
from ..files import data_of
from ..spec import flat
from . import options
from .options import beginning, check_outputs, check_used, folder, n, option, suffix_of
from .terminal import Part, deliver, print_line, print_text, print_written, say, show

if TYPE_CHECKING:
    from ..data.progress import Progress
    from ..runs.experiment import Experiment, Scope
    from ..runs.trained import Trainable
    from ..runs.workers import Workers
    from ..table import Table


SCALES = (
    "smoke: what ships, no result. demo: toys, seconds each. text: small models of text. gpu: models without BOS. "
    "real: models of `make models`. paper: the paper's. Default: demo, real where made, else smoke."
)


@dataclass(frozen=True)
class Conditions:
    """On which models experiments are run, with what, and where."""

    scale: Annotated[Scale | None, option(SCALES, metavar="SCALE")] = None
    seeds: Annotated[int, n("Models of every kind that are trained.", min=1, max=1000)] = 5
    text: options.Text = None
    model: Annotated[list[str], option("Run it on this model instead; repeatable.", metavar="MODEL")] = field(
        default_factory=list
    )
    encoder: options.Encoder = None
    device_map: options.DeviceMap = None
    settings: options.Changes = field(default_factory=list)
    ray: options.Ray = None

    def check(self) -> None:
        """Raises InputError for models at a scale that has its own, and for the input of no encoder."""
        each_once(self.model, "--model")
        if self.model and self.scale is Scale.SMOKE:
            fix = f"leave one of them out, as in `sinkinterp reproduce table07 --model {self.model[0]}`"
            raise InputError(f"--scale smoke runs what ships, and --model names another one; {fix}")
        check_used("--encoder", self.encoder, "--model", self.model or None)

    def planned(self, chosen: "Mapping[str, Experiment]", out: Path, progress: "Progress") -> "list[Planned]":
        """How each experiment is run, and where its chapter goes."""
        from ..backends.encoder import encoder_input
        from ..runs.experiment import Scope

        trainers, measurers = _workers(self.ray, self.scale is Scale.PAPER, self.device_map is not None)
        where: dict[str, Any] = {"workers": trainers, "measurers": measurers, "device_map": self.device_map}
        where |= {"seeds": self.seeds, "text": options.readable_texts(self.text), "settings": self.settings}
        where |= {"encoder": None if self.encoder is None else encoder_input(self.encoder)}
        plans = []
        for name, experiment in chosen.items():
            scope = Scope(self.scale or experiment.default_scale(), self.model, **where, progress=progress)
            plans.append(Planned(name, experiment, scope, _command(name, scope, self.encoder), out))
        return plans


ChapterCost = tuple[Sequence["Trainable"], float, str]  # trainings, and what a chapter took: hours, of what


@dataclass(frozen=True)
class Planned:
    """An experiment that is to be run: on what, by which command, and the folder of its chapter."""

    name: str
    experiment: "Experiment"
    scope: "Scope"
    command: str
    out: Path

    def cost(self) -> ChapterCost:
        """Prints what the chapter costs, and returns it."""
        recipes, words = self.experiment.recipes(self.scope), list[str]()
        if self.experiment.measured is not None:
            given = [str(model) for model in self.experiment.measured(self.scope) if model not in recipes]
            words += [f"measures {', '.join(dict.fromkeys(given)) or 'what it trains'}"]
        if recipes or not words:
            words += [cost_text(recipes, self.scope.cache)]
        chapters = load_module("book.chapter")
        stem = chapters.stem_of(self.name, self.scope.label)
        hours, of, machine = chapters.time_taken(self.out, stem, self.command)
        words += [f"the chapter in {self.out} took {hours:.2f} hours {of} on {machine}"] if machine else []
        print_text(f"{self.name} at scale {self.scope.label}: {'; '.join(words)}")
        return recipes, hours, of

    def run(self, save: Path | None, prints: bool) -> "list[Table]":
        """Runs the experiment, and writes its chapter and its table. Returns what is printed of it."""
        from ..pages.report import content

        print_line(f"running {self.name} at scale {self.scope.label}")
        start = time.perf_counter(), sum(os.times()[:4])  # processor seconds: of this process and of its children
        table = self.experiment.table(self.scope)
        took = time.perf_counter() - start[0], sum(os.times()[:4]) - start[1]
        times = {"seconds": round(took[0], 1), "processor seconds": round(took[1], 1)}
        chapters = load_module("book.chapter")
        made = {"command": self.command, "scale": self.scope.label, **chapters.provenance(), **times}
        verdicts = self.experiment.verdicts(table, self.scope.label)
        chapter = chapters.Chapter(self.name, summary_of(self.name), table, verdicts, made)
        digest, figure = self.experiment.digest(table), self.experiment.draw(replace(table, title=chapter.title))
        for file in load_module("book.story").write_chapter(self.out, chapter, digest, figure):
            print_written(file)
        deliver([], (save, lambda: content(table, suffix_of(save))))
        tables = [replace(digest, title=chapter.title), chapters.verdict_table(chapter)]
        if prints:
            show(tables, None)
        return tables


_NAMES = typer.Argument(
    help="Experiments, or beginnings of names: table07; or all. See `sinkinterp list experiments`.",
    autocompletion=beginning(experiment_names),
    metavar="NAME",
)


def reproduce(
    names: Annotated[list[str], _NAMES],
    *,
    conditions: Conditions,
    dry_run: Annotated[bool, option("Say how many hours it takes, and run nothing.", "--dry-run")] = False,
    format: options.Format = None,
    save: options.SavedTable = None,
    out: Annotated[Path, folder("Folder of the pages and numbers.")] = Path("figures/book"),
    force: options.Force = False,
) -> None:
    """Reproduce tables and figures of the paper: our numbers, its numbers, verdicts.

    Example: sinkinterp reproduce table07 --scale demo

    Writes NAME.json and NAME.html for each, and index.html with the verdicts of all that lie in the folder.
    """
    is_all = list(names) == ["all"]
    given = experiment_names() if is_all else list(dict.fromkeys(map(full_name, names)))
    if save is not None and len(given) > 1:
        raise InputError("--save writes the table of one experiment; leave it out, or name one")
    conditions.check()
    check_outputs(force, save, reads=(conditions.text,))
    say(f"preparing {', '.join(names)}")
    with progress_bars(in_lines=True) as progress:
        from ..backends.model_files import check_named
        from ..runs.experiment import check_default, check_scope, load_experiment

        loaded = {name: load_experiment(name) for name in given}
        chosen = {name: each for name, each in loaded.items() if not is_all or conditions.scale in (None, *each.scales)}
        _check_chapters(out, [*chosen], None if conditions.model else conditions.scale, force or dry_run)
        plans = conditions.planned(chosen, out, progress)
        for plan in [] if is_all else plans:
            check_scope(plan.name, plan.experiment, plan.scope)
        for name in conditions.model:
            check_named(name)
        costs, left_out, shown = list[ChapterCost](), list[str](), list[Part]()
        for plan in plans:
            try:
                if is_all:
                    check_scope(plan.name, plan.experiment, plan.scope)
                    check_default(plan.experiment, plan.scope, conditions.scale)
                if dry_run:
                    costs.append(plan.cost())
                else:
                    shown += plan.run(save, prints=format is None)
            except InputError as error:  # of `all`, those that can run do
                if not is_all:
                    raise
                left_out.append(f"left out: {plan.name}: {error}")
    if format is not None and not dry_run:
        show(shown, format)
    if dry_run and len(plans) > 1:
        print_text(f"all of them, shared runs once: {_total(costs, out)}")
    for reason in left_out:
        print_line(reason)


def _check_chapters(out: Path, names: Sequence[str], scale: Scale | None, force: bool) -> None:
    """Raises InputError unless the chapters can be written into the folder `out`."""
    chapters = load_module("book.chapter")
    stems = [chapters.stem_of(name, scale) for name in names]
    check_outputs(force, *(out / f"{stem}.{ending}" for stem in stems for ending in ("json", "html")))
    chapters.check_plotly(out)


def _workers(ray: str | None, are_large: bool, are_placed: bool) -> tuple["Workers", "Workers"]:
    """Returns where models are trained and where they are measured.

    A run of the paper's size and a model with a device map get a GPU each. Without Ray they come one after the other.
    """
    from ..runs.workers import Here, Processes, Ray

    if ray is not None:
        return Ray(ray, gpus=int(are_large)), Ray(ray, gpus=int(are_placed))
    return Processes(1) if are_large else Processes(), Here()


def cost_text(recipes: Sequence["Trainable"], cache: Path | None) -> str:
    """The cost of these trainings in words, without those that the cache holds."""
    from ..runs.estimate import GPU_SPEED, cost_of, has_its_device

    cost = cost_of(recipes, cache)
    words = f"{cost.runs} runs, {cost.cached} of them in the cache"
    if cost.runs == cost.cached:
        return words
    is_here = all(map(has_its_device, recipes))
    where = "here" if is_here else f"on one GPU that computes all attention at {GPU_SPEED / 1e12:.0f} teraflop/s"
    words += f"; the others read {cost.tokens:,} tokens, {cost.hours:,.2f} hours one after the other {where}, "
    return words + f"and leave {cost.gigabytes:.3g} GB of checkpoints"


def _total(costs: Sequence[ChapterCost], out: Path) -> str:
    """The cost of several chapters: their trainings, and the time that the chapters of the folder took."""
    trained = [recipe for recipes, *_ in costs for recipe in recipes]
    sums = {of: sum(hours for _, hours, how in costs if how == of) for _, _, of in costs}
    taken = " and ".join(f"{hours:.2f} hours {of}" for of, hours in sums.items() if hours)
    measured = [f"the chapters in {out} took {taken}"] if taken else []
    return "; ".join([cost_text(trained, None), *measured] if trained or not measured else measured)


def _command(name: str, scope: "Scope", encoder: str | None) -> str:
    """The command that makes the same numbers, with every option that changes them."""
    models = (word for model in scope.models for word in ("--model", str(model)))
    from ..data.texts import source_of

    text = () if scope.text is None else ("--text", source_of(scope.text).word)
    given = () if encoder is None else ("--encoder", encoder)
    is_other = bool(scope.models) and scope.scale is Scale.SMOKE  # the default where no models are made
    size = (*(() if is_other else ("--scale", scope.scale)), "--seeds", str(scope.seeds))
    changes = (word for setting in scope.settings for word in ("--set", setting))
    return shlex.join(("sinkinterp", "reproduce", name, *size, *text, *models, *given, *changes))


Listed = StrEnum("Listed", ["MODELS", "VARIANTS", "RECIPES", "EXPERIMENTS"])


def listing(
    what: Annotated[Listed | None, typer.Argument(help="What is listed; default: all.")] = None,
    format: options.Format = None,
) -> None:
    """List the models, variants, recipes and experiments that have a name.

    Example: sinkinterp list models
    """
    show(list(map(_table, Listed if what is None else [what])), format)


def _table(what: Listed) -> "Table":
    from ..table import Table

    note, column, rows = _LISTS[what]
    return Table.of(
        what.value, note, tuple({what.value.removesuffix("s"): key, column: x} for key, x in rows().items())
    )


def _settings() -> dict[str, str]:
    recipes = data_of("train/recipes.toml")
    return {name: " ".join(f"{key}={x}" for key, x in flat(recipe).items()) for name, recipe in recipes.items()}


_MODELS = f"sinkinterp measure MODEL, or its folder, also in transformers; `make models` makes {', '.join(MADE)}"
_LISTS: Mapping[Listed, tuple[str, str, Callable[[], Mapping[str, str]]]] = {
    Listed.MODELS: (_MODELS, "folder", lambda: {name: str(folder) for name, folder in models().items()}),
    Listed.VARIANTS: (
        "sinkinterp train VARIANT; `change` is against softmax, at the demo's sizes",
        "change",
        lambda: data_of("lm/changes.toml"),
    ),
    Listed.RECIPES: ("sinkinterp train VARIANT --recipe RECIPE --set steps=100", "settings", _settings),
    Listed.EXPERIMENTS: (
        "sinkinterp reproduce EXPERIMENT; the beginning of a name is enough: table07",
        "what it reproduces",
        lambda: {name: summary_of(name) for name in experiment_names()},
    ),
}
