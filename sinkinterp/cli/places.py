"""The check of all places that a command reads and writes, before it runs: no output replaces what is not ours."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fnmatch import fnmatch
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

from ..backends.files.named_models import SHIPPED, downloads, located
from ..checks import InputError
from ..files import cache_folder, is_output
from ..seals import check_ours
from .options import INPUTS, OUTPUT_FILES, output_folder
from .terminal import OR_FORCE

_RUN = ("lock", "step-*", "damaged-*", "model")  # in the folder of a run


@dataclass(frozen=True)
class Places:
    """The inputs of a command, the files that it writes, and the folders in which it keeps several files.

    A read folder means all files in it. Raises InputError if an output is an input or is inside one, if two outputs are
    one file, and for an output among the models and texts of the caches. Links are followed.
    """

    reads: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise InputError(f"{fault}; choose another place for the output")

    def _faults(self) -> Iterator[str]:
        """What is wrong with the outputs, in words."""
        for output in (*self.files, *self.folders):
            if (output.is_fifo() or output.is_socket()) and not is_output(output):
                yield f"{output} is a pipe, which may never be read"
            for read in self.reads:
                if output not in self.folders and _is_same(output, read):
                    yield f"{output} is an input of this command"
                if read.is_dir() and _is_in(output, read):
                    yield f"{output} lies in {read}, which this command reads"
            for cache in filter(partial(_is_in, output), _caches()):
                yield f"{output} lies in {cache}, which holds models and texts"
        for i, output in enumerate(self.files):
            if any(_is_same(output, other) for other in self.files[:i]):
                yield f"two outputs name the same file, {output}"


def check_run(folder: Path | None, force: bool) -> None:
    """Raises InputError for a folder that holds something, and no run, unless `force` is set."""
    if folder is None or force or not folder.is_dir():
        return
    names = [path.name for path in folder.iterdir()]
    if names and not any(fnmatch(name, pattern) for name in names for pattern in _RUN):
        raise InputError(f"{folder} holds {names[0]}, which is not of a run; choose another folder, or add --force")


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which first checks its `Places`, and that the files that its options name are ours or new.

    Its options declare what they are by their parsers: `INPUTS`, `OUTPUT_FILES` and `output_folder`.
    A parameter whose type is a dataclass stands for an option per field.
    """
    groups: dict[str, Any] = {name: hint for name, hint in command.__annotations__.items() if is_dataclass(hint)}
    options = [option for parameter in signature(command).parameters.values() for option in _options_in(parameter)]
    parsers = {option.name: _parser(option.annotation) for option in options}

    @wraps(command)
    def run(**given: Any) -> None:
        def values(*kinds: Any) -> list[Any]:
            return [value for name, value in given.items() if value is not None and parsers[name] in kinds]

        reads = _paths_in(values(*INPUTS))
        places = Places(tuple(reads), tuple(values(*OUTPUT_FILES)), tuple(values(output_folder)))
        check_ours(places.files, OR_FORCE, bool(given.get("force")))
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options_in(parameter: Parameter) -> Iterator[Parameter]:
    """The options that a parameter of a command stands for."""
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    for field in fields(parameter.annotation):
        made = field.default if field.default_factory is MISSING else field.default_factory()
        default = Parameter.empty if made is MISSING else made
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _parser(hint: Any) -> Any:
    """The parser of an option, from the annotation of its parameter."""
    return next((about.parser for about in getattr(hint, "__metadata__", ()) if hasattr(about, "parser")), None)


def _paths_in(value: Any) -> Iterator[Path]:
    """The existing files and folders, models of ours included, that the value of an option or a list of them names."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _paths_in(part)
    elif isinstance(value, str | Path):
        with suppress(InputError, OSError, ValueError):  # a text, or a name of the Hub, is not a path
            path = Path(located(value))
            if path.exists():
                yield path


def _caches() -> Iterator[Path]:
    from huggingface_hub import constants

    yield from (SHIPPED, downloads(), cache_folder() / "texts", Path(constants.HF_HUB_CACHE))


def _both(path: Path) -> set[Path]:
    """The path as it is written and as its links lead."""
    return {Path(os.path.abspath(path)), Path(os.path.realpath(path))}


def _is_same(a: Path, b: Path) -> bool:
    """Whether two paths are one file; a device or a pipe is not a file that could be replaced."""
    if a.exists() and b.exists():
        return a.samefile(b) and (a.is_file() or a.is_dir())
    return bool(_both(a) & _both(b))


def _is_in(path: Path, folder: Path) -> bool:
    """Tells if a path is a folder, is inside it, or is the file that a link in it leads to."""
    if any(place == around or around in place.parents for place in _both(path) for around in _both(folder)):
        return True
    with suppress(PermissionError):  # a cache that cannot be read holds no output of ours
        return path.is_file() and folder.is_dir() and any(map(path.samefile, filter(Path.is_file, folder.iterdir())))
    return False
