"""Writes figures and tables to files: pages, data or pictures. The suffix of the file says which."""

import csv
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ..errors import InputError
from ..files import write_bytes
from ..plots.jsonable import json_ready
from ..table import Table
from .page import Section, page

SCALE = 2  # pixels of a PNG per point, for screens and print
WIDTH = 1100  # points


def save_figure(figure: go.Figure, path: Path | str) -> Path:
    """Writes a figure to .html (a self-contained page), .json (data and layout), .png, .svg or .pdf; returns the path.

    The file is written whole or not at all. Raises InputError for another suffix, and for pictures
    where kaleido or a browser is missing.
    """
    return _saved(_FIGURES, figure, Path(path))


def save_table(table: Table, path: Path | str) -> Path:
    """Writes a table to .csv (every column as it is), .json (with title and note) or .html; returns the path.

    The file is written whole or not at all. Raises InputError for another suffix.
    """
    return _saved(_TABLES, table, Path(path))


def save_pictures(figures: Mapping[Path, go.Figure], scale: int = SCALE) -> Iterator[Path]:
    """Writes PNG pictures, and gives their paths one by one.

    scale: pixels per point. Raises InputError where kaleido or a browser is missing.
    """
    paths = list(figures)
    first, others = paths[:1], paths[1:]
    for path in first:  # which says in one line where the browser is missing
        yield _saved(_pictures(scale), figures[path], path)
    with _one_browser() if others else nullcontext():
        for path in others:
            yield _saved(_pictures(scale), figures[path], path)


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


def _saved(writers: Mapping[str, Callable[[Any], bytes]], value: Any, path: Path) -> Path:
    if path.suffix not in writers:
        raise InputError(f"cannot write {path.name}: the suffix {path.suffix!r} is none of {', '.join(writers)}")
    content = writers[path.suffix](value)
    write_bytes(path, content)
    return path


def _figure_page(figure: go.Figure) -> bytes:
    title = unescape(figure.layout.title.text or "Figure")  # titles are escaped for Plotly, and the page escapes again
    return page(title, "", [Section("", "", [figure])]).encode()


def _figure_json(figure: go.Figure) -> bytes:
    return json.dumps(json_ready(figure), indent=1, allow_nan=False).encode()


def _pictures(scale: int) -> Mapping[str, Callable[[go.Figure], bytes]]:
    """What draws each kind of picture, with so many pixels per point."""
    return {f".{kind}": _picture(kind, scale) for kind in ("png", "svg", "pdf")}


def _picture(kind: str, scale: int) -> Callable[[go.Figure], bytes]:
    def draw(figure: go.Figure) -> bytes:
        try:
            import_module("kaleido")
        except ImportError as error:
            raise InputError(f"a .{kind} needs kaleido: pip install 'sinkinterp[export]', or write .html") from error
        try:
            return bytes(figure.to_image(kind, width=figure.layout.width or WIDTH, scale=scale))
        except RuntimeError as error:
            fix = "install Chrome or Chromium, or run plotly_get_chrome, or write .html"
            raise InputError(f"a .{kind} is drawn by a browser, and none could be started; {fix}") from error

    return draw


def _table_csv(table: Table) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, table.columns)
    writer.writeheader()
    writer.writerows(dict(row) for row in table.rows)
    return text.getvalue().encode()


def _table_json(table: Table) -> bytes:
    return json.dumps(table.to_dict(), indent=1, allow_nan=False).encode()


def _table_page(table: Table) -> bytes:
    return page(table.title, "", [Section("", table.note, tables=[table])]).encode()


_FIGURES: Mapping[str, Callable[[go.Figure], bytes]] = {
    ".html": _figure_page,
    ".json": _figure_json,
    **_pictures(SCALE),
}
_TABLES: Mapping[str, Callable[[Table], bytes]] = {".csv": _table_csv, ".json": _table_json, ".html": _table_page}
