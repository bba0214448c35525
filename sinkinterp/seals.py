"""Seals: hashes of files, and what the files are of, so that damage and a wrong place are noticed at reading.

What a file is of is a small dictionary: the key of a run, a step, the hash of a base model, the name of a model or a
text. Whoever reads a file says what belongs there. Some seals do not name their owner.

Files that people ask for carry a mark, the hash of their own content, and replace only a file with a mark. A page holds
the mark in a comment, a picture in a text chunk, a CSV file in the last cell of its first row, a report in the
metadata of its .safetensors file: there the hash is that of the file with 64 zeros in its place. JSON holds the hash of
all other entries as "sha256".
"""

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from .checks import InputError, refusal, refusing
from .files import is_output, replacing, set_aside, shown_path
from .spec import key_of

T = TypeVar("T")
SEAL = "sha256.json"  # in a folder: the hashes of its files
STAMP = "0" * 64  # in a draft: where the hash of the file itself is to stand
SHA256 = "sha256"  # in a dictionary: the hash of all else that it holds
SEALED = "sealed"  # in a dictionary: that it has such a hash
RECIPE = "recipe.json"  # in a folder: that it is a checkpoint of ours, which has a seal
Content = bytes | str | Mapping[str, Any]  # of a file
Of = Mapping[str, str | int]  # what a file or a folder is of
_OF, _IS = "of", "is"  # the two entries of a record that says what it is of
_MADE = ("model", "adapter")  # the names of what a run writes beside its checkpoints
_STEP = re.compile(r"step-(\d{7,})")  # the name of a checkpoint's folder
_KEY = re.compile("[0-9a-f]{12}")  # the name of a run's folder in a cache
_RECORD = b'{"sha256": "%s", "record": %s}'
_FIX = "copy it again, make it again, or, if you changed it yourself, save it with transformers into a new folder"


