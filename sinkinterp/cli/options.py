"""The options that several commands have, alone and in groups, and the checks before a command runs."""

import ast
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from ..backends.named_models import models
from ..checks import InputError, check_context, each_once, nearest, refusal, whole_number
from ..data.choices import Bos as BosChoice, Drawn as DrawnChoice, Dtype as DtypeChoice
from ..data.progress import OnProgress, no_progress
from ..files import check_writable
from .terminal import Wanted

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..data.texts import Texts
    from ..data.tokens import TokenSet
    from ..interventions import Edit
    from ..measurement.measure import Preset
    from ..report.report import Report
    from ..runs.inputs import Inputs
    from ..table import Table

PAGES, PICTURES, TABLES = (".html", ".htm"), (".png", ".pdf", ".svg"), (".csv", ".json", ".md", ".tex")


def beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns the completion of a shell: the names that begin as the user typed."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def filled(text: str) -> str:
    """A text that is not empty."""
    if not text.strip():
        raise typer.BadParameter("it is empty")
    return text


def source(text: str) -> str:
    """A text that is not empty, and does not name a device or a pipe, whose reader may wait for ever.

    The pipes of a shell have no path, and a writer.
    """
    path = Path(filled(text))
    try:
        is_pipe = path.is_fifo() and Path(os.path.realpath(path)).exists()
        if is_pipe or path.is_char_device() or path.is_block_device():
            raise typer.BadParameter(f"{path} is a device or a pipe, not a file")
    except (OSError, ValueError):  # it is not a path
        pass
    return text


def source_file(text: str) -> Path:
    """The path of a file that is read; see `source`."""
    return Path(source(text))


def written_as(*endings: str) -> Callable[[Any], Path]:
    """Returns the parser of a file that a command writes. Its name ends in one of `endings`."""

    def path_to(text: str | Path) -> Path:
        path = Path(text)
        if path.suffix.lower() not in endings:
            raise typer.BadParameter(f"{path} does not end in {', '.join(endings)}")
        return path

    return path_to


class Head(tuple[int, int]):
    """The layer and the head that a command line names, such as 3.7."""

    @staticmethod
    def of(name: str, option: str = "--head") -> "Head":
        """The head of a name. Raises InputError, which names the option, for anything else."""
        parts = name.split(".")
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise InputError(f"{option} takes a layer and a head, such as 3.7; got {name!r}")
        return Head(map(int, parts))


def each_head_once(heads: list[Head]) -> list[Head]:
    """The heads. Raises InputError for one that is named twice."""
    each_once(heads, "--head")
    return heads


def check_outputs(force: bool, *outputs: Path | None, reads: Sequence[Path | str | None] = ()) -> None:
    """Raises InputError unless each file can be written. A file that exists needs `force`; an input is never replaced.

    reads: the files that the command reads; texts among them do no harm.
    """
    files = [path for path in outputs if path is not None]
    for one, other in combinations(files, 2):
        if os.path.realpath(one) == os.path.realpath(other):
            raise InputError(f"two outputs name the same file, {other}")
    inputs = {os.path.realpath(given) for given in reads if given is not None and "\0" not in str(given)}
    for path in files:
        if os.path.realpath(path) in inputs:
            raise InputError(f"this command reads {path}")
        check_writable(path, force)


def suffix_of(path: Path | None) -> str:
    """The ending of a file's name in small letters; empty without a file."""
    return "" if path is None else path.suffix.lower()


def check_run(folder: Path) -> None:
    """Raises InputError for a folder that holds something else than a run."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if names and not any(name in ("lock", "model", "adapter") or name.startswith("step-") for name in names):
        raise InputError(f"{folder} holds {min(names)}, which is not of a run")
    check_writable(folder / "lock")


def readable_texts(text: str | None, column: str | None = None) -> "Texts | None":
    """The texts of --text. Raises InputError if they cannot be read, and for a --column that they do not have."""
    from ..data.texts import ending_of, files_of, named_texts

    if text is None:
        return None
    texts = named_texts(text, column or "text")
    endings = set() if texts.path is None else {*map(ending_of, files_of(texts.path))}
    check_used("--column", column, "a --text with columns", text if endings != {".txt"} else None)
    texts.check_text()
    return texts


def check_used(option: str, value: Any, needed: str, other: Any) -> None:
    """Raises InputError for an option that has no effect without another one."""
    if value is not None and other is None:
        raise InputError(f"{option} has no effect without {needed}")


def check_sizes(
    model: str, heads: list[Head], length: int | None = None, beyond_context: bool = False, layers: Sequence[int] = ()
) -> None:
    """Raises InputError for heads, layers or a length that a model on this machine does not have. Reads no weights."""
    from ..backends.model_files import config_here, context_of
    from ..interventions.selectors import named_heads

    if (config := config_here(model)) is None or config.is_encoder_decoder:
        return
    sizes = config.get_text_config()
    if heads:
        named_heads(heads, "--head", range(sizes.num_hidden_layers), sizes.num_attention_heads)
    for layer in layers:
        whole_number(layer, "--layer", 0, sizes.num_hidden_layers)  # the last is the block behind all layers
    if length is not None and not beyond_context:
        most = context_of(config)
        check_context(length, most, model, f"use --length {most}")


def option(about: str, *names: str, metavar: str | None = None, **how: Any) -> Any:
    """An option with its help; `how` is of typer's Option."""
    return typer.Option(*names, help=about, metavar=metavar, **how)


