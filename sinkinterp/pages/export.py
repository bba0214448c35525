"""Draws figures as pictures: of the gallery, and for papers."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

import plotly.graph_objects as go

from ..checks import finite_number, instance_of
from ..errors import InputError, extra, refusal
from ..files import path_of
from ..guesses import keywords
from ..outputs import csv_bytes, json_bytes, page_bytes, pdf_bytes, picture_bytes, svg_bytes, write_output
from ..report.formats import write_file
from ..report.report import Report
from ..table import Table
from .page import Section, page
from .report import Page

SCALE = 2  # pixels of a PNG per point, for screens and print
WIDTH = 1100  # points
PER_INCH, POINTS = 96, 8  # pixels of an inch, and the size of a paper's letters in points
TOP = 24  # pixels above a paper's figure
DOTS = 300  # of an inch of a PNG for a paper
PICTURES: Mapping[str, Callable[[bytes], bytes]] = {".pdf": pdf_bytes, ".svg": svg_bytes, ".png": picture_bytes}


@keywords
def save(
    what: go.Figure | Table | Report | Page,
    path: Path | str,
    *,
    width: float = 5.5,
    height: float | None = None,
    force: bool = False,
) -> Path:
    """Writes a figure, a table, a report or a page for a paper or a reader, and returns the path::

        si.save(si.attention_map("smollm2", "A cat sat.", heads=[(5, 3)]), "head.pdf", width=3.25)
        si.save(report, "heads.csv")

    .pdf, .svg and .png are pictures without menus and title, of `width` and `height` inches (default: about what it has
    on a screen), with letters of 8 points; of tables and reports, of their figure. .html is a page that can be used
    without a network. .csv and .json, and for reports .safetensors, hold the numbers. Raises InputError for another
    suffix, where kaleido or a browser is missing, and unless `force` for a file that sinkinterp did not write.
    """
    path = path_of(path, "where it is saved")
    suffix = path.suffix.lower()
    if isinstance(what, Page):
        return what.save(path)
    instance_of(what, go.Figure | Table | Report, "si.save takes a figure, a table or a report")
    if suffix in PICTURES:
        drawn = for_paper(what if isinstance(what, go.Figure) else what.plot(), width, height)
        scale = DOTS / PER_INCH if suffix == ".png" else 1
        write_output(path, PICTURES[suffix](_image(drawn, suffix[1:], scale)), force)
    elif suffix in (".html", ".htm"):
        drawn = what if isinstance(what, go.Figure) else what.plot()
        write_output(
            path, page_bytes(page(drawn.layout.title.text or path.stem, "", [Section("", "", [drawn])])), force
        )
    elif isinstance(what, go.Figure):
        raise InputError(f"a figure is not saved as {suffix or 'a file without suffix'}; use .pdf, .svg, .png or .html")
    elif isinstance(what, Report):
        write_file(what, path, force)
    elif suffix == ".csv":
        write_output(path, csv_bytes(what.to_pandas()), force)
    else:
        write_output(path, json_bytes(what.to_dict()), force)
    return path


def for_paper(figure: go.Figure, width: float, height: float | None = None) -> go.Figure:
    """The figure in a size in inches, without title, menus and sliders, with letters of 8 points."""
    on_screen = (figure.layout.height or WIDTH / 2) - (figure.layout.margin.t or 80) + TOP
    columns = sum(axis.scaleanchor is not None for axis in figure.select_yaxes())  # of maps, whose cells are squares
    if columns > 1:
        on_screen = min(on_screen, 0.75 * width * PER_INCH / columns + 130)
    inches = {"width": width, "height": on_screen / PER_INCH if height is None else height}
    for name, size in inches.items():
        finite_number(size, f"{name} of a figure for a paper, in inches,", least=1, most=20)
    drawn, font = without_menus(figure), {"size": POINTS * PER_INCH / 72}
    drawn.layout.title = {}
    drawn.update_layout(
        **{name: size * PER_INCH for name, size in inches.items()}, font=font,
        margin={"l": 8, "r": 8, "t": TOP, "b": 8}, paper_bgcolor="white",
    )  # fmt: skip
    for axes in (drawn.update_xaxes, drawn.update_yaxes):
        axes(tickfont=font, title_font=font, automargin=True)
    drawn.update_coloraxes(
        colorbar={"thickness": 10, "lenmode": "fraction", "len": 1, "tickfont": font, "title": {"font": font}}
    )
    return drawn.update_annotations(font=font)


def without_menus(figure: go.Figure) -> go.Figure:
    """A copy without menus and sliders, and without the room that menus take."""
    drawn, room = go.Figure(figure), 40 * len(figure.layout.updatemenus)
    drawn.layout.updatemenus, drawn.layout.sliders = (), ()
    if room:
        drawn.update_layout(height=figure.layout.height - room, margin={"t": figure.layout.margin.t - room})
    return drawn


def save_pictures(figures: Mapping[Path, go.Figure], force: bool = False) -> Iterator[Path]:
    """Writes PNG pictures without menus, each whole or not at all, and gives their paths.

    Raises InputError where kaleido or a browser is missing, and unless `force` for a file that is not ours.
    """
    with ExitStack() as stack:
        for i, (path, figure) in enumerate(figures.items()):
            if i == 1:  # the first picture says in one line where the browser is missing
                stack.enter_context(_one_browser())
            write_output(path, picture_bytes(_image(without_menus(figure), "png", SCALE)), force)
            yield path


@contextmanager
def _one_browser() -> Iterator[None]:
    """Draws all pictures of the block in one browser: each picture outside of it takes seconds to start its own.

    A browser must be there: kaleido's server waits forever for one that cannot be started.
    """
    kaleido = import_module("kaleido")
    kaleido.start_sync_server(silence_warnings=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")  # plotly passes its defaults
            yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def _image(figure: go.Figure, kind: str, scale: float) -> bytes:
    """The picture of a figure. Raises InputError where kaleido or a browser is missing."""
    extra("kaleido", "pip install kaleido, or leave the pictures out, pictures=False")
    fix = "install Chrome or Chromium, or run plotly_get_chrome, or leave the pictures out, pictures=False"
    with refusal("a picture is drawn by a browser, and none could be started", fix, RuntimeError):
        return bytes(figure.to_image(kind, width=figure.layout.width or WIDTH, scale=scale))