class Damaged(InputError):
    """A file that is not as it was written."""

    state = "is damaged"

    def __init__(self, path: Path, reason: str, fix: str = _FIX) -> None:
        self.path, self.reason, self.fix = path, " ".join(reason.split()), fix
        super().__init__(f"{path} {self.state}: {self.reason}; {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason, self.fix)  # it crosses processes

    def warn(self, action: str) -> None:
        """Says in one line on standard error what is damaged and what is done about it."""
        logging.getLogger("sinkinterp").warning("%s %s: %s; %s", self.path, self.state, self.reason, action)


class Misplaced(Damaged):
    """A file that is as it was written, in the place of another."""

    state = "is in the wrong place"


def seal(folder: Path, of: Of = {}) -> None:
    """Seals a draft of a folder: its sha256.json holds `of` and the sha256 of every file in it."""
    (folder / SEAL).write_bytes(_record(sums(folder), of))


def settle(folder: Path, of: Of, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a draft of a folder and seals it, unless the folder is there, as it was written and of `of`.

    Another folder in its place is named on standard error and renamed.
    """
    if folder.exists():
        try:
            verify(folder, of=of)
            if (of and not stated(folder)) or not any(folder.iterdir()):
                raise Damaged(folder, "this run has not written it")
            return
        except Damaged as damage:
            damage.warn(f"it is renamed to {set_aside(folder).name}, and written again")
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
        expected = hashes_in(folder, of)
        check(folder, {name: sha256 for name, sha256 in expected.items() if _any(name, patterns)})


def hashes_in(folder: Path, of: Of) -> Mapping[str, str]:
    """The sha256 of each file that was sealed in a folder. Raises Damaged without a seal, or with that of another.

    The folder of a checkpoint must be of the step in its name.
    """
    step = _STEP.fullmatch(folder.name)
    expected = read_record(folder / SEAL, {**of, "step": int(step[1])} if step else of)
    if not isinstance(expected, dict):
        raise Damaged(folder / SEAL, "it holds no hashes by name")
    return expected


def stated(folder: Path) -> Of:
    """The owner of a folder by its seal; empty without a seal, or if the seal does not name it."""
    return _parts(folder / SEAL)[0] if (folder / SEAL).exists() else {}


def check_beside(folder: Path) -> None:
    """Raises Damaged for a step, the model or the adapter of a run without a seal, or beside a step of another run.

    So it does in the folder `runs` of a cache, in a folder that another run's key names. The steps of earlier versions
    do not say of which run they are.
    """
    if not (_STEP.fullmatch(folder.name) or folder.name in _MADE):
        return
    home, run = folder.resolve().parent, _run_of(folder)
    if run and home.parent.name == "runs" and _KEY.fullmatch(home.name) and home.name not in (run, _named(folder)):
        raise Misplaced(folder, f"it is of run {run}, and {home.name} is another run's folder", "put it back")
    for step in sorted(folder.parent.glob("step-*")):
        theirs = _run_of(step)
        if theirs and not (folder / SEAL).exists():
            raise Damaged(folder / SEAL, f"there is no such file, and {step.name} beside it has one")
        if theirs and _run_of(folder) not in ("", theirs):
            reason = f"it is of run {_run_of(folder)}, and {step.name} of run {theirs}"
            raise Misplaced(folder, reason, "put back what belongs there")


def _named(step: Path) -> str:
    """The key that named a run on text before the hash of the text was known; empty without its recipe."""
    try:
        recipe = json.loads((step / RECIPE).read_text())
        recipe["data"].pop("sha256", None)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return ""
    return key_of(recipe)


def _run_of(folder: Path) -> str | int:
    """The key of the run that a folder says that it is of; empty where it does not say that."""
    try:
        return stated(folder).get("run", "")
    except Damaged:  # whoever reads the folder says so
        return ""


@contextmanager
def verifying(folder: Path, *patterns: str) -> Iterator[None]:
    """Verifies a folder as `verify` and `check_beside` do, in another thread, while the block reads it.

    Raises Damaged when the block ends, also where it fails.
    """
    check_beside(folder)
    with ThreadPoolExecutor(1) as pool:
        verification = pool.submit(verify, folder, *patterns)
        try:
            yield
        finally:
            verification.result()


def sums(folder: Path, *patterns: str) -> dict[str, str]:
    """The sha256 of the files in a folder and its subfolders, by their paths in it; of those that match a pattern."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: _sha256(folder / name) for name in names if name != SEAL and _any(name, patterns)}


def check(folder: Path, expected: Mapping[str, str]) -> None:
    """Raises Damaged unless the files in a folder have these hashes. Other files may be there."""
    for name, sha256 in expected.items():
        if _sha256(folder / name) != sha256:
            raise Damaged(folder / name, "its sha256 is not that of the file that was written")


def write_record(path: Path, value: Any, of: Of = {}) -> None:
    """Writes a JSON file that begins with the sha256 of its content, whole or not at all."""
    with replacing(path) as draft:
        draft.write_bytes(_record(value, of))


def read_record(path: Path, of: Of = {}) -> Any:
    """The value that `write_record` wrote. Raises Misplaced if it is of something else, else Damaged."""
    said, value = _parts(path)
    for name, wanted in of.items() if said else ():
        if said.get(name) != wanted:
            reason = f"it is of {name} {said.get(name)}, and {name} {wanted} belongs here"
            raise Misplaced(path, reason, "put it back, or remove it")
    return value


def _parts(path: Path) -> tuple[Of, Any]:
    """Returns what a record says that it is of, and its value. Raises Damaged for a file that is not a record."""
    content = _read(path, lambda file: file.read())
    body = content[len(_RECORD % (STAMP.encode(), b"")) - 1 : -1]
    if content != _RECORD % (hashlib.sha256(body).hexdigest().encode(), body):
        raise Damaged(path, "its sha256 is not that of the file that was written")
    plain = json.loads(body)
    return (plain[_OF], plain[_IS]) if isinstance(plain, dict) and plain.keys() == {_OF, _IS} else ({}, plain)


def signed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-ready dictionary with the hash of its content, as "sha256", and a "sealed" that says so."""
    return {**plain, SEALED: True, SHA256: _content_sha256(plain)}


def check_signed(plain: Mapping[str, Any], content: Mapping[str, Any] | None = None) -> None:
    """Raises InputError unless a dictionary has the hash of the content, its own by default, that `signed` gave it."""
    if plain.get(SHA256) != _content_sha256(content or plain):
        raise InputError("its sha256 is not that of what was written; copy it again or make it again")


def _content_sha256(plain: Mapping[str, Any]) -> str:
    content = {name: value for name, value in plain.items() if name not in (SHA256, SEALED)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_stamp(path: Path, sha256: str) -> None:
    """Raises Damaged unless a .safetensors file holds this sha256: its own, with 64 zeros in its place."""
    content = path.read_bytes()
    mark = _mark_in(content)
    if mark is None or mark[1] != sha256.encode() or not _is_stamped(content):
        raise Damaged(path, "its sha256 is not that of the file that was written", "copy it again or make it again")


def _record(value: Any, of: Of) -> bytes:
    body = json.dumps({_OF: of, _IS: value} if of else value).encode()
    return _RECORD % (hashlib.sha256(body).hexdigest().encode(), body)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def _sha256(path: Path) -> str:
    if not path.is_file():
        raise Damaged(path, "there is no such file")
    return _read(path, lambda file: hashlib.file_digest(file, "sha256").hexdigest())


def _read(path: Path, read: Callable[[BufferedReader], T]) -> T:
    """What `read` makes of a file. Raises Damaged where it cannot be read, and InputError without the permission."""
    try:
        with refusal(f"cannot read {path}", of=PermissionError), path.open("rb") as file:
            return read(file)
    except OSError as error:
        raise Damaged(path, error.strerror or "it cannot be read") from error


MARK = f"sinkinterp sha256 {STAMP}"
WRITTEN_BY = "written by"  # the last column of a CSV file
_MARK = re.compile(rb"sinkinterp.{1,40}?sha256.{1,9}?([0-9a-f]{64})", re.DOTALL)
_BEGIN, _END = 2000, 200  # bytes from the beginning and, in a PDF, from the end, among which a mark is
_DOCTYPE = "<!doctype html>\n"
_PNG = b"\x89PNG\r\n"
_HEADER = 33  # bytes of a picture that must come first


def page_bytes(html: str) -> bytes:
    """The file of a page that begins with its doctype, with its mark."""
    return stamped(html.replace(_DOCTYPE, f"{_DOCTYPE}<!-- {MARK} -->\n", 1).encode())


def picture_bytes(png: bytes) -> bytes:
    """The file of a PNG picture, with its mark in a text chunk."""
    text = b"tEXt" + MARK.replace("sha256 ", "sha256\0").encode()
    chunk = (len(text) - 4).to_bytes(4) + text + bytes(4)
    return stamped(_with(png[:_HEADER] + chunk + png[_HEADER:], STAMP.encode()))


def svg_bytes(svg: bytes) -> bytes:
    """The file of an SVG picture, with its mark in a comment."""
    return stamped(svg.replace(b">", f"><!-- {MARK} -->".encode(), 1))


def pdf_bytes(pdf: bytes) -> bytes:
    """The file of a PDF, with its mark in a comment at its end."""
    return stamped(pdf + f"\n% {MARK}\n".encode())


def csv_bytes(frame: Any) -> bytes:
    """The file of a pandas DataFrame, with its mark in the first row of a last column; without rows, in its name."""
    marked = frame.assign(**{WRITTEN_BY: [MARK, *[""] * (len(frame) - 1)]} if len(frame) else {MARK: ""})
    return stamped(marked.to_csv(index=False).encode())


def json_bytes(plain: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """The file of a JSON-ready dictionary, with its mark."""
    as_read = json.loads(json.dumps(plain))  # which has texts as keys
    return json.dumps(signed(as_read), indent=indent).encode()


def stamped(content: bytes) -> bytes:
    """The content with its hash in place of the zeros of its mark; content without a mark stays as it is."""
    return _with(content, hashlib.sha256(content).hexdigest().encode())


def write_output(
    path: Path, content: Content, force: bool = False, fix: str = "choose another place, or remove it"
) -> None:
    """Writes a file with its mark, whole or not at all: bytes as they are, a text as a page, a dictionary as JSON.

    Raises InputError as `check_ours` does, just before it does.
    """
    made = page_bytes(content) if isinstance(content, str) else content
    data = json_bytes(made) if isinstance(made, Mapping) else made
    with replacing(path, check=lambda: check_ours([path], fix, force)) as draft:
        draft.write_bytes(data)


@refusing
def check_ours(
    files: Iterable[Path], fix: str = "choose another place, or remove it", force: bool = False
) -> Iterator[str]:
    """Raises InputError for a folder or a pipe, and unless `force` for a file without a mark that holds something."""
    for file in files:
        if is_output(file):
            continue
        if file.is_dir() or file.is_fifo() or file.is_socket():  # a pipe may never be read
            yield f"{shown_path(file)} is a {'folder' if file.is_dir() else 'pipe'}; choose another place"
        if not force and file.is_file() and file.stat().st_size and not _is_ours(file):
            yield f"{shown_path(file)} exists, and sinkinterp did not write it; {fix}"


def _is_ours(file: Path) -> bool:
    """Whether a file carries the mark of its content."""
    try:
        content = file.read_bytes()
        if not content.lstrip().startswith(b"{"):
            return _is_stamped(content)
        plain = json.loads(content)
        return plain.get(SHA256) == _content_sha256(plain) and plain.get(SEALED, True) is True
    except (OSError, ValueError, RecursionError):
        return False


def _mark_in(content: bytes) -> re.Match[bytes] | None:
    return _MARK.search(content, 0, _BEGIN) or _MARK.search(content, max(0, len(content) - _END))


def _is_stamped(content: bytes) -> bool:
    return _mark_in(content) is not None and content == stamped(_with(content, STAMP.encode()))


def _with(content: bytes, digits: bytes) -> bytes:
    """The content with other digits in its mark, and with the checksum of the text chunk that holds them."""
    mark = _mark_in(content)
    if mark is None:
        return content
    start, end = mark.span(1)
    changed = content[:start] + digits + content[end:]
    if not content.startswith(_PNG):
        return changed
    checksum = zlib.crc32(changed[mark.start() - len(b"tEXt") : end]).to_bytes(4)
    return changed[:end] + checksum + changed[end + len(checksum) :]
