"""Draws figures as PNG pictures."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

import plotly.graph_objects as go

from ..errors import InputError
from ..files import write_bytes

SCALE = 2  # pixels of a PNG per point, for screens and print
WIDTH = 1100  # points


def save_pictures(figures: Mapping[Path, go.Figure], scale: int = SCALE) -> Iterator[Path]:
    """Writes PNG pictures, each whole or not at all, and gives their paths one by one.

    scale: pixels per point. Raises InputError where kaleido or a browser is missing.
    """
    paths = list(figures)
    first, others = paths[:1], paths[1:]
    for path in first:  # which says in one line where the browser is missing
        yield _saved(figures[path], path, scale)
    with _one_browser() if others else nullcontext():
        for path in others:
            yield _saved(figures[path], path, scale)


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


def _saved(figure: go.Figure, path: Path, scale: int) -> Path:
    try:
        import_module("kaleido")
    except ImportError as error:
        raise InputError("a picture needs kaleido: pip install 'sinkinterp[export]', or add --no-pictures") from error
    try:
        content = bytes(figure.to_image("png", width=figure.layout.width or WIDTH, scale=scale))
    except RuntimeError as error:
        fix = "install Chrome or Chromium, or run plotly_get_chrome, or add --no-pictures"
        raise InputError(f"a picture is drawn by a browser, and none could be started; {fix}") from error
    write_bytes(path, content)
    return path
