"""`python -m experiments NAME [--scale smoke|full]`: train or load, measure, tabulate, draw into figures/."""

import json
import pkgutil
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID

import experiments
from sinkinterp import study
from sinkinterp.table import Table
from sinkinterp.views.page import Section, page

NAMES = [module.name for module in pkgutil.iter_modules(experiments.__path__) if not module.name.startswith("_")]


class Scale(StrEnum):
    """How much of an experiment to run."""

    SMOKE = "smoke"
    FULL = "full"


def run(name: str, scale: str, cache: Path | None = None) -> Table:
    """The experiment's table: every run trained or found, and measured."""
    experiment = import_module(f"experiments.{name}")
    rows, note = [], ""
    with Progress() as progress:
        for label, recipe in experiment.runs(scale):
            bar = progress.add_task(f"{label}, seed {recipe.seed}", total=recipe.steps)
            done = study.trained(recipe, cache, partial(_advance, progress, bar))
            progress.update(bar, completed=recipe.steps)
            rows += experiment.measure(label, done)
            note = experiment.note(done)
    return Table(experiment.CLAIM, note, tuple(rows))


def _advance(progress: Progress, bar: TaskID, step: int, latest: dict[str, float]) -> None:
    progress.update(bar, completed=step)


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    scale: Annotated[Scale, typer.Option(help="smoke: seconds; full: every seed.")] = Scale.FULL,
    out: Annotated[Path, typer.Option(help="Folder of the page and the numbers.")] = Path("figures"),
) -> None:
    """Reproduce one table or figure."""
    if name not in NAMES:
        raise typer.BadParameter(f"there is no experiment {name!r}; choose from {', '.join(NAMES)}")
    table = run(name, scale)
    figure = import_module(f"experiments.{name}").draw(table)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(table.to_dict(), indent=1))
    (out / f"{name}.html").write_text(page(name, table.title, [Section(name, table.note, [figure], [table])]))
    for row in table.words():
        print("  ".join(f"{key}={text}" for key, text in row.items() if text))
    print(table.note)


if __name__ == "__main__":
    typer.run(main)
