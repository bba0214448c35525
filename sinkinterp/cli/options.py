"""Options of commands: parsers of their values, those that commands share, and the check of all places before a run.

A parser takes what the user typed and returns a value in the option's domain. What it refuses becomes one line that
names the option, with exit code 2, before anything is loaded or written. No output replaces what is not ours.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fnmatch import fnmatch
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from ..backends.files.named_models import SHIPPED, check_no_model, downloads, located, models
from ..checks import InputError, check_context, choice, finite_number, refusing, whole_number
from ..data.choices import Bos, Dtype, dtype_name
from ..files import cache_folder, check_writable, data_of
from ..runs.catalogue import experiment_names
from ..seals import check_ours
from .terminal import OR_FORCE, TABLE_FORMAT, format_of_redirect, print_line, quiet_libraries

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..report.maps import Heads


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


def check_text(text: str | None, column: str = "text", how: str = "each a text") -> None:
    """Raises InputError for a file or folder without texts, before a model is loaded. Says how lines are read."""
    from ..data.texts import check_readable, is_path, lines_of

    check_no_model(text)
    if text is not None and is_path(text):
        check_readable(text, column)
        if lines := lines_of(Path(text)):
            print_line(f'{text}: {len(lines)} lines, {how}; --text "$(cat {text})" reads them as one text')


def check_used(option: str, value: Any, needed: str, other: Any) -> None:
    """Raises InputError for an option that has no effect without another one."""
    if value is not None and other is None:
        raise InputError(f"{option} has no effect without {needed}; leave {option} out, or give {needed}")


def check_bos(subject: "Subject", bos: Bos) -> None:
    """Raises InputError for a rule about BOS that a model without a tokenizer cannot follow."""
    check_used("--bos", None if bos is Bos.TOKENIZER else bos, "a model with a tokenizer", subject.tokenizer)


V = TypeVar("V")
PACKAGE = Path(__file__).parents[1]
MOST = 2**31 - 1  # of anything that is counted


def parser(parse: Callable[[Any], V]) -> Callable[[Any], V]:
    """The parser of an option's value. What it refuses by InputError is an error of that option."""

    @wraps(parse)
    def parsed(text: Any) -> V:
        try:
            return parse(text)
        except InputError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def whole(least: int, most: int = MOST) -> Callable[[Any], int]:
    """Returns a parser of whole numbers from `least` to `most`."""

    @parser
    def parse(text: str | int) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,1000}\s*", str(text)):
            raise InputError(f"{text!r} is not a whole number, such as {max(least, 1)}")
        return whole_number(int(text), "it", least, most)

    return parse


def number(what: str, **limits: float) -> Callable[[Any], float]:
    """Returns a parser of finite numbers, which errors call `what`, within the limits of `finite_number`."""

    @parser
    def parse(text: str | float) -> float:
        with suppress(ValueError):
            text = float(text)
        return finite_number(text, what, **limits)

    return parse


share = number("epsilon, a share of attention,", above=0, below=1)


ENDINGS: dict[Any, tuple[str, ...]] = {}  # of the files that an option writes, by its parser


def _output_file_of(what: str, *suffixes: str) -> Callable[[Any], Path]:
    """Returns the parser of a file that can be written. It may also have no suffix, as /dev/stdout has none."""

    @parser
    def parse(text: str | Path) -> Path:
        path = _output(text)
        if os.path.isdir(path) or str(text).endswith("/"):
            raise InputError(f"{path} is a folder; name a file in it, such as {path / 'sinks'}{suffixes[0]}")
        if what and path.suffix and path.suffix.lower() not in suffixes:
            raise InputError(f"{path} is written as {what}; give a name that ends in {suffixes[0]}")
        check_writable(path)
        return path

    ENDINGS[parse] = suffixes
    return parse


_NUMBERS = (".csv", ".json", ".md", ".tex")
_PICTURES = (".html", ".htm", ".png", ".pdf", ".svg")
output_file = _output_file_of("", ".csv", ".json", *_PICTURES, ".safetensors")  # whose suffix says what is written
json_file = _output_file_of("JSON", ".json")
page_file = _output_file_of("HTML", ".html", ".htm")
drawn_file = _output_file_of("HTML, or as a picture", *_PICTURES)
table_file = _output_file_of("a table, a page or a picture", *_NUMBERS, *_PICTURES)


