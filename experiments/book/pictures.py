"""The pictures that RESULTS.md and the pages show, drawn from stored rows."""

from collections.abc import Callable, Mapping
from pathlib import Path

import plotly.graph_objects as go

from sinkinterp.pages.report import save
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import load_experiment
from sinkinterp.table import EDIT, MODEL, SINK_1, Table

from .cells import BOOK, NAMES
from .chapter import chapter_in


def _rows(stem: str, title: str, **where: object) -> Table:
    """The rows of a chapter that `where` chooses, with short names of models."""
    chapter = chapter_in(BOOK / f"{stem}.json")
    assert chapter is not None, stem
    rows = [row for row in chapter.table.records() if all(row.get(name) == value for name, value in where.items())]
    return Table.of(
        title,
        chapter.table.note,
        tuple({**row, MODEL: NAMES.get(str(row[MODEL]), str(row[MODEL]).rpartition("/")[2])} for row in rows),
    )


def _inputs() -> go.Figure:
    table = _rows("table01_inputs", "Sink_1 by input", BOS="none")
    return sweep_figure(table, "input", (SINK_1,), by=MODEL)


ON_ITS_PAGE_ALONE = (
    "massive entries to zero before all blocks",
    "massive entries and the next largest",
    "massive entries moved",
    "as long as the other tokens",
)


def _massive() -> go.Figure:
    table = _rows("removing_massive", "The first token's massive entries at zero before every block")
    drawn = table.with_rows(row for row in table.records() if not str(row[EDIT]).startswith(ON_ITS_PAGE_ALONE))
    return sweep_figure(drawn, EDIT, (SINK_1, "loss change"), by=MODEL)


COSTS = {
    "loss, first token hidden in all layers": "the first, in all layers",
    "loss, first token hidden behind its writer": "the first, behind its writer",
    "loss, 11th hidden in all layers": "the 11th, in all layers",
    "loss, 11th hidden behind that writer": "the 11th, behind that writer",
}


def _hidden() -> go.Figure:
    table = _rows("atlas_of_models", "What hiding a token costs, in nats")
    ends = ("", " low", " high")
    rows = [
        {MODEL: row[MODEL], "token hidden": words, **{f"added loss{end}": row[f"{name}{end}"] for end in ends}}
        for row in table.records()
        for name, words in COSTS.items()
    ]
    return sweep_figure(table.with_rows(rows), "token hidden", ("added loss",), by=MODEL)


def _over_mixing() -> go.Figure:
    return load_experiment("over_mixing").draw(_rows("over_mixing", ""))


def _biases() -> go.Figure:
    table = _rows("what_biases_do", "Biases set to zero, and moved as far at random", row="edit", layers="all")
    rows = [{**row, EDIT: f"{row[EDIT]}, {row['part']}"} for row in table.records() if "b_Q" in str(row[EDIT])]
    return sweep_figure(table.with_rows(rows), EDIT, (SINK_1, "massive tokens"))


def _moved() -> go.Figure:
    table = _rows("moved_sink", "A slot with the first token's key and value", layer=None)
    return sweep_figure(table, EDIT, (SINK_1, "added loss"), by=MODEL)


def _place() -> go.Figure:
    return load_experiment("place_or_token").draw(_rows("place_or_token", "Token 11 sees itself alone"))


PICTURES: Mapping[str, Callable[[], go.Figure]] = {
    "inputs": _inputs,
    "massive": _massive,
    "hidden": _hidden,
    "over_mixing": _over_mixing,
    "biases": _biases,
    "moved": _moved,
    "place": _place,
}


def write(folder: Path) -> list[Path]:
    """Writes the pictures. Raises InputError without a browser to draw them."""
    files = {folder / f"{name}.png": draw for name, draw in PICTURES.items()}
    for file, draw in files.items():
        save(draw(), file, width=7.5, height=4.5)
    return list(files)