def n(about: str, *names: str, **limits: int) -> Any:
    """An option that takes a whole number."""
    return option(about, *names, metavar="N", **limits)


def word(about: str, metavar: str, *names: str, parser: Callable[[str], Any] = filled, **how: Any) -> Any:
    """An option that takes a text which is not empty."""
    return option(about, *names, metavar=metavar, parser=parser, **how)


def folder(about: str) -> Any:
    """An option that names a folder to write to."""
    return option(about, "--out", metavar="FOLDER", parser=lambda text: Path(filled(str(text))))


def file(about: str, name: str, *endings: str) -> Any:
    """An option that names a file to write, which ends in one of `endings`."""
    return option(about, name, metavar="FILE", parser=written_as(*endings))


LARGEST = 2**63 - 1  # seed of a random generator
Model = Annotated[
    str,
    typer.Argument(
        help="A name (`sinkinterp list models`), folder, .gguf file, or a name on Hugging Face.",
        parser=source,
        autocompletion=beginning(models),
        metavar="MODEL",
    ),
]

Text = Annotated[str | None, word("Texts: a file, a folder, or a data set, hub:NAME.", "FILE", parser=source)]
Prompt = Annotated[str | None, word("A text.", "TEXT")]
Column = Annotated[str | None, word("The column of --text that holds the texts; default: text.", "NAME")]
Tokens = Annotated[Path | None, word("A .json file: a list of lists of token ids.", "FILE", parser=source_file)]
Drawn = Annotated[DrawnChoice | None, option("Draw tokens: random, or repeat (one token).", metavar="HOW")]
Bos = Annotated[BosChoice | None, option("BOS: tokenizer (as it decides), always or never.", metavar="RULE")]

Encoder = Annotated[str | None, word("Input of an encoder: silence, off, a file, or a text.", "INPUT", parser=source)]
Dtype = Annotated[DtypeChoice | None, option("float32, bfloat16 or float16.", metavar="DTYPE")]
DeviceMap = Annotated[str | None, word("Where weights go, as in transformers: auto, cuda:0.", "MAP")]
BeyondContext = Annotated[bool, option("Also read texts longer than the model's context.", "--beyond-context")]

Edits = Annotated[list[str], option('An edit, such as "SwapPositions(0, 4)"; repeatable.', "--edit", metavar="EDIT")]
_HEADS = {"parser": Head.of, "callback": each_head_once, "metavar": "HEAD"}
Heads = Annotated[list[Head], option("3.7 for layer 3, head 7; repeatable.", "--head", **_HEADS)]
Layers = Annotated[list[int], n("Rows of this layer only; repeatable.", "--layer", min=0)]
Positions = Annotated[list[int], n("Rows of this position, from 0; repeatable.", "--position", min=0)]

Format = Annotated[
    Literal["csv", "json", "markdown", "latex"] | None,
    option("Print tables as csv, json, markdown or latex.", metavar="FORMAT"),
]
Full = Annotated[bool, option("Print every table.", "--full")]
Force = Annotated[bool, option("Replace files that exist.", "--force")]
DRAWN = (*PAGES, *PICTURES)
Drawing = Annotated[
    Path | None, file("Write a page, .html, or a figure, .png, .pdf, .svg.", "--out", *PAGES, *PICTURES)
]
SavedTable = Annotated[Path | None, file("Write the table: .csv, .json, .md or .tex.", "--save", *TABLES)]
Browser = Annotated[bool, option("Open the page in the browser.", "--open/--no-open")]

Changes = Annotated[list[str], option("lr=1e-2, model.n_layers=4; repeatable.", "--set", metavar="KEY=VALUE")]
Seed = Annotated[int, n("Seed of new weights, and of the order of the text.", min=0, max=LARGEST)]
Ray = Annotated[str | None, word("Use Ray: local, auto, or the address of a cluster.", "WHERE")]


