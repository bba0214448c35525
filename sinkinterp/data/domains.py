"""Texts by the domain that they come from (Gu et al. 2025, Figure 9)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import InputError
from .texts import columns_in, files_of, is_local, rows_of, text_in, texts_of


@dataclass(frozen=True)
class Texts:
    """The texts of one source, at most `most` of them, read anew each time they are asked for."""

    source: Path | str
    column: str = "text"
    most: int | None = None

    def __iter__(self) -> Iterator[str]:
        return islice(texts_of(self.source, self.column), self.most)


def domains_of(
    source: Path | str | Sequence[Path | str], column: str = "text", field: str = "domain", most: int | None = None
) -> Mapping[str, Iterable[str]]:
    """Texts by domain, at most `most` each: of a folder, of several sources, or of one file by its column `field`.

    A folder's files and subfolders are domains in the order of their names, and several sources (files, folders,
    names of datasets; see `texts_of`) are domains in the order given; both are read when they are asked for. One file
    is read at once, and its domains stand in the order in which they first occur. Raises InputError where no domain
    is found, two have one name, or a row of the file names no domain.
    """
    if not isinstance(source, Path | str):
        return _named(list(source), column, most)
    if not is_local(source):
        raise InputError(f"the dataset {source!r} is one domain; give several names, or a file with a column {field!r}")
    path = Path(source)
    return _named(_members(path), column, most) if path.is_dir() else _grouped(path, column, field, most)


def _named(sources: Sequence[Path | str], column: str, most: int | None) -> Mapping[str, Iterable[str]]:
    domains: dict[str, Iterable[str]] = {}
    for source in sources:
        name = _name(source)
        if name in domains:
            raise InputError(f"two domains are named {name!r}; rename one of the files or folders")
        domains[name] = Texts(source, column, most)
    if not domains:
        raise InputError("there is no domain; give at least one file, folder or name of a dataset")
    return domains


def _name(source: Path | str) -> str:
    if not is_local(source):
        return str(source)
    path = Path(source).resolve()
    return path.name if path.is_dir() else path.stem


def _members(folder: Path) -> list[Path | str]:
    return sorted({folder / file.relative_to(folder).parts[0] for file in files_of(folder)})


def _grouped(path: Path, column: str, field: str, most: int | None) -> Mapping[str, Iterable[str]]:
    domains: defaultdict[str, list[str]] = defaultdict(list)
    (file,) = files_of(path)
    for row in rows_of(file):
        name = row.get(field)
        if not isinstance(name, str | int):
            raise InputError(
                f"a row of {file} names no domain in {field!r}, only {columns_in(row)}; name the column of the domains"
            )
        if most is None or len(domains[str(name)]) < most:
            domains[str(name)].append(text_in(row, column, file))
    if not domains:
        raise InputError(f"{file} holds no row; give a file with texts")
    return dict(domains)
