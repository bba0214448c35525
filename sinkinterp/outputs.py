"""Files that people ask for. Each carries a mark, the hash of its own content, and replaces only a file with a mark.

A page holds the mark in a comment, a picture in a text chunk, a CSV file in the last cell of its first row, a report
in the metadata of its .safetensors file: there the hash is that of the file with 64 zeros in its place. JSON holds the
hash of all other entries as "sha256".
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import refusing
from .files import is_output, replacing, shown_path
from .seals import SHA256, STAMP, signed

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
    path: Path, content: bytes, force: bool = False, fix: str = "choose another place, or remove it"
) -> None:
    """Writes a file with its mark, whole or not at all. Raises InputError as `check_ours` does, just before it does."""
    with replacing(path, check=lambda: check_ours([path], fix, force)) as draft:
        draft.write_bytes(content)


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
        return _is_stamped(content) or (content.lstrip().startswith(b"{") and _is_signed(json.loads(content)))
    except (OSError, ValueError, RecursionError):
        return False


def _mark_in(content: bytes) -> re.Match[bytes] | None:
    return _MARK.search(content, 0, _BEGIN) or _MARK.search(content, max(0, len(content) - _END))


def _is_stamped(content: bytes) -> bool:
    return _mark_in(content) is not None and content == stamped(_with(content, STAMP.encode()))


def _is_signed(plain: Mapping[str, Any]) -> bool:
    marks = signed({}).keys()
    own = signed({name: value for name, value in plain.items() if name not in marks})
    return SHA256 in plain and all(plain[name] == own[name] for name in marks & plain.keys())


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
