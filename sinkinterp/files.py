"""Files and folders: written whole or not at all, and sealed with hashes, so that damage is noticed at reading.

A folder's seal says which run, step and base model it belongs to, or the name of a model or a text (`Of`). Whoever
reads a folder says what belongs there. Some seals do not name their owner.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from .checks import InputError, instance_of, reason_of, refusal

T = TypeVar("T")
Content = bytes | str | Mapping[str, Any]  # of a file: bytes, a text, or what becomes JSON
_DRAFT = ".draft-"  # a random word follows
SEAL = "sha256.json"  # in a folder: the hashes of its files
RECIPE = "recipe.json"  # in a folder: that it is a checkpoint of ours, which has a seal
Of = Mapping[str, str | int]  # what a file or a folder is of
_FIX = "copy it again, make it again, or, if you changed it yourself, save it with transformers into a new folder"
_CHANGED = "its sha256 is not that of the file that was written"


def cache_folder() -> Path:
    """The folder of runs, texts and models: $SINKINTERP_CACHE, else `sinkinterp` in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SINKINTERP_CACHE") or Path(home) / "sinkinterp").expanduser()


@contextmanager
def replacing(path: Path | str, fix: str = "free some space or choose another place") -> Iterator[Path]:
    """Yields a draft path. When the block ends, the file or folder written there takes the place of `path`.

    Missing parent folders are made, links are followed, and a file keeps its permissions. If the block fails, the
    draft is removed and `path` stays as it was. A folder never replaces another one. Raises InputError, which ends in
    `fix`, where the system refuses to write.
    """
    with _write_errors(path, fix):
        target = _target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_beside(target)
        try:
            yield draft
            for part in filter(Path.is_file, (draft, *draft.rglob("*"))):
                with part.open("rb") as content:
                    os.fsync(content.fileno())
            if draft.is_dir() and target.is_dir():
                raise OSError("the folder exists already")
            if target.is_file() and draft.is_file():
                shutil.copymode(target, draft)
            draft.replace(target)
        finally:
            remove(draft)


def write_file(path: Path | str, content: Content) -> None:
    """Writes a file, whole or not at all: bytes as they are, a text in UTF-8, a dictionary as JSON."""
    text = json.dumps(content, indent=1) if isinstance(content, Mapping) else content
    with replacing(path) as draft:
        draft.write_bytes(text.encode() if isinstance(text, str) else text)


def check_writable(path: Path | str, force: bool = True) -> None:
    """Raises InputError where a file cannot be written, and unless `force` for one that exists and holds something.

    Call it before minutes of work. It leaves nothing behind.
    """
    with _write_errors(path, "choose another place"):
        target = _target(path)
        if target.is_dir():
            raise OSError("there is a folder of that name")
        if not force and target.exists() and target.stat().st_size:
            raise InputError(f"{path} exists; choose another place, or add --force")
        tempfile.TemporaryFile(dir=next(folder for folder in target.parents if folder.exists())).close()


def data_of(name: str, **words: str) -> dict[str, Any]:
    """The content of a TOML file of this package, such as "cli/help.toml", with `words` in place of $word."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return tomllib.loads(Template(text).safe_substitute(words))


def path_of(given: Any, what: str) -> Path:
    """Returns what was given, as a path. Raises InputError, which calls it `what`, for anything else."""
    return Path(instance_of(given, str | os.PathLike, f"{what} is a path"))


def by_suffix(suffix: str, formats: Mapping[str, T], what: str, *others: str, fix: str = "") -> T:
    """The value of a suffix in a table of formats. Raises InputError, which names the known ones, for another."""
    if suffix not in formats:
        known = ", ".join(filter(None, (*formats, *others)))
        raise InputError(f"{what} is not saved as {suffix or 'a file without suffix'}; use {known}{fix}")
    return formats[suffix]


def check_is_file(path: Path, fix: str = "") -> None:
    """Raises InputError, which ends in `fix`, where there is no file at a path."""
    if not path.is_file():
        raise InputError(f"there is no file {path}{fix and f'; {fix}'}")


@contextmanager
def sole_writer(folder: Path, fix: str = "choose another place") -> Iterator[None]:
    """Makes a folder and locks it: other processes that call this with the same folder wait until the block ends.

    The drafts that killed programs left in the folder are removed first; the lock file stays. Raises InputError, which
    ends in `fix`, where the system refuses.
    """
    from filelock import FileLock  # here, because it takes a tenth of a second to import

    with refusal(f"cannot write to {folder}", fix, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock").acquire()
    with lock:  # released where the block ends
        remove_drafts(folder)
        yield


def remove(path: Path) -> None:
    """Removes a file or a folder with everything in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_whole(path: Path) -> None:
    """Removes a file or a folder. A kill on the way leaves a draft, never half of a folder under its name."""
    remove(path.rename(_draft_beside(path)))


def remove_drafts(folder: Path) -> None:
    """Removes the drafts that killed programs left in a folder. Only its one writer may call this."""
    for draft in folder.glob(f"{_DRAFT}*"):
        remove(draft)


def _draft_beside(path: Path) -> Path:
    return path.with_name(f"{_DRAFT}{secrets.token_hex(8)}")