@parser
def output_folder(text: str | Path) -> Path:
    """The path of a folder that exists or can be made."""
    path = _output(text)
    if os.path.isfile(path):
        raise InputError(f"{path} is a file; give the name of a folder")
    check_writable(path / "lock")
    if path.suffix in (*_NUMBERS, *_PICTURES, ".pt", ".safetensors") and not path.exists():
        raise InputError(f"several files are written, into a folder; write --out {path.with_suffix('')}")
    return path


def _output(text: str | Path) -> Path:
    if str(text).strip() in ("", "-"):
        raise InputError(f"{text!r} is not the name of a file or a folder; give one, such as numbers.json")
    return Path(text)


@parser
def dtype_named(text: str) -> Dtype:
    """One of the dtypes that models run in, by its name in torch or a usual short one."""
    return choice(dtype_name(text), {dtype.value: dtype for dtype in Dtype}, "dtype of models")


@parser
def backend_named(text: str) -> str:
    """The name of a library that runs models."""
    return choice(text, {backend: backend for backend in BACKENDS}, "backend")


@parser
def token_file(text: str | Path) -> Path:
    """The path of a file of token ids."""
    from ..runs.case import token_ids

    path = Path(text)
    _check_no_device(path)
    token_ids(path)
    return path


@parser
def filled(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise InputError("it is empty; give a value, or leave the option out")
    return text


@parser
def source(text: str) -> str:
    """A text that is not empty, and may name a file, a folder or a model to read."""
    _check_no_device(Path(text))
    if text.strip() == "-":
        raise InputError("- is not the name of a file; write what it should read to a file, and give that")
    if re.fullmatch(r"\w+://\S+", text):
        raise InputError(f"{text} is an address, which is not read; download it, and give the file")
    return filled(text)


def _check_no_device(path: Path) -> None:
    """Raises InputError for a device, and for a pipe with a name, where a reader may wait for ever.

    The pipes of a shell have no path, and a writer.
    """
    try:
        is_pipe = path.is_fifo() and Path(os.path.realpath(path)).exists()
        is_endless = is_pipe or path.is_char_device() or path.is_block_device()
    except OSError:  # what is not a path is not a pipe
        return
    if is_endless:
        raise InputError(f"cannot read {path}: it is a device or a pipe, not a file; give a file")


def names_in(file: str, variable: str = "") -> tuple[str, ...]:
    """The names that a file of the package gives to things: the keys of the dictionaries that it writes out.

    `variable` names a single dictionary. The source is read, since to import the file imports torch, for seconds.
    """
    text = (PACKAGE / file).read_text(encoding="utf-8")
    inside = re.search(rf"^{variable}\b.*?^}}", text, re.M | re.S) if variable else None
    return tuple(re.findall(r'[{ ]"([\w.-]+)": ', inside[0] if inside else text))


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

INPUTS = (token_file, source)

SEED = whole(0, 2**63 - 1)  # random generators take 64 bits
SEEDS = whole(1, 1000)  # of a study, each of which trains every model again
TOKENS = whole(2)  # of a sequence: one token shows no attention to another
SEQUENCES = whole(1)


Model = Annotated[str, typer.Argument(parser=source, autocompletion=beginning(models))]
Column = Annotated[str, typer.Option(parser=filled)]
Encoder = Annotated[str | None, typer.Option(parser=source)]
DeviceMap = Annotated[str | None, typer.Option("--device-map", "--device", parser=filled)]
Json = Annotated[Path | None, typer.Option("--json", parser=json_file)]
Out = Annotated[Path, typer.Option("--out", "--output", "-o", parser=page_file)]
TableOut = Annotated[Path, typer.Option("--out", "--output", "-o", parser=table_file)]
Save = Annotated[Path | None, typer.Option("--save", parser=table_file)]
DrawnOut = Annotated[Path, typer.Option("--out", "--output", "-o", parser=drawn_file)]
Edits = Annotated[list[str], typer.Option("--edit", parser=filled)]

TableFormat = Annotated[Literal["csv", "json", "markdown", "latex"] | None, typer.Option(show_default="a grid")]
Settings = Annotated[list[str], typer.Option("--set")]
OnRay = Annotated[str | None, typer.Option("--ray", parser=filled)]


@dataclass(frozen=True)
class Page:
    """The page of a command, and how many tables it prints."""

    html_out: Annotated[Path | None, typer.Option("--html", parser=page_file)] = None
    force: bool = False
    full: bool = False


@dataclass(frozen=True)
class Tables(Page):
    """The files for the tables and figures of a command, and how many tables it prints."""

    json_out: Json = None


@dataclass(frozen=True)
class Training:
    """How a command trains."""

    settings: Settings = field(default_factory=list)
    seed: Annotated[int, typer.Option(parser=SEED)] = 0
    device: Annotated[str, typer.Option(parser=filled)] = "auto"
    force: bool = False


@dataclass(frozen=True)
class Weights:
    """How a command of the library transformers loads its model."""

    encoder: Encoder = None
    dtype: Annotated[Dtype | None, typer.Option(parser=dtype_named)] = None
    device_map: DeviceMap = None

    def subject(self, model: str, dtype: str = Dtype.FLOAT32) -> "Subject":
        """The model of that name or folder, which computes in `dtype` unless --dtype says otherwise."""
        from ..backends.encoder import encoder_input
        from ..backends.load import load

        encoder = None if self.encoder is None else encoder_input(self.encoder)
        return load(model, **vars(self) | {"dtype": self.dtype or dtype, "encoder": encoder})


@dataclass(frozen=True)
class Loading(Weights):
    """How a command of any library loads its model."""

    backend: Annotated[str, typer.Option(parser=backend_named, autocompletion=beginning(BACKENDS))] = "huggingface"
    beyond_context: bool = False


_RUN = ("lock", "step-*", "damaged-*", "model")  # in the folder of a run


@refusing
def check_places(reads: Iterable[Path], files: list[Path], folders: list[Path]) -> Iterator[str]:
    """Refuses outputs of a command, files and folders with several files, that would replace what is read.

    These are inputs and what is inside them, models and texts of the caches, and two outputs that are one file. Links
    are followed.
    """
    from huggingface_hub import constants

    caches = (SHIPPED, downloads(), cache_folder() / "texts", Path(constants.HF_HUB_CACHE))
    places = dict.fromkeys(reads, "this command reads") | dict.fromkeys(caches, "holds models and texts")
    fix = "choose another place for the output"
    for output in (*files, *folders):
        for place, what in places.items():
            if _is_in(output, place):
                yield f"{output} is in {place}, which {what}; {fix}"
    for one, other in combinations(files, 2):
        if _is_in(one, other) and (one.is_file() or not one.exists()):
            yield f"two outputs name the same file, {other}; {fix}"


def check_run(folder: Path | None, force: bool) -> None:
    """Raises InputError for a folder that holds something, and no run, unless `force` is set."""
    if folder is None or force or not folder.is_dir():
        return
    names = [path.name for path in folder.iterdir()]
    if names and not any(fnmatch(name, pattern) for name in names for pattern in _RUN):
        raise InputError(f"{folder} holds {names[0]}, which is not of a run; choose another folder, or add --force")


NO_TABLES = ("train", "finetune", "view", "serve", "gallery", "generate", "story", "book")  # commands that print none
FORMAT_OPTION = Parameter("format", Parameter.KEYWORD_ONLY, default=None, annotation=TableFormat)


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which first checks its places, and that the files that its options name are ours or new.

    Its options declare what they are by their parsers: `INPUTS`, `ENDINGS` and `output_folder`.
    A parameter whose type is a dataclass stands for an option per field.
    """
    groups: dict[str, Any] = {name: hint for name, hint in command.__annotations__.items() if is_dataclass(hint)}
    options = [option for parameter in signature(command).parameters.values() for option in _options_in(parameter)]
    options += [FORMAT_OPTION] * (command.__name__ not in NO_TABLES)
    options = [_with_help(option, command.__name__) for option in options]
    parsers = {option.name: option.annotation.__metadata__[0].parser for option in options}

    @wraps(command)
    def run(**given: Any) -> None:
        def values(*kinds: Any) -> list[Any]:
            return [value for name, value in given.items() if value is not None and parsers[name] in kinds]

        files = values(*ENDINGS)
        check_places(_paths_in(values(*INPUTS)), files, values(output_folder))
        check_ours(files, OR_FORCE, bool(given.get("force")))
        quiet_libraries()
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        context = copy_context()
        context.run(TABLE_FORMAT.set, given.pop("format", None) or format_of_redirect())
        context.run(command, **given)

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


def _is_in(path: Path, place: Path) -> bool:
    """Tells if a path is a place, is inside it, or is the file that a link in it leads to."""
    if path.resolve().is_relative_to(place.resolve()):
        return True
    with suppress(OSError):  # what cannot be read holds no output of ours
        files = filter(Path.is_file, place.iterdir()) if place.is_dir() else [place]
        return path.is_file() and any(map(path.samefile, files))
    return False
