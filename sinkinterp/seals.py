"""Seals: hashes of files, and what the files are of, so that damage and a wrong place are noticed at reading.

`of` says which run, step and base model a folder belongs to, or the name of a model or a text. Whoever reads a folder
says what belongs there. Some seals do not name their owner.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .checks import InputError, refusal
from .files import replacing, write_file

SEAL = "sha256.json"  # in a folder: the hashes of its files
RECIPE = "recipe.json"  # in a folder: that it is a checkpoint of ours, which has a seal
Of = Mapping[str, str | int]  # what a file or a folder is of
_STEP = re.compile(r"step-(\d{7,})")  # the name of a checkpoint's folder
_FIX = "copy it again, make it again, or, if you changed it yourself, save it with transformers into a new folder"
_CHANGED = "its sha256 is not that of the file that was written"


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
    write_record(folder / SEAL, sums(folder), of)


def write_sealed(folder: Path, of: Of, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a draft of a folder and seals it. Raises Damaged for a folder that is there and is another."""
    if folder.exists():
        check(folder, hashes_in(folder, of))
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
        check(folder, {name: sha256 for name, sha256 in hashes_in(folder, of).items() if _is_any(name, patterns)})


def hashes_in(folder: Path, of: Of) -> Mapping[str, str]:
    """The sha256 of each file that was sealed in a folder. Raises Damaged without a seal, or with that of another.

    The folder of a checkpoint must be of the step in its name.
    """
    step = _STEP.fullmatch(folder.name)
    hashes: Mapping[str, str] = read_record(folder / SEAL, {**of, "step": int(step[1])} if step else of)
    return hashes


def owner(folder: Path) -> Of:
    """The owner of a folder by its seal; empty without a seal, or if the seal does not name it."""
    return _parts(folder / SEAL)[0] if (folder / SEAL).exists() else {}


def sums(folder: Path, *patterns: str) -> dict[str, str]:
    """The sha256 of the files in a folder and its subfolders, by their paths in it; of those that match a pattern."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: _sha256(folder / name) for name in names if name != SEAL and _is_any(name, patterns)}


def check(folder: Path, hashes: Mapping[str, str]) -> None:
    """Raises Damaged unless the files in a folder have these hashes. Other files may be there."""
    for name, sha256 in hashes.items():
        if _sha256(folder / name) != sha256:
            raise Damaged(folder / name, _CHANGED)


def write_record(path: Path, value: Any, of: Of = {}) -> None:
    """Writes a JSON file that begins with the sha256 of its content, whole or not at all."""
    write_file(path, _record(value, of))


def read_record(path: Path, of: Of = {}) -> Any:
    """The value that `write_record` wrote. Raises Damaged if it is not, or is of something else."""
    actual, value = _parts(path)
    for name, wanted in of.items() if actual else ():
        if actual.get(name) != wanted:
            reason = f"it is of {name} {actual.get(name)}, and {name} {wanted} belongs here"
            raise Damaged(path, reason, "put it back, or remove it")
    return value


def _parts(path: Path) -> tuple[Of, Any]:
    """Returns what a record says that it is of, and its value. Raises Damaged for a file that is not a record."""
    with _reading(path):
        content = path.read_bytes()
    try:
        record = json.loads(content)["record"]
        parts = record["of"], record["is"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(path, "it is not a record") from error
    if content != _record(parts[1], parts[0]):
        raise Damaged(path, _CHANGED)
    return parts


def _record(value: Any, of: Of) -> bytes:
    body = json.dumps({"of": of, "is": value}).encode()
    return b'{"sha256": "%s", "record": %s}' % (hashlib.sha256(body).hexdigest().encode(), body)


def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


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
