"""Writing files and folders whole or not at all, even when the program is killed, and only over what is ours."""

import hashlib
import json
import os
import platform
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from .checks import InputError, instance_of, reason_of, refusal

T = TypeVar("T")
_NAME_BYTES = 255  # the longest name that common file systems allow
_DRAFT = ".draft-"  # a name that no other process shares follows
_OUTPUT = 1  # the file descriptor of the standard output
_SWEPT: set[Path] = set()  # folders in which this process has removed the drafts of dead ones


def cache_folder() -> Path:
    """The folder of runs, texts and models: $SINKINTERP_CACHE, else `sinkinterp` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SINKINTERP_CACHE") or Path(home) / "sinkinterp").expanduser()


@contextmanager
def replacing(
    path: Path | str, fix: str = "free some space or choose another place", check: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yields a draft path. When the block ends, the file or folder written there takes the place of `path`.

    Missing parent folders are made, links are followed, and a file keeps its permissions. If the block fails, the
    draft is removed and `path` stays as it was. A folder never replaces another one. A device, a pipe and the standard
    output are written to and not replaced. `check` is called just before the draft takes its place, and may refuse.
    Raises InputError, which ends in `fix`, where the system refuses to write.
    """
    with _write_errors(path, fix):
        target = _target(Path(path))
        _make_folder(target.parent)
        _remove_drafts_of_the_dead(target.parent)
        draft = _draft(target)
        try:
            yield draft
            _flush(draft)
            check()
            _publish(draft, target)
        finally:
            remove(draft)


def data_of(name: str, **words: str) -> dict[str, Any]:
    """What a TOML file of this package holds, such as "cli/help.toml", with `words` in place of $word."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return tomllib.loads(Template(text).safe_substitute(words))


def write_text(path: Path | str, text: str) -> None:
    """Writes a text file (UTF-8), whole or not at all. Raises InputError where the system refuses."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any, indent: int | None = None) -> None:
    """Writes a JSON file, whole or not at all. Raises InputError where the system refuses."""
    write_text(path, json.dumps(value, indent=indent))


def check_writable(path: Path | str) -> None:
    """Raises InputError where a file cannot be written. Call it before minutes of work. It leaves nothing behind."""
    with _write_errors(path, "choose another place"):
        target = _target(Path(path))
        if target.is_dir():
            raise OSError("there is a folder of that name")
        if not _is_stream(target):
            draft = _draft(next(place for place in (target, *target.parents) if place.parent.exists()))
            draft.touch()
            remove(draft)


def path_of(given: Any, what: str) -> Path:
    """Returns what was given, as a path. Raises InputError, which calls it `what`, for anything else."""
    return Path(instance_of(given, str | os.PathLike, f"{what} is a path"))


def by_suffix(suffix: str, formats: Mapping[str, T], what: str, *others: str, fix: str = "") -> T:
    """The value of a suffix in a table of formats. Raises InputError, which names the known ones, for another."""
    if suffix not in formats:
        known = ", ".join(filter(None, (*formats, *others)))
        raise InputError(f"{what} is not saved as {suffix or 'a file without suffix'}; use {known}{fix}")
    return formats[suffix]


def check_holds(folder: Path, name: str, fix: str) -> None:
    """Raises InputError, which says the fix, where a folder has no file of that name."""
    if not (folder / name).is_file():
        raise InputError(f"{folder} holds no {name}; {fix}")


def check_is_file(path: Path) -> None:
    """Raises InputError where there is no file at a path."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")


@contextmanager
def sole_writer(folder: Path, fix: str = "choose another place") -> Iterator[None]:
    """Makes a folder and locks it: other processes that call this with the same folder wait until the block ends.

    The drafts that killed programs left in the folder are removed first, and the lock at the end where nothing else is
    there. Raises InputError, which ends in `fix`, where
    the system refuses.
    """
    from filelock import FileLock  # here, because it takes a tenth of a second to import

    with refusal(f"cannot write to {shown_path(folder)}", fix, OSError):
        _make_folder(folder)
        lock = FileLock(folder / "lock")
        lock.acquire()
        while not (folder / "lock").exists():  # the writer before us left nothing, and removed it
            lock.release()
            lock.acquire()
    try:
        remove_drafts(folder)
        yield
    finally:
        with suppress(OSError):  # the folder may be gone, and Windows removes no open file
            if [path.name for path in folder.iterdir()] == ["lock"]:
                remove(folder / "lock")
        lock.release()


def remove(path: Path) -> None:
    """Removes a file or a folder with everything in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_whole(path: Path) -> None:
    """Removes a file or a folder. A kill on the way leaves a draft, never half of a folder under its name."""
    remove(path.rename(_draft(path)))


