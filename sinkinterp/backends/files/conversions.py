"""Conversions of GGUF files to model folders, which are kept in the cache: transformers dequantises at every load."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from ...errors import InputError
from ...files import cache_folder, replacing
from ...seals import Of, hashes_in, seal

_KEPT: ContextVar[bool] = ContextVar("_KEPT", default=True)


@contextmanager
def without_cache(is_left_out: bool = True) -> Iterator[None]:
    """In the block, GGUF files are dequantised at every load, and nothing is kept of them."""
    token = _KEPT.set(not is_left_out)
    try:
        yield
    finally:
        _KEPT.reset(token)


def converted(file: Path, convert: Callable[[Path], None]) -> Path | None:
    """The folder with the conversion of a GGUF file, named by the file's SHA-256; `convert` writes it the first time.

    None if conversions are not kept, or if the cache cannot be written. Raises InputError as `convert`.
    """
    if not _KEPT.get():
        return None
    from filelock import FileLock  # here, because it takes a while to import

    folder = cache_folder() / "gguf" / _sha256(file, file.stat().st_mtime_ns)
    of = {"gguf": folder.name}
    if folder.is_dir():
        hashes_in(folder, of)  # the files themselves are checked when they are read
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _write(folder, convert, of)
    except (OSError, InputError):
        return None  # a full or closed disk; what is wrong with the file itself, reading it without the cache says
    return folder


def _write(folder: Path, convert: Callable[[Path], None], of: Of) -> None:
    with replacing(folder) as draft:
        draft.mkdir()
        with without_cache():
            convert(draft)
        seal(draft, of)


@cache
def _sha256(file: Path, changed: int) -> str:
    """The SHA-256 of a file that was last changed at this time."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
