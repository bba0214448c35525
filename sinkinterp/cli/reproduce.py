"""The command that runs experiments."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..files import write_json, write_text
from .options import DeviceMap
from .terminal import plain_errors, print_table, print_written, progress_bar, progress_bars, quiet_libraries

MODEL = "Run it on this model instead: a Hugging Face name, folder, or one of ours; repeatable."
SCALE = "smoke: models that ship, seconds. real: models of `make models`. full: all models, trained or downloaded."
TEXT = "Natural input: file, folder or dataset; by default the embedded docstrings, or the task of a model of ours."


class Scale(StrEnum):
    """Which models an experiment runs on."""

    SMOKE = "smoke"
    REAL = "real"
    FULL = "full"


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or a beginning of its name that no other one has.")],
    model: Annotated[list[str], typer.Option(help=MODEL)] = [],
    scale: Annotated[Scale | None, typer.Option(help=SCALE, show_default="real where it was made, else smoke")] = None,
    text: Annotated[str | None, typer.Option(help=TEXT)] = None,
    out: Annotated[Path, typer.Option(help="Folder of the page and the numbers.")] = Path("figures"),
    device_map: DeviceMap = None,
) -> None:
    """Reproduce one table or figure of a paper: numbers beside the published ones, as NAME.json and NAME.html."""
    with plain_errors(), progress_bars() as progress:
        from ..pages.page import Section, page
        from ..runs import experiment as experiments

        quiet_libraries()
        full_name = experiments.full_name(name)
        experiment = experiments.load_experiment(full_name)
        models = model or experiments.models_of(experiment, scale)
        on_work = partial(progress_bar, progress)
        table = experiments.reproduce(experiment, models, on_work, device_map=device_map, text=text)
        shown = experiments.without_constant_names(table)
        html = page(full_name, table.title, [Section("Figure and table", "", [experiment.draw(table)], [shown])])
    print_table(shown)
    numbers, figures = out / f"{full_name}.json", out / f"{full_name}.html"
    write_json(numbers, table.to_dict(), indent=1)
    print_written(numbers)
    write_text(figures, html)
    print_written(figures)