def in_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter that is a dataclass becomes its fields, each an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if kind := groups.get(name):
            parameters += [_option(each.name, each.type, getattr(kind(), each.name)) for each in fields(kind)]
        else:
            parameters += [_option(name, hints[name], own.default)]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    vars(run)["__signature__"] = Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _option(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@dataclass(frozen=True)
class OneText:
    """What a command reads that reads one text."""

    text: Text = None
    column: Column = None
    tokens: Tokens = None
    length: Annotated[int | None, n("Tokens of a sequence.", min=2)] = None
    bos: Bos = None

    @property
    def files(self) -> Sequence[Path | str | None]:
        """What an output may not replace."""
        return self.text, self.tokens

    @property
    def texts(self) -> "Texts | None":
        """The texts of --text."""
        from ..data.texts import named_texts

        return None if self.text is None else named_texts(self.text, self.column or "text")

    def check(self) -> None:
        """Raises InputError for two inputs, and for an option without effect on this one."""
        inputs = ("text", "prompt", "tokens", "drawn")  # of which some commands have some
        given = [f"--{name}" for name in inputs if getattr(self, name, None) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} are given together; give one")
        check_used("--column", self.column, "--text", self.text)
        check_used("--bos", self.bos, "a text or drawn tokens", True if self.tokens is None else None)

    def check_files(self) -> None:
        """Raises InputError for a file that cannot be read."""
        from ..runs.inputs import token_ids

        if self.tokens is not None:
            token_ids(self.tokens)
        readable_texts(self.text, self.column)


@dataclass(frozen=True)
class ManyTexts(OneText):
    """What a model reads, and how much of it; None where the user did not say it."""

    drawn: Drawn = None
    seed: Annotated[int | None, n("Seed of --drawn; default: 0.", min=0, max=LARGEST)] = None
    sequences: Annotated[int | None, n("How many sequences are read.", min=1)] = None

    @property
    def prompt(self) -> str | None:
        """A text of the command line."""
        return None

    def check(self) -> None:
        super().check()
        check_used("--seed", self.seed, "--drawn", self.drawn)

    def over(self, settings: "Preset", **others: Any) -> "Preset":
        """The settings, with those that the user gave in their place; `others` are of other options."""
        sequences = 1 if self.prompt is not None else self.sequences
        given = {"length": self.length, "sequences": sequences, "bos": self.bos, **others}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})

    def inputs(self, settings: "Preset", is_default: bool) -> "Inputs":
        """The inputs. Fewer and shorter ones will do where `is_default` and the user gives no size, or one text."""
        from ..runs.inputs import Inputs

        is_prompt = self.prompt is not None
        return Inputs(
            settings.length,
            settings.sequences,
            settings.bos,
            text=self.texts if self.prompt is None else self.prompt,
            tokens=self.tokens,
            drawn=self.drawn,
            seed=self.seed or 0,
            may_be_shorter=self.length is None and (is_default or is_prompt),
            may_be_fewer=self.sequences is None and is_default and not is_prompt,
        )

    def token_set(
        self, subject: "Subject", model: str, length: int, sequences: int, on_file: OnProgress = no_progress
    ) -> "TokenSet":
        """The tokens of a command with these defaults: sequences of one length that fits the context, or fewer."""
        from ..measurement.measure import Preset

        check_used("--bos", self.bos, "a model with a tokenizer", subject.tokenizer)
        size = self.over(Preset(length=length, sequences=sequences))
        fitting = replace(size, length=min(size.length, subject.shape.n_ctx or size.length))
        inputs = replace(self.inputs(fitting, True), may_be_shorter=self.prompt is not None and self.length is None)
        return inputs.token_set(subject, model, on_file)


@dataclass(frozen=True)
class TextsOrPrompt(ManyTexts):
    """What a model reads, which may be a text of the command line."""

    prompt: Prompt = None

    def check(self) -> None:
        super().check()
        if self.prompt is not None and self.sequences not in (None, 1):
            raise InputError(f"one text is one sequence, not {self.sequences}; give a file of texts, --text FILE")


@dataclass(frozen=True)
class Loading:
    """How a command loads its model."""

    encoder: Encoder = None
    dtype: Dtype = None
    device_map: DeviceMap = None

    def subject(self, model: str, dtype: str = DtypeChoice.FLOAT32) -> "Subject":
        """The model of that name or folder, which computes in `dtype` unless --dtype says otherwise."""
        from ..backends.encoder import encoder_input
        from ..backends.load import load

        given = {each.name: getattr(self, each.name) for each in fields(self)}
        encoder = None if self.encoder is None else encoder_input(self.encoder)
        return load(model, **given | {"dtype": self.dtype or dtype, "encoder": encoder})


