"""The commands that run experiments, and that judge and draw their numbers again."""

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InputError, each_once, refusal
from ..data.progress import progress_bars
from ..runs.catalogue import Scale, experiment_names, full_name, summary_of
from ..seals import check_ours
from . import options
from .terminal import OR_FORCE, deliver, print_line, print_table, print_text, print_written

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..pages.book import Chapter
    from ..runs.case import Named
    from ..runs.experiment import Experiment, Scope
    from ..runs.trained import Trainable
    from ..runs.workers import Workers
    from ..table import Table


TIMES = {"processor seconds": "of processor time", "seconds": "by the clock"}  # older chapters have the second alone
COMPLETION = options.beginning(experiment_names)


@dataclass(frozen=True)
class Models:
    """The models that are measured in place of an experiment's own, and how they are loaded."""

    model: Annotated[list[str], typer.Option(parser=options.source)] = field(default_factory=list)
    encoder: options.Encoder = None
    device_map: options.DeviceMap = None

    def loaded(self) -> Sequence["str | Named"]:
        """The models, each with the input of its encoder."""
        from ..backends.encoder import encoder_input
        from ..runs.case import Named

        each_once(self.model, "--model")
        options.check_used("--encoder", self.encoder, "--model", self.model or None)
        return self.model if self.encoder is None else [Named(name, encoder_input(self.encoder)) for name in self.model]


@dataclass(frozen=True)
class Runs:
    """How experiments are run."""

    scale: Annotated[Scale | None, typer.Option(show_default="demo, real where made, else smoke")] = None
    seeds: Annotated[int, typer.Option(parser=options.SEEDS)] = 5
    text: Annotated[str | None, typer.Option(parser=options.source)] = None
    settings: options.Settings = field(default_factory=list)
    ray: options.OnRay = None


def reproduce(
    names: Annotated[list[str], typer.Argument(parser=options.filled, autocompletion=COMPLETION)],
    other: Models = Models(),
    how: Runs = Runs(),
    dry_run: bool = False,
    out: Annotated[Path, typer.Option(parser=options.output_folder)] = Path("figures/book"),
    save: options.Save = None,
    force: bool = False,
) -> None:
    """Reproduce tables and figures of a paper: numbers beside the published ones, and a verdict on every claim.

    Writes NAME.json and NAME.html for each (NAME_text and NAME_paper at these scales, beside those of toys), and
    index.html with the verdicts of all that lie in the folder.
    """
    with progress_bars(in_lines=True) as progress:
        from ..pages.book import check_plotly, files_of, stem_of
        from ..runs import experiment as experiments

        scale, is_all = how.scale, list(names) == ["all"]
        _check_inputs(other.model, scale, how.text, None if len(names) == 1 and not is_all else save)
        given = experiment_names() if is_all else dict.fromkeys(map(full_name, names))
        loaded = {name: experiments.load_experiment(name) for name in given}
        chosen = {name: each for name, each in loaded.items() if not is_all or scale in (None, *each.scales)}
        stems = [stem_of(name, None if other.model else scale) for name in chosen]
        check_ours(files_of(out, stems), OR_FORCE, force or dry_run)
        check_plotly(out)
        models, left_out = other.loaded(), list[str]()
        trainers, measurers = _workers(how.ray, scale is Scale.PAPER, other.device_map is not None)
        costs: list[tuple[Sequence[Trainable], float, str]] = []
        where: dict[str, Any] = {"workers": trainers, "measurers": measurers, "device_map": other.device_map}
        asked = {"models": models, "seeds": how.seeds, "text": how.text, "settings": how.settings, **where}
        for name, experiment in chosen.items():
            scope = experiments.Scope(scale or experiment.default_scale(), **asked, progress=progress)
            try:
                experiments.check_scope(name, experiment, scope)
                if is_all:
                    experiments.check_default(experiment, scope, scale)
                command = _command(name, scope, other.encoder)
                if dry_run:
                    costs.append(_print_cost(name, experiment, scope, out, command))
                else:
                    _write_chapter(name, experiment, scope, out, command, save, force)
            except InputError as error:  # of `all`, those that can run do
                if not is_all:
                    raise
                left_out.append(f"{name}: {error}")
        if dry_run and len(chosen) > 1:
            print_text(f"all of them, shared runs once: {_total(costs, out)}")
        for reason in left_out:
            print_line(f"left out: {reason}")


