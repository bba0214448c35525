"""Files and folders that are written whole or not at all, whatever stops the program."""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError

_DRAFT = ".draft-"  # a name that no other process shares follows


def cache_folder() -> Path:
    """Where runs, texts and converted models are kept: $SINKINTERP_CACHE, else `sinkinterp` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SINKINTERP_CACHE") or Path(home) / "sinkinterp")


@contextmanager
def replacing(path: Path | str, fix: str = "free some space or choose another place") -> Iterator[Path]:
    """Yields a draft path. When the block ends, the file or folder written there takes the place of `path`.

    Missing parent folders are made. If the block fails, the draft is removed and `path` stays as it was. Links are
    followed. What is neither a file nor a folder (a device, a pipe) is written to, not replaced. Raises InputError,
    ending in `fix`, where the system refuses to write.
    """
    path = Path(path)
    try:
        target = _target(path)
        draft = _draft(target)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {_shown(path)}: {_reason(error)}; {fix}") from error
    try:
        yield draft
        _flush(draft)
        _put(draft, target)
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise  # "(os error" stands in errors of libraries that are written in Rust
        raise InputError(f"cannot write {_shown(path)}: {_reason(error)}; {fix}") from error
    finally:
        remove(draft)


def write_text(path: Path | str, text: str) -> None:
    """Writes a text file (UTF-8), whole or not at all. Raises InputError where the system refuses."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_bytes(path: Path | str, data: bytes) -> None:
    """Writes a file, whole or not at all. Raises InputError where the system refuses."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_json(path: Path | str, value: Any, indent: int | None = None) -> None:
    """Writes a JSON file, whole or not at all. Raises InputError where the system refuses."""
    write_text(path, json.dumps(value, indent=indent))


def check_writable(path: Path | str) -> None:
    """Raises InputError where a file cannot be written: call it before minutes of work."""
    path = Path(path)
    try:
        target = _target(path)
        draft = _draft(target)
        if target.is_dir():
            raise IsADirectoryError("there is a folder of that name")
        if not _is_stream(target):
            draft.touch()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {_shown(path)}: {_reason(error)}; choose another place") from error
    remove(draft)


def remove(path: Path) -> None:
    """Removes a file or a folder with all that it holds, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Removes the drafts that killed programs left in a folder. Only its one writer may call this."""
    for draft in folder.glob(f"{_DRAFT}*"):
        remove(draft)


def sync(folder: Path) -> None:
    """Makes the names in a folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _target(path: Path) -> Path:
    """The place to write to, its folder made. Raises OSError or ValueError where there can be none."""
    if not path.name:
        raise IsADirectoryError("this is a folder, not a file")
    target = path.resolve()
    os.fsencode(target)
    if len(os.fsencode(target.name)) > 255:
        raise OSError("the name is too long")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _draft(target: Path) -> Path:
    folder = Path(tempfile.gettempdir()) if _is_stream(target) else target.parent
    return folder / f"{_DRAFT}{os.getpid()}-{secrets.token_hex(4)}"


def _is_stream(target: Path) -> bool:
    return target.exists() and not target.is_file() and not target.is_dir()


def _put(draft: Path, target: Path) -> None:
    if _is_stream(target):
        with draft.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        return
    if draft.is_dir() and target.is_dir():
        raise FileExistsError("the folder exists already")
    draft.replace(target)
    sync(target.parent)


def _flush(draft: Path) -> None:
    for path in draft.rglob("*") if draft.is_dir() else (draft,):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    if draft.is_dir():
        sync(draft)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _shown(path: Path) -> str:
    """A path on one line, of a length that can be read."""
    text = str(path).encode("unicode_escape").decode("ascii") if not str(path).isprintable() else str(path)
    return repr(text) if not path.name else text if len(text) <= 200 else f"{text[:100]}...{text[-50:]}"
