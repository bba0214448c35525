"""The options that several commands have, each with its help, and the checks of files before a command runs."""

import ast
import os
from collections.abc import Callable, Iterable, Sequence as SequenceOf
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..backends.named_models import models
from ..checks import InputError, check_context, each_once, nearest, refusal, whole_number
from ..data.choices import Bos as BosChoice, Drawn as DrawnChoice, Dtype as DtypeChoice
from ..files import check_writable

if TYPE_CHECKING:
    from ..data.texts import Texts
    from ..interventions import Edit

Heads = list[tuple[int, int]]
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


def written_as(*endings: str) -> Callable[[Any], Path]:
    """Returns the parser of a file that a command writes. Its name ends in one of `endings`."""

    def path_to(text: str | Path) -> Path:
        path = Path(text)
        if path.suffix.lower() not in endings:
            raise typer.BadParameter(f"{path} does not end in {', '.join(endings)}")
        return path

    return path_to


def check_outputs(force: bool, *outputs: Path | None, reads: SequenceOf[Path | str | None] = ()) -> None:
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


def texts_named(text: str | None, column: str | None = None) -> "Texts | None":
    """The texts of --text. Raises InputError if they cannot be read, and for a --column that they do not have."""
    from ..data.texts import ending_of, files_of, named_texts

    check_used("--column", column, "--text", text)
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
    model: str, heads: Heads, length: int | None = None, beyond_context: bool = False, layers: SequenceOf[int] = ()
) -> None:
    """Raises InputError for heads, layers or a length that a model on this machine does not have. Reads no weights."""
    from ..backends.huggingface import context_of
    from ..backends.model_files import config_here
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


def heads_named(names: SequenceOf[str]) -> Heads:
    """The heads of --head, such as 3.7. Raises InputError for a head that is named twice."""
    heads = [layer_and_head(name) for name in names]
    each_once(heads, "--head")
    return heads


def layer_and_head(name: str, option: str = "--head") -> tuple[int, int]:
    """The layer and the head of a name such as 3.7. Raises InputError, which names the option, for another."""
    layer, _, head = name.partition(".")
    if not all(part.isascii() and part.isdecimal() for part in (layer, head)):
        raise InputError(f"{option} takes a layer and a head, such as 3.7; got {name!r}")
    return int(layer), int(head)


def option(about: str, *names: str, metavar: str | None = None, **how: Any) -> Any:
    """An option with its help; `how` is of typer's Option."""
    return typer.Option(*names, help=about, metavar=metavar, **how)


def n(about: str, *names: str, **limits: int) -> Any:
    """An option that takes a whole number."""
    return option(about, *names, metavar="N", **limits)


def word(about: str, metavar: str, *names: str, parser: Callable[[str], str] = filled, **how: Any) -> Any:
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
Tokens = Annotated[str | None, word("A .json file: a list of lists of token ids.", "FILE", parser=source)]
Drawn = Annotated[DrawnChoice | None, option("Draw tokens: random, or repeat (one token).", metavar="HOW")]
Bos = Annotated[BosChoice | None, option("BOS: tokenizer (as it decides), always or never.", metavar="RULE")]

Encoder = Annotated[str | None, word("Input of an encoder: silence, off, a file, or a text.", "INPUT", parser=source)]
Dtype = Annotated[DtypeChoice | None, option("float32, bfloat16 or float16.", metavar="DTYPE")]
DeviceMap = Annotated[str | None, word("Where weights go, as in transformers: auto, cuda:0.", "MAP")]
BeyondContext = Annotated[bool, option("Also read texts longer than the model's context.", "--beyond-context")]

Edits = Annotated[list[str], option('An edit, such as "SwapPositions(0, 4)"; repeatable.', "--edit", metavar="EDIT")]
HeadNames = Annotated[list[str], option("3.7 for layer 3, head 7; repeatable.", "--head", metavar="HEAD")]
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


_EXAMPLE = "write a public edit with its values, such as SwapPositions(0, 4) or ZeroKeyBias()"


def edits_of(texts: SequenceOf[str]) -> "list[Edit]":
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
    if isinstance(prefixed, ast.Attribute):
        raise ValueError(f"{ast.unparse(prefixed)} has a prefix; --edit takes {prefixed.attr} alone")
    if isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)} is not a call with values")
    return ast.literal_eval(node)


def _named(name: str, is_called: bool) -> Any:
    """The edit, operation, kernel or share of that name, which is called; or the site, which is not."""
    from .. import interventions
    from ..attention import kernels, sites
    from ..interventions.attention_layers import Share

    of_kernels = {each: kind for each, kind in vars(kernels).items() if isinstance(kind, type)}
    called = {each: kind for each, kind in of_kernels.items() if kind.__module__ == kernels.__name__ and each[0] != "_"}
    called |= {share.__name__: share for share in Share.__subclasses__()}
    called |= {each: getattr(interventions, each) for each in interventions.__all__}
    known = called if is_called else {each: x for each, x in vars(sites).items() if isinstance(x, sites.Site)}
    if name in known:
        return known[name]
    if name in called:
        raise ValueError(f"{name} needs brackets, {name}()")
    raise ValueError(f"there is no public edit or site {name}{nearest(name, (*known, *called))}")