def _check_inputs(models: Sequence[str], scale: Scale | None, text: str | None, one_file: Path | None) -> None:
    """Raises InputError for a text that cannot be read, models at a scale that has its own, and one file for several.

    one_file: where the table or figure of several experiments would be written.
    """
    from ..backends.files.model_files import check_named

    for model in models if len(models) > 1 else ():  # one alone says so as it is loaded
        check_named(model)
    options.check_text(text)
    if one_file is not None:
        raise InputError("--save writes the table or the figure of one experiment; leave it out, or name one")
    if models and scale is Scale.SMOKE:
        fix = f"leave one of them out, as in `sinkinterp reproduce table07 --model {models[0]}`"
        raise InputError(f"--scale smoke runs what ships, and --model names another one; {fix}")


def _workers(ray: str | None, are_large: bool, are_placed: bool) -> tuple["Workers", "Workers"]:
    """Returns where models are trained and where they are measured.

    A run of the paper's size and a model with a device map get a GPU each. Without Ray they come one after the other.
    """
    from ..runs.workers import Here, Processes, Ray

    if ray is not None:
        return Ray(ray, gpus=int(are_large)), Ray(ray, gpus=int(are_placed))
    return Processes(1) if are_large else Processes(), Here()


def _print_cost(
    name: str, experiment: "Experiment", scope: "Scope", out: Path, command: str
) -> tuple[Sequence["Trainable"], float, str]:
    """Prints what a chapter costs. Returns its trainings, and what it took in hours and words."""
    from ..runs.experiment import OnModels

    recipes, words = experiment.recipes(scope), list[str]()
    if isinstance(experiment.rows, OnModels):
        given = [str(model) for model in experiment.rows.chosen(scope) if model not in recipes]
        words += [f"measures {', '.join(dict.fromkeys(given)) or 'what it trains'}"]
    if recipes or not words:
        words += [cost_text(recipes, scope.cache)]
    hours, of, machine = _took(out, name, scope, command)
    words += [f"the chapter in {out} took {hours:.2f} hours {of} on {machine}"] if machine else []
    print_text(f"{name} at scale {scope.label}: {'; '.join(words)}")
    return recipes, hours, of


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


def _total(costs: Sequence[tuple[Sequence["Trainable"], float, str]], out: Path) -> str:
    """The cost of several chapters: their trainings, and the time that the chapters of the folder took."""
    trained = [recipe for recipes, *_ in costs for recipe in recipes]
    sums = {of: sum(hours for _, hours, how in costs if how == of) for of in TIMES.values()}
    taken = " and ".join(f"{hours:.2f} hours {of}" for of, hours in sums.items() if hours)
    measured = [f"the chapters in {out} took {taken}"] if taken else []
    return "; ".join([cost_text(trained, None), *measured] if trained or not measured else measured)


def _took(folder: Path, name: str, scope: "Scope", command: str) -> tuple[float, str, object]:
    """The hours that this command took for the chapter of the folder, of what, and where.

    0 hours and None if another command made it.
    """
    from ..pages.book import chapter_in, stem_of

    file = folder / f"{stem_of(name, scope.label)}.json"
    with suppress(InputError):  # what is damaged is made again
        made = chapter.provenance if file.is_file() and (chapter := chapter_in(file)) else {}
        if made.get("command") == command:
            for unit, of in TIMES.items():
                if isinstance(seconds := made.get(unit), int | float):
                    return seconds / 3600, of, made.get("machine")
    return 0.0, "", None