@contextmanager
def _write_errors(path: Path | str, fix: str) -> Iterator[None]:
    """Turns a refusal of the system into an InputError that names the path, the reason and the fix."""
    try:
        yield
    except Exception as error:
        # safetensors and tokenizers are written in Rust; their errors are not OSErrors, but say "(os error 28)"
        if isinstance(error, InputError) or not (isinstance(error, OSError) or "(os error " in str(error)):
            raise
        raise InputError(f"cannot write {path or '.'}: {reason_of(error)}; {fix}") from error


def _target(path: Path | str) -> Path:
    """The place of a file or a folder, behind links. Raises OSError where nothing can be written."""
    if not Path(path).name:
        raise OSError("this is a folder, not a file")
    try:
        target = Path(os.path.realpath(path))
        kind = target.stat().st_mode
    except FileNotFoundError:
        return target
    except ValueError as error:  # a null byte, or a character that file names cannot have
        raise OSError("this is not a file name") from error
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise OSError("it is a pipe or a device, not a file")  # which a file would replace
    if not os.access(target, os.W_OK):
        raise OSError("it is read-only")  # the folder may allow a rename over it, which would ignore this
    return target


class Damaged(InputError):
    """A file that is not as it was written, or that is in the place of another."""

    def __init__(self, path: Path, reason: str, fix: str = _FIX) -> None:
        self.path, self.reason, self.fix = path, " ".join(reason.split()), fix
        super().__init__(f"{path} is damaged: {self.reason}; {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason, self.fix)  # it crosses processes

    def warn(self, action: str) -> None:
        """Says in one line on standard error what is damaged and what is done about it."""
        logging.getLogger("sinkinterp").warning("%s is damaged: %s; %s", self.path, self.reason, action)


def seal(folder: Path, of: Of = {}) -> None:
    """Seals a folder: its sha256.json holds `of` and the sha256 of every file in it."""
    write_record(folder / SEAL, file_hashes(folder), of)


def write_sealed(folder: Path, of: Of, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a draft of a folder and seals it. Raises Damaged for a folder that is there and is another."""
    if folder.exists():
        check_hashes(folder, sealed_hashes(folder, of))
    else:
        with replacing(folder, "make room, then run the same command") as draft:
            draft.mkdir()
            write(draft)
            seal(draft, of)


def verify(folder: Path, *patterns: str, of: Of = {}) -> None:
    """Raises Damaged unless the files in a sealed folder are those that were sealed, as parts of what `of` says.

    Only files whose names match one of the patterns are read, or all of them without a pattern. A folder without
    sha256.json passes, unless it holds a recipe.
    """
    if (folder / SEAL).exists() or (folder / RECIPE).exists():
        hashes = sealed_hashes(folder, of)
        check_hashes(folder, {name: hashes[name] for name in _matching(hashes, patterns)})


def sealed_hashes(folder: Path, of: Of) -> Mapping[str, str]:
    """The sha256 of each file that was sealed in a folder. Raises Damaged without a seal, or with that of another.

    The folder of a checkpoint must be of the step in its name.
    """
    step = re.fullmatch(r"step-(\d{7,})", folder.name)
    hashes: Mapping[str, str] = read_record(folder / SEAL, {**of, "step": int(step[1])} if step else of)
    return hashes


def owner(folder: Path) -> Of:
    """The owner of a folder by its seal; empty without a seal, or if the seal does not name it."""
    return _record_in(folder / SEAL)[0] if (folder / SEAL).exists() else {}


def file_hashes(folder: Path, *patterns: str) -> dict[str, str]:
    """The sha256 of the files in a folder and its subfolders, by their paths in it; of those that match a pattern."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: _sha256(folder / name) for name in _matching(names, patterns) if name != SEAL}


def check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raises Damaged unless the files in a folder have these hashes. Other files may be there."""
    for name, sha256 in hashes.items():
        if _sha256(folder / name) != sha256:
            raise Damaged(folder / name, _CHANGED)


def write_record(path: Path, value: Any, of: Of = {}) -> None:
    """Writes a JSON file that begins with the sha256 of its content, whole or not at all."""
    write_file(path, _record(value, of))


def read_record(path: Path, of: Of = {}) -> Any:
    """The value that `write_record` wrote. Raises Damaged if it is not, or is of something else."""
    actual, value = _record_in(path)
    for name, wanted in of.items() if actual else ():
        if actual.get(name) != wanted:
            reason = f"it is of {name} {actual.get(name)}, and {name} {wanted} belongs here"
            raise Damaged(path, reason, "put it back, or remove it")
    return value


def _record_in(path: Path) -> tuple[Of, Any]:
    """Returns what a record says that it is of, and its value. Raises Damaged for a file that is not a record."""
    with _reading(path):
        content = path.read_bytes()
    try:
        record = json.loads(content)["record"]
        of, value = record["of"], record["is"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(path, "it is not a record") from error
    if content != _record(value, of):
        raise Damaged(path, _CHANGED)
    return of, value


def _record(value: Any, of: Of) -> bytes:
    body = json.dumps({"of": of, "is": value}).encode()
    return b'{"sha256": "%s", "record": %s}' % (hashlib.sha256(body).hexdigest().encode(), body)


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]


def _sha256(path: Path) -> str:
    with _reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """In the block, a file is read. Raises Damaged where it cannot be, and InputError without the permission."""
    try:
        with refusal(f"cannot read {path}", of=PermissionError):
            yield
    except OSError as error:
        raise Damaged(path, error.strerror or "it cannot be read") from error
