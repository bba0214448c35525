"""Options of commands: parsers of their values, those that commands share, and the check of all places before a run.

A parser takes what the user typed and returns a value in the option's domain. What it refuses becomes one line that
names the option, with exit code 2, before anything is loaded or written. No output replaces what is not ours.
"""

import ast
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import MISSING, field, fields, is_dataclass
from fnmatch import fnmatch
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from ..backends.files.named_models import SHIPPED, check_no_model, downloads, located, models
from ..checks import Frozen, InputError, check_context
from ..data.choices import Bos, Dtype, dtype_name
from ..files import cache_folder, data_of, is_output
from ..runs.catalogue import experiment_names
from ..seals import check_ours
from .terminal import OR_FORCE, quiet_libraries

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..report.maps import Heads


def load_subject(
    model: str,
    backend: str = "huggingface",
    encoder: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
    beyond_context: bool = False,
) -> "Subject":
    """The model of that name or folder, with the encoder's input that the option --encoder names."""
    from ..backends.encoder import encoder_input
    from ..backends.load import load

    quiet_libraries()
    given = None if encoder is None else encoder_input(encoder)
    return load(
        model, backend=backend, dtype=dtype, device_map=device_map, encoder=given, beyond_context=beyond_context
    )


def check_sizes(
    model: str, heads: "Heads | None" = None, length: int | None = None, beyond: bool | None = None
) -> None:
    """Raises InputError for heads, and for a length, that a model on this machine does not have. Reads no weights.

    beyond: whether --beyond-context is given; None for a command without it.
    """
    from ..backends.files.model_files import config_here
    from ..backends.huggingface import context_of
    from ..interventions.selectors import named_heads

    if (config := config_here(model)) is None or config.is_encoder_decoder:
        return
    sizes = config.get_text_config()
    fix = "" if beyond is None else "; load it with --beyond-context to read on"
    if heads is not None:
        named_heads(heads, "--head", range(sizes.num_hidden_layers), sizes.num_attention_heads)
    if length is not None and not beyond:
        most = context_of(config)
        check_context(length, most, model, f"use --length {most}{fix}")


def check_text(text: str | None, column: str = "text") -> None:
    """Raises InputError for a file or folder without texts. Call it before a model is loaded, which takes seconds."""
    from ..data.texts import check_readable, is_path

    check_no_model(text)
    if text is not None and is_path(text):
        check_readable(text, column)


def check_bos(subject: "Subject", bos: Bos) -> None:
    """Raises InputError for a rule about BOS that a model without a tokenizer cannot follow."""

    if bos is not Bos.TOKENIZER and subject.tokenizer is None:
        raise InputError(f"{subject.name} has no tokenizer, which knows BOS; leave --bos out")


PACKAGE = Path(__file__).parents[1]
MOST = 2**31 - 1  # of anything that is counted
MOST_SEEDS = 1000  # of a study, each of which trains every model again
LARGEST_SEED = 2**63 - 1  # random generators take 64 bits


def whole(least: int, most: int = MOST) -> Callable[[str | int], int]:
    """Returns a parser of whole numbers from `least` to `most`."""

    def parse(text: str | int) -> int:
        try:
            number = int(text if re.fullmatch(r"\s*[+-]?[0-9]+\s*", str(text)) else "")
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a whole number, such as {max(least, 1)}") from None
        if not least <= number <= most:
            raise typer.BadParameter(f"{_short(number)} is not in the range from {least} to {most}")
        return number

    return parse


def number(above: float, most: float) -> Callable[[str | float], float]:
    """Returns a parser of finite numbers greater than `above` and at most `most`."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number, such as {most}") from None
        if not (math.isfinite(value) and above < value <= most):
            raise typer.BadParameter(f"{value} is not a number above {above:g} and at most {most:g}")
        return value

    return parse


def share(text: str | float) -> float:
    """The threshold epsilon: a number between 0 and 1, both left out."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise typer.BadParameter(f"epsilon is a share of attention, between 0 and 1; got {_short(text)}")
    return value


def output_file(text: str | Path, suffix: str = ".csv") -> Path:
    """The path of a file that can be written: its folder, or the nearest one that exists, is a folder open to us."""
    path = _output(text)
    if path.is_dir() or str(text).endswith("/"):
        raise typer.BadParameter(f"{path} is a folder; name a file in it, such as {path / 'sinks'}{suffix}")
    if path.is_file() and not os.access(path, os.W_OK):
        raise typer.BadParameter(f"{path} is read-only; choose another file")
    return path


def _output_file_of(what: str, *suffixes: str) -> Callable[[str | Path], Path]:
    """Returns the parser of a file of one format. It may also have no suffix, as /dev/stdout has none."""

    def parse(text: str | Path) -> Path:
        path = output_file(text, suffixes[0])
        if path.suffix and path.suffix.lower() not in suffixes:
            raise typer.BadParameter(f"{_short(path)} is written as {what}; give a name that ends in {suffixes[0]}")
        return path

    parse.__name__ = output_file.__name__  # which the help shows
    return parse