def _write_chapter(
    name: str, experiment: "Experiment", scope: "Scope", out: Path, command: str, save: Path | None, force: bool
) -> None:
    from ..files import check_writable
    from ..pages.book import Chapter, stem_of, verdict_table, write_chapter
    from ..pages.report import PAGES, PICTURES, content
    from ..runs.experiment import provenance

    for ending in ("json", "html"):
        check_writable(out / f"{stem_of(name, scope.label)}.{ending}")
    start = time.perf_counter(), sum(os.times()[:4])  # processor seconds: of this process and of its children
    table = experiment.table(scope)
    took = time.perf_counter() - start[0], sum(os.times()[:4]) - start[1]
    times = {"seconds": round(took[0], 1), "processor seconds": round(took[1], 1)}
    made = {"command": command, "scale": scope.label, **provenance(), **times}
    chapter = Chapter(name, summary_of(name), table, experiment.verdicts(table, scope.label), made)
    digest = experiment.digest(table)
    figure = experiment.draw(table)
    written = write_chapter(out, chapter, digest, figure, force)
    print_table(replace(digest, title=chapter.title))
    print_table(verdict_table(chapter))
    for file in written:
        print_written(file)
    suffix = "" if save is None else save.suffix.lower()
    deliver([], (save, lambda: content(figure if suffix in (*PAGES, *PICTURES) else table, suffix)), force=force)


def _command(name: str, scope: "Scope", encoder: str | None) -> str:
    """The command that makes the same numbers, with every option that changes them."""
    models = (word for model in scope.models for word in ("--model", str(model)))
    text = () if scope.text is None else ("--text", scope.text)
    given = () if encoder is None else ("--encoder", encoder)
    is_other = bool(scope.models) and scope.scale is Scale.SMOKE  # the default where no models are made
    size = (*(() if is_other else ("--scale", scope.scale)), "--seeds", str(scope.seeds))
    changes = (word for setting in scope.settings for word in ("--set", setting))
    return shlex.join(("sinkinterp", "reproduce", name, *size, *text, *models, *given, *changes))


def book(
    folder: Annotated[Path, typer.Argument(parser=options.output_folder)] = Path("figures/book"), force: bool = False
) -> None:
    """Judge and draw a book of experiments again, from its numbers, by the rules of today. Nothing is measured."""
    with progress_bars() as progress:
        from ..pages.book import chapters_in, check_plotly, write_front_pages, write_numbers, write_page

        chapters = chapters_in(folder)
        check_plotly(folder)
        judged = [_judged(chapter, folder) for chapter in chapters]  # all of them, before anything is written
        on_page = progress("drawing pages")
        for i, (chapter, digest, figure) in enumerate(judged, 1):
            write_numbers(folder, chapter, True)
            write_page(folder, chapter, digest, figure, True)
            on_page(i, len(chapters))
        for page in write_front_pages(folder, force):
            print_written(page)


def story(
    folder: Annotated[Path, typer.Argument(parser=options.output_folder)] = Path("figures/book"),
    out: options.Out = Path("figures/story.html"),
    force: bool = False,
) -> None:
    """Write the story that a book's numbers tell: one page with live figures, which needs no network."""
    from ..pages.book import STORY, chapters_in, files_of, story_page

    chapters = chapters_in(folder)
    others = [file for file in files_of(folder, [chapter.stem for chapter in chapters]) if file.name != STORY]
    if out.resolve() in [file.resolve() for file in others]:
        raise InputError(f"{out} is another page of the book; choose another place for the story")
    deliver([], (out, lambda: story_page(chapters)), force=force)


def _judged(written: "Chapter", folder: Path) -> tuple["Chapter", "Table", "go.Figure"]:
    """A chapter by the rules of today, its digest and its figure. Raises InputError for rows of something else."""
    from ..runs.experiment import load_experiment

    experiment = load_experiment(written.name)
    table = replace(written.table, title=experiment.claim)
    what = f"{folder / written.stem}.json does not hold the rows of {written.name}"
    with refusal(what, "reproduce it again", (InputError, Exception)):  # rows of something else can fail in any way
        verdicts = experiment.verdicts(table, written.scale)
        return replace(written, table=table, verdicts=verdicts), experiment.digest(table), experiment.draw(table)
