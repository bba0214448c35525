"""Texts by domain (Gu et al. 2025, Figure 9)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import InputError
from .texts import columns_in, files_of, is_path, rows_of, text_in, texts_of


@dataclass(frozen=True)
class DomainTexts:
    """The texts of one source, at most `limit` of them. Each iteration reads the source again."""

    source: Path | str
    column: str = "text"
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        return islice(texts_of(self.source, self.column), self.limit)


def domains_of(
    source: Path | str | Sequence[Path | str], column: str = "text", field: str = "domain", limit: int | None = None
) -> Mapping[str, Iterable[str]]:
    """Texts by domain, at most `limit` for each.

    Several sources (files, folders or names of datasets; see `texts_of`) are a domain each, in the order given. The
    files and subfolders of a folder are a domain each, in the order of their names. Both are read when their texts are
    used. The rows of a single file name their domain in its column `field`; the file is read immediately, and its
    domains are in the order in which they first occur. Raises InputError where there is no domain, two domains have
    the same name, or a row of the file names no domain.
    """
    if not isinstance(source, Path | str):
        return _domain_per_source(list(source), column, limit)
    if not is_path(source):
        raise InputError(f"the dataset {source!r} is one domain; give several names, or a file with a column {field!r}")
    path = Path(source)
    if path.is_dir():
        return _domain_per_source(_members(path), column, limit)
    return _grouped_rows(path, column, field, limit)


def _domain_per_source(sources: Sequence[Path | str], column: str, limit: int | None) -> Mapping[str, Iterable[str]]:
    domains: dict[str, Iterable[str]] = {}
    for source in sources:
        name = _domain_name(source)
        if name in domains:
            raise InputError(f"two domains are named {name!r}; rename one of the files or folders")
        domains[name] = DomainTexts(source, column, limit)
    if not domains:
        raise InputError("there is no domain; give at least one file, folder or name of a dataset")
    return domains


def _domain_name(source: Path | str) -> str:
    if not is_path(source):
        return str(source)
    path = Path(source).resolve()
    return path.name if path.is_dir() else path.stem


def _members(folder: Path) -> list[Path | str]:
    """The files and subfolders of a folder that hold texts, in the order of their names."""
    return sorted({folder / file.relative_to(folder).parts[0] for file in files_of(folder)})


def _grouped_rows(path: Path, column: str, field: str, limit: int | None) -> Mapping[str, Iterable[str]]:
    domains: defaultdict[str, list[str]] = defaultdict(list)
    (file,) = files_of(path)
    for row in rows_of(file):
        name = row.get(field)
        if not isinstance(name, str | int):
            raise InputError(
                f"a row of {file} names no domain in {field!r}, only {columns_in(row)}; name the column of the domains"
            )
        if limit is None or len(domains[str(name)]) < limit:
            domains[str(name)].append(text_in(row, column, file))
    if not domains:
        raise InputError(f"{file} holds no row; give a file with texts")
    return dict(domains)
