"""Texts by domain: those of files, folders or data sets, or of the rows of a file that name their domain."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sinkinterp.checks import InputError, check_count, each_once
from sinkinterp.data.texts import Texts, files_of, rows_of, source_of, text_in


def domains_of(
    source: Path | Texts | Sequence[Path | Texts], column: str = "text", field: str = "domain", limit: int | None = None
) -> Mapping[str, Iterable[str]]:
    """Texts by domain, at most `limit` for each.

    Several sources are a domain each, in the order given. The files and subfolders of a folder are a domain each, in
    the order of their names. Both are read when their texts are used. The rows of a single file name their domain in
    its column `field`; that file is read immediately. Raises InputError for a source without domains, for two domains
    of one name, and for a row that does not name its domain.
    """
    if not isinstance(source, Path):
        return _domain_each([source] if isinstance(source, Texts) else source, column, limit)
    if source.is_dir():
        members = sorted({source / file.relative_to(source).parts[0] for file in files_of(source)})
        return _domain_each(members, column, limit)
    domains: defaultdict[str, list[str]] = defaultdict(list)
    (file,) = files_of(source)
    for row in rows_of(file):
        name = row.get(field)
        if not isinstance(name, str | int):
            raise InputError(f"a row of {file} names no domain in {field!r}, only {', '.join(row)}; name the column")
        if limit is None or len(domains[str(name)]) < limit:
            domains[str(name)].append(text_in(row, column, file))
    check_count(domains, f"rows of {file}")
    return dict(domains)


def _domain_each(sources: Sequence[Path | Texts], column: str, limit: int | None) -> Mapping[str, Iterable[str]]:
    check_count(sources, "domains: files, folders or data sets")
    read = [source_of(source, column) for source in sources]
    names = [x.path.stem if x.path and x.path.is_file() else x.name for x in read]
    each_once(names, "the name of a domain, which is that of its file or folder,")
    return {n: replace(x, limit=limit) for n, x in zip(names, read, strict=True)}