def set_aside(path: Path) -> Path:
    """Renames a damaged file or folder to damaged-NAME, in place of an earlier one. Returns its new path."""
    aside = path.with_name(f"damaged-{path.name}")
    with _write_errors(aside, "remove it by hand"):
        remove(aside)
        path.rename(aside)
    return aside


def remove_drafts(folder: Path) -> None:
    """Removes the drafts that killed programs left in a folder. Only its one writer may call this."""
    for draft in folder.glob(f"{_DRAFT}*"):
        remove(draft)


def _remove_drafts_of_the_dead(folder: Path) -> None:
    """Removes the drafts of this machine's dead processes; once, since a folder may hold many files."""
    if folder in _SWEPT or os.name != "posix":
        return
    _SWEPT.add(folder)
    for draft in folder.glob(f"{_DRAFT}{_machine()}-*"):
        process = draft.name.removeprefix(f"{_DRAFT}{_machine()}-").partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            remove(draft)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it is of another user
    return True


@cache
def _machine() -> str:
    """Tells machines, and containers, that share a folder apart: each has process numbers of its own."""
    try:
        container = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        container = 0
    return hashlib.sha256(f"{platform.node()} {container}".encode()).hexdigest()[:8]


@contextmanager
def _write_errors(path: Path | str, fix: str) -> Iterator[None]:
    """Turns a refusal of the system into an InputError that names the path, the reason and the fix."""
    try:
        yield
    except Exception as error:
        # safetensors and tokenizers are written in Rust; their errors are not OSErrors, but say "(os error 28)"
        if isinstance(error, InputError) or not (isinstance(error, OSError) or "(os error " in str(error)):
            raise
        raise InputError(f"cannot write {shown_path(Path(path))}: {reason_of(error)}; {fix}") from error


def _target(path: Path) -> Path:
    """The place to write to. Raises OSError for a place where nothing can be written."""
    if not path.name:
        raise OSError("this is a folder, not a file")
    try:
        if _is_stream(path):
            return path  # /dev/stdout links to a pipe that has no path of its own
        target = Path(os.path.realpath(path))
        longest = max(len(os.fsencode(part)) for part in target.parts)
    except ValueError as error:  # a null byte, or a character that file names cannot have
        raise OSError("this is not a file name") from error
    if longest > _NAME_BYTES:
        raise OSError("the name is too long")
    if any(place.is_symlink() for place in (target, *target.parents)):
        raise OSError("the link leads back to itself")
    if target.exists() and not os.access(target, os.W_OK):
        raise OSError("it is read-only")  # the folder may allow a rename over it, which would ignore this
    return target


def _draft(target: Path) -> Path:
    """A new path beside the target, or in the temporary folder for a device or a pipe."""
    folder = Path(tempfile.gettempdir()) if _is_stream(target) else target.parent
    return folder / f"{_DRAFT}{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_stream(path: Path) -> bool:
    """Tells if a path is a device, a pipe, a socket, or a file that is our standard output."""
    return path.exists() and (is_output(path) or (not path.is_file() and not path.is_dir()))


def is_output(path: Path) -> bool:
    """Tells if a path is the standard output of this program, such as /dev/stdout, wherever that is sent."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(_OUTPUT))
    except (OSError, ValueError):  # no such file, or the standard output is closed
        return False


def _flush(draft: Path) -> None:
    """Makes the content of a draft survive a power failure."""
    for path in (draft, *draft.rglob("*")):
        if path.is_dir() or path.is_file():
            _sync(path)


def _publish(draft: Path, target: Path) -> None:
    """Puts a finished draft in its place."""
    if _is_stream(target):
        place = os.dup(_OUTPUT) if is_output(target) else target
        with draft.open("rb") as source, open(place, "wb") as stream, suppress(BrokenPipeError):
            shutil.copyfileobj(source, stream)
            stream.flush()
        return
    if draft.is_dir() and target.is_dir():
        raise OSError("the folder exists already")
    if target.is_file() and draft.is_file():
        shutil.copymode(target, draft)
    draft.replace(target)
    _sync(target.parent)


def _make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are missing, and makes their names survive a power failure."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Makes the content of a file, or the names in a folder, survive a power failure."""
    # some network file systems refuse this for a folder, though they have written everything
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def shown_path(path: Path) -> str:
    """A path for an error message: on one line, and short enough to read."""
    text = str(path)
    if not text.isprintable():
        text = text.encode("unicode_escape", "backslashreplace").decode("ascii")
    if not path.name:
        return repr(text)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-50:]}"
