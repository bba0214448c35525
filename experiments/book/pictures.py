"""The pictures that RESULTS.md and the pages show, drawn from stored rows."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

import plotly.graph_objects as go

from sinkinterp.applications.eviction import losses_figure
from sinkinterp.applications.quantising import quantisation_figure
from sinkinterp.pages.report import save
from sinkinterp.plots.theme import GREY, sweep_figure
from sinkinterp.runs.experiment import load_experiment
from sinkinterp.runs.trained import Panel, training
from sinkinterp.table import ALPHA_1, EDIT, MODEL, SINK_1, Table

from .cells import BOOK, with_names
from .chapter import chapter_in

MEASURED = BOOK.parent / "measured"  # tables of one measurement each


def _rows(stem: str, title: str, **where: object) -> Table:
    """The rows of a chapter that `where` chooses, with short names of models."""
    chapter = chapter_in(BOOK / f"{stem}.json")
    assert chapter is not None, stem
    rows = [row for row in chapter.table.records() if all(row.get(name) == value for name, value in where.items())]
    return with_names(Table.of(title, chapter.table.note, rows))


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


def _of_chapter(stem: str) -> Callable[[], go.Figure]:
    """What draws the figure of a chapter."""

    def draw() -> go.Figure:
        chapter = chapter_in(BOOK / f"{stem}.json")
        assert chapter is not None, stem
        return load_experiment(chapter.name).draw(chapter.table)

    return draw


def _measured(stem: str) -> Table:
    return Table.from_dict(json.loads((MEASURED / f"{stem}.json").read_text(encoding="utf-8")))


def _without_bos() -> go.Figure:
    length = 64  # of the texts
    figure = training(_measured("without_bos_curves"), (Panel(ALPHA_1, f"{ALPHA_1}, mean of three seeds"),))
    return figure.add_hline(fmean(1 / seen for seen in range(1, length + 1)), line={"color": GREY, "dash": "dot"})


def _mended() -> go.Figure:
    quantities = (SINK_1, "loss", "largest entry / median")
    figure = sweep_figure(_measured("mended_smollm2"), "tokens", quantities, by="run")
    figure.update_yaxes(rangemode="normal", col=2)
    return figure.update_yaxes(type="log", dtick=1, exponentformat="power", col=3)


def _cache() -> go.Figure:
    return losses_figure(_measured("smollm2_cache_losses").where(positions="of the text"))


def _mask() -> go.Figure:
    return quantisation_figure(_measured("smollm2_mask_activations"))


PICTURES: Mapping[str, Callable[[], go.Figure]] = {
    "inputs": _inputs,
    "massive": _massive,
    "hidden": _hidden,
    "over_mixing": _over_mixing,
    "biases": _biases,
    "moved": _moved,
    "place": _place,
    "slots_text": _of_chapter("figure07_slots_text"),
    "remedies_text": _of_chapter("remedies_text"),
    "rounded_caches": _of_chapter("rounded_caches_text"),
    "without_bos": _without_bos,
    "mended_smollm2": _mended,
    "smollm2_cache": _cache,
    "smollm2_mask": _mask,
}
HEIGHT = 4.5  # inches
HEIGHTS = {
    "remedies_text": 7.5, "without_bos": 3.8, "smollm2_cache": 3.3, "mended_smollm2": 3.0, "slots_text": 3.2,
    "rounded_caches": 3.2, "smollm2_mask": 3.8,
}  # fmt: skip


def write(folder: Path) -> list[Path]:
    """Writes the pictures. Raises InputError without a browser to draw them."""
    files = {name: folder / f"{name}.png" for name in PICTURES}
    for name, file in files.items():
        save(PICTURES[name](), file, width=7.5, height=HEIGHTS.get(name, HEIGHT))
    return list(files.values())
