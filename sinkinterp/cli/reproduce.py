"""The command that runs experiments: parses, calls, prints. No maths."""

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .terminal import bar, plain_errors, progress_bars, quiet_libraries, show, write


class Scale(StrEnum):
    """Which models an experiment runs on."""

    SMOKE = "smoke"
    FULL = "full"


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or as much of its name as tells it from the others.")],
    model: Annotated[
        str | None, typer.Option(help="Run it on this model instead: a Hugging Face name, folder, or one of ours.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="smoke: models that ship, seconds. full: all, trained or downloaded, minutes.")
    ] = Scale.SMOKE,
    out: Annotated[Path, typer.Option(help="Folder of the page and the numbers.")] = Path("figures"),
    device_map: Annotated[str | None, typer.Option(help="Where weights go, as in transformers: auto, cuda:0.")] = None,
) -> None:
    """Reproduce one table or figure of a paper: numbers beside the published ones, as NAME.json and NAME.html."""
    with plain_errors(), progress_bars() as progress:
        from ..pages.page import Section, page
        from ..runs import experiment as experiments

        quiet_libraries()
        full = experiments.full_name(name)
        experiment = experiments.load_experiment(full)
        models = experiment.MODELS[scale] if model is None else [model]
        table = experiments.reproduce(experiment, models, partial(bar, progress), device_map=device_map)
        html = page(full, table.title, [Section(full, table.note, [experiment.draw(table)], [table])])
    show(experiments.without_constant_names(table))
    write(out / f"{full}.json", json.dumps(table.to_dict(), indent=1))
    write(out / f"{full}.html", html)


def mount(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    app.command()(reproduce)