json_file = _output_file_of("JSON", ".json")
page_file = _output_file_of("HTML", ".html", ".htm")
drawn_file = _output_file_of("HTML, or as a picture", ".html", ".htm", ".png", ".pdf", ".svg")
OUTPUT_FILES = (output_file, json_file, page_file, drawn_file)


def output_folder(text: str | Path) -> Path:
    """The path of a folder that exists or can be made."""
    path = _output(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file; give the name of a folder")
    if path.suffix in (".html", ".json", ".csv", ".pdf", ".png", ".svg", ".pt", ".safetensors") and not path.exists():
        raise typer.BadParameter(f"several files are written, into a folder; write --out {path.with_suffix('')}")
    return path


def input_file(text: str | Path) -> Path:
    """The path of a file that exists."""
    path = Path(text)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if is_folder:
        raise typer.BadParameter(f"cannot read {path}: it is a folder; give a file")
    _refuse_endless(path)
    if not is_file and not path.exists():
        raise typer.BadParameter(f"cannot read {path}: there is no such file; check the path")
    return path


def dtype_named(text: str) -> Dtype:
    """One of the dtypes that models run in, by its name in torch or a usual short one."""
    try:
        return Dtype(dtype_name(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a dtype that models run in; use {', '.join(Dtype)}") from None


def backend_named(text: str) -> str:
    """The name of a library that runs models."""
    if text not in BACKENDS:
        raise typer.BadParameter(f"{_short(text)!r} is not a library that runs models; use {', '.join(BACKENDS)}")
    return text


def token_file(text: str | Path) -> Path:
    """The path of a file of token ids."""
    from ..runs.case import token_ids

    path = input_file(text)
    try:
        token_ids(path)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    return path


def filled(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give a value, or leave the option out")
    return text


def source(text: str) -> str:
    """A text that is not empty, and may name a file, a folder or a model to read."""
    _refuse_endless(Path(text))
    if text.strip() == "-":
        raise typer.BadParameter("- is not the name of a file; write what it should read to a file, and give that")
    if re.fullmatch(r"\w+://\S+", text):
        raise typer.BadParameter(f"{_short(text)} is an address, which is not read; download it, and give the file")
    return filled(text)


def _refuse_endless(path: Path) -> None:
    """Refuses a device, and a pipe with a name, where a reader may wait for ever; those of a shell have a writer."""
    with suppress(OSError, ValueError):  # what is not a path is not a pipe
        if stat.S_ISFIFO(path.stat().st_mode) and Path(os.path.realpath(path)).exists():
            raise typer.BadParameter(f"cannot read {path}: it is a named pipe; give a file")
        if stat.S_ISCHR(path.stat().st_mode) or stat.S_ISBLK(path.stat().st_mode):
            raise typer.BadParameter(f"cannot read {path}: it is a device or a pipe, not a file; give a file")


def _output(text: str | Path) -> Path:
    path = Path(text)
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give the name of a file or folder")
    if str(text) == "-":
        raise typer.BadParameter("- is not the name of a file; give one, such as numbers.json")
    try:
        os.path.realpath(path)  # raises for names that no file can have
        with suppress(FileNotFoundError):
            path.stat()  # raises for a link that leads back to itself
        nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if nearest != path.absolute() and not nearest.is_dir():
        raise typer.BadParameter(f"{path} cannot be made: {nearest} is a file; choose another place")
    if nearest.is_dir() and not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: {nearest} is read-only; choose another place")
    return path


def _unusable(path: Path, error: Exception) -> typer.BadParameter:
    reason = getattr(error, "strerror", None) or str(error)
    return typer.BadParameter(f"{_short(path)} cannot be used: {reason}; choose another name")


def _short(value: object) -> str:
    """A value for a message, short enough to read."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:50]}...{text[-20:]}"


def names_in(file: str, variable: str = "") -> tuple[str, ...]:
    """The names that a file of the package gives to things: the keys of the dictionaries that it writes out.

    `variable` names a single dictionary. The source is read, since to import the file imports torch, for seconds.
    """
    statements = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    read = [node for node in statements if not variable or _assigned(node) == variable]
    inside = [inner for node in read for inner in ast.walk(node) if isinstance(inner, ast.Dict)]
    dictionaries = sorted(inside, key=lambda node: node.lineno)
    return tuple(str(key.value) for node in dictionaries for key in node.keys if isinstance(key, ast.Constant))


def _assigned(node: ast.stmt) -> str:
    """The variable that a statement assigns to; empty for other statements."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return getattr(target, "id", "")


def beginning(names: Callable[[], Iterable[str]] | Iterable[str]) -> Callable[[str], list[str]]:
    """Returns the completion of a shell: the names that begin as the user typed."""

    def complete(incomplete: str) -> list[str]:
        known = names() if callable(names) else names
        return [name for name in known if name.startswith(incomplete)]

    return complete


VARIANTS = names_in("lm/variants.py")
EDITS = re.findall(r'"([A-Z][a-z]+[A-Z]\w*)"', (PACKAGE / "interventions/__init__.py").read_text("utf-8"))
RECIPES = tuple(data_of("train/recipes.toml"))
PRESETS = names_in("measurement/measure.py", "PRESETS")
BACKENDS = names_in("backends/load.py", "_SUBJECTS")
HELP = data_of("cli/help.toml")

INPUTS = (input_file, token_file, source)

SEED = whole(0, LARGEST_SEED)
SEEDS = whole(1, MOST_SEEDS)
TOKENS = whole(2)  # of a sequence: one token shows no attention to another
SEQUENCES = whole(1)


Model = Annotated[str, typer.Argument(parser=source, autocompletion=beginning(models))]
Column = Annotated[str, typer.Option(parser=filled)]
Backend = Annotated[str, typer.Option(parser=backend_named, autocompletion=beginning(BACKENDS))]
Encoder = Annotated[str | None, typer.Option(parser=source)]
DeviceMap = Annotated[str | None, typer.Option("--device-map", "--device", parser=filled)]
Json = Annotated[Path | None, typer.Option("--json", parser=json_file)]
Text = Annotated[str | None, typer.Option(parser=source)]
Html = Annotated[Path | None, typer.Option("--html", parser=page_file)]
Out = Annotated[Path, typer.Option("--out", "--output", "-o", parser=page_file)]
DrawnOut = Annotated[Path, typer.Option("--out", "--output", "-o", parser=drawn_file)]
TokenFile = Annotated[Path | None, typer.Option(parser=token_file)]

Settings = Annotated[list[str], typer.Option("--set")]
OnRay = Annotated[str | None, typer.Option("--ray", parser=filled)]
Device = Annotated[str, typer.Option(parser=filled)]

NumbersOrDefault = Annotated[Dtype | None, typer.Option(parser=dtype_named)]


class Page(Frozen):
    """The page of a command, and how many tables it prints."""

    html_out: Html = None
    force: bool = False
    full: bool = False


class Tables(Page):
    """The files for the tables and figures of a command, and how many tables it prints."""

    json_out: Json = None


class Training(Frozen):
    """How a command trains."""

    settings: Settings = field(default_factory=list)
    seed: Annotated[int, typer.Option(parser=SEED)] = 0
    device: Device = "auto"
    force: bool = False


class Weights(Frozen):
    """How a command of the library transformers loads its model."""

    encoder: Encoder = None
    dtype: NumbersOrDefault = None
    device_map: DeviceMap = None

    def subject(self, model: str, dtype: str = Dtype.FLOAT32) -> "Subject":
        """The model of that name or folder, which computes in `dtype` unless --dtype says otherwise."""
        return load_subject(model, **vars(self) | {"dtype": self.dtype or dtype})


class Loading(Weights):
    """How a command of any library loads its model."""

    backend: Backend = "huggingface"
    beyond_context: bool = False


_RUN = ("lock", "step-*", "damaged-*", "model")  # in the folder of a run


class Places(Frozen):
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
            for folder in filter(partial(_is_in, output), _caches()):
                yield f"{output} lies in {folder}, which holds models and texts"
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
    options = [_with_help(option, command.__name__) for option in options]
    parsers = {option.name: option.annotation.__metadata__[0].parser for option in options}

    @wraps(command)
    def run(**given: Any) -> None:
        def values(*kinds: Any) -> list[Any]:
            return [value for name, value in given.items() if value is not None and parsers[name] in kinds]

        reads = _paths_in(values(*INPUTS))
        places = Places(tuple(reads), tuple(values(*OUTPUT_FILES)), tuple(values(output_folder)))
        check_ours(places.files, OR_FORCE, bool(given.get("force")))
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options_in(parameter: Parameter) -> Iterator[Parameter]:
    """The options that a parameter of a command stands for."""
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return
    for each in fields(parameter.annotation):
        made = each.default if each.default_factory is MISSING else each.default_factory()
        default = Parameter.empty if made is MISSING else made
        yield Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=each.type)


@cache
def _names() -> dict[str, str]:
    """What has a name that help lists."""
    names = {"variants": VARIANTS, "recipes": RECIPES, "experiments": experiment_names()}
    return {name: ", ".join(known) for name, known in names.items()}


def _with_help(option: Parameter, command: str) -> Parameter:
    """The option with what `help.toml` says of it. A truth that is false by default has no --no-..."""
    has_more = get_origin(option.annotation) is Annotated
    hint, *declared = get_args(option.annotation) if has_more else (option.annotation,)
    flag = (f"--{option.name.replace('_', '-')}",) if hint is bool and option.default is False else ()
    about = copy(declared[0]) if declared else typer.Option(*flag)
    words = HELP.get(command, {}).get(option.name) or HELP["every"][option.name]
    about.help = words.format(**_names())
    return option.replace(annotation=Annotated[hint, about])


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
