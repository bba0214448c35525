"""Draws figures as PNG pictures."""

import hashlib
import json
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ..errors import InputError
from ..outputs import picture_bytes, write_output
from ..plots.theme import json_ready

SCALE = 2  # pixels of a PNG per point, for screens and print
WIDTH = 1100  # points
END = 12  # bytes of the last chunk of a PNG file


def save_pictures(figures: Mapping[Path, go.Figure], scale: int = SCALE, force: bool = False) -> Iterator[Path]:
    """Writes PNG pictures, each whole or not at all, and gives the paths of those that it wrote, one by one.

    A picture that shows the same numbers already stays as it is: another browser would draw other bytes. scale: pixels
    per point. Raises InputError where kaleido or a browser is missing, and unless `force` for a file that sinkinterp
    did not write.
    """
    paths = [path for path, figure in figures.items() if not _shows(path, _mark(figure, scale))]
    first, others = paths[:1], paths[1:]
    for path in first:  # which says in one line where the browser is missing
        yield _saved(figures[path], path, scale, force)
    with _one_browser() if others else nullcontext():
        for path in others:
            yield _saved(figures[path], path, scale, force)


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


def _saved(figure: go.Figure, path: Path, scale: int, force: bool) -> Path:
    try:
        import_module("kaleido")
    except ImportError as error:
        raise InputError(
            "a picture needs kaleido: pip install kaleido, or leave the pictures out, pictures=False"
        ) from error
    try:
        content = bytes(figure.to_image("png", width=figure.layout.width or WIDTH, scale=scale))
    except RuntimeError as error:
        fix = "install Chrome or Chromium, or run plotly_get_chrome, or leave the pictures out, pictures=False"
        raise InputError(f"a picture is drawn by a browser, and none could be started; {fix}") from error
    write_output(path, picture_bytes(content[:-END] + _mark(figure, scale) + content[-END:]), force)
    return path


def _mark(figure: go.Figure, scale: int) -> bytes:
    """A chunk of a PNG file: the hash of what a figure shows, its numbers rounded to three digits."""
    shown = json.dumps([_rounded(json_ready(figure)), scale], sort_keys=True)
    text = b"tEXtfigure\0" + hashlib.sha256(shown.encode()).hexdigest().encode()
    return (len(text) - 4).to_bytes(4) + text + zlib.crc32(text).to_bytes(4)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _shows(path: Path, mark: bytes) -> bool:
    """Whether a picture exists that holds this mark."""
    return path.is_file() and path.read_bytes()[:-END].endswith(mark)