@dataclass(frozen=True)
class LoadingIn(Loading):
    """How a command loads its model, in a backend that the user chooses."""

    backend: Annotated[
        Literal["huggingface", "nnsight", "transformer_lens"],
        option("huggingface, nnsight or transformer_lens.", metavar="NAME", show_default=False),
    ] = "huggingface"
    beyond_context: BeyondContext = False


@dataclass(frozen=True)
class Outputs:
    """In which form a command answers: what it prints, and the files that it writes."""

    format: Format = None
    save: Annotated[Path | None, file("Write the answer and its tables: .json.", "--save", ".json")] = None
    out: Annotated[Path | None, file("Write a page: .html.", "--out", *PAGES)] = None
    force: Force = False

    def check(self, *reads: Path | str | None) -> None:
        """Raises InputError unless each file can be written, and is none that the command reads."""
        check_outputs(self.force, self.save, self.out, reads=reads)

    def answer_files(
        self, answer: str, tables: "Sequence[Table]", page: Callable[[], str], more: Mapping[str, Any] = {}
    ) -> tuple[Wanted, Wanted]:
        """An answer with its tables and what else it holds, as JSON; and its page."""
        plain = {"answer": answer, "tables": [table.to_dict() for table in tables], **more}
        return (self.save, lambda: plain), (self.out, page)


@dataclass(frozen=True)
class TableOutputs(Outputs):
    """In which form a command writes one table, and its figure."""

    save: SavedTable = None
    out: Drawing = None

    def table_files(self, what: "Table | Report", page: Callable[[], str]) -> tuple[Wanted, Wanted]:
        """A table, or a report; and its page, or its figure, as the ending of the file says."""
        from ..pages.report import PAGES, content

        drawn = page if suffix_of(self.out) in PAGES else partial(content, what, suffix_of(self.out))
        return (self.save, partial(content, what, suffix_of(self.save))), (self.out, drawn)


_EXAMPLE = "write a public edit with its values, such as SwapPositions(0, 4) or ZeroKeyBias()"


def edits_of(texts: Sequence[str]) -> "list[Edit]":
    """The edits of --edit, in their order. Raises InputError as `edit_of` does."""
    return [edit_of(text) for text in texts]


def edit_of(text: str) -> "Edit":
    """The edit of a text: a name of `sinkinterp.interventions`, called with literals, sites, kernels, shares
    or operations.

    Raises InputError for anything else, and for values that the edit refuses.
    """
    from .. import interventions

    with refusal(f"{text!r:.80} is not an edit", _EXAMPLE, (SyntaxError, ValueError, TypeError, RecursionError)):
        edit = _value(ast.parse(text.strip(), "--edit", mode="eval").body)
    if not isinstance(edit, interventions.Edit):
        raise InputError(f"{text!r:.80} is not an edit; {_EXAMPLE}")
    return edit


def _value(node: ast.expr) -> Any:
    """The value of a literal, a list or tuple of values, a site, or a call of a public name with values."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {each.arg: _value(each.value) for each in node.keywords if each.arg is not None}
        if len(named) == len(node.keywords):  # no **mapping
            return _named(node.func.id, is_called=True)(*map(_value, node.args), **named)
    if isinstance(node, ast.Name):
        return _named(node.id, is_called=False)
    prefixed = node.func if isinstance(node, ast.Call) else node
    if isinstance(prefixed, ast.Attribute) and isinstance(prefixed.value, ast.Name | ast.Attribute):
        raise ValueError(f"{ast.unparse(prefixed)} has a prefix; --edit takes {prefixed.attr} alone")
    if isinstance(node, ast.Call | ast.Attribute):
        raise ValueError(f"{ast.unparse(node)} is not a call with values")
    return ast.literal_eval(node)


def _named(name: str, is_called: bool) -> Any:
    """The edit, operation, kernel or share of that name, which is called; or the site, which is not."""
    from .. import interventions
    from ..attention import kernels, sites
    from ..interventions.attention_layers import Share
    from ..interventions.changes import ClampNorm, MatchedNoise, WithoutMassive

    of_kernels = {each: kind for each, kind in vars(kernels).items() if isinstance(kind, type)}
    called = {each: kind for each, kind in of_kernels.items() if kind.__module__ == kernels.__name__ and each[0] != "_"}
    called |= {kind.__name__: kind for kind in (*Share.__subclasses__(), ClampNorm, MatchedNoise, WithoutMassive)}
    called |= {each: getattr(interventions, each) for each in interventions.__all__}
    known = called if is_called else {each: x for each, x in vars(sites).items() if isinstance(x, sites.Site)}
    if name in known:
        return known[name]
    if name in called:
        raise ValueError(f"{name} needs brackets, {name}()")
    raise ValueError(f"there is no public edit or site {name}{nearest(name, (*known, *called))}")
