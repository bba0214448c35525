"""The commands that measure: one model, one model on several domains of text, and one model through every backend."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data.choices import Bos, Drawn, Dtype
from ..data.texts import is_text
from ..errors import InputError
from ..files import write_json, write_text
from .loading import load_subject, offline_if_unreachable
from .options import (
    BOS,
    COLUMN,
    DTYPE,
    EPSILON,
    PRESETS,
    SEED,
    SEQUENCES,
    SHARE,
    TOKENS,
    Backend,
    Column,
    DeviceMap,
    Encoder,
    Html,
    Json,
    Model,
    Start,
    Text,
    TokenFile,
    beginning,
    dtype_named,
    filled,
    output_file,
    source,
)
from .places import Force
from .terminal import console, print_line, print_table, print_written, progress_bars, quiet_libraries

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..data.progress import Progress
    from ..data.tokens import TokenSet
    from ..measurement.presets import Preset
    from ..report.readings import TokenText
    from ..report.report import Report
    from ..runs.inputs import Inputs


CHAT = "What a user says to the model, in its chat template, or a .jsonl file of chats as `finetune` reads them."
LENGTH = "Tokens per sequence, T. \\[default: 64]"
COUNT = "Number of sequences, n. \\[default: 100, or 32 or 64 docstrings where these give Sink_1 an interval of .05]"
SAVE = "Write every number to this .safetensors file."
DRAWN = "Tokens without a text: random tokens, or one token repeated."
PRESET = "How published numbers were measured: paper, released-open-models or released-own-models. Options override it."
FIRST_ONLY = "Measure position 0 and norms only: for long sequences."


def measure(
    model: Model,
    text: Text = None,
    column: Annotated[str | None, typer.Option(help=f"{COLUMN} \\[default: text]", parser=filled)] = None,
    chat: Annotated[str | None, typer.Option(help=CHAT, parser=source)] = None,
    tokens: TokenFile = None,
    drawn: Annotated[Drawn | None, typer.Option(help=DRAWN)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of drawn tokens. \\[default: 0]", parser=SEED)] = None,
    length: Annotated[int | None, typer.Option(help=LENGTH, parser=TOKENS)] = None,
    sequences: Annotated[int | None, typer.Option(help=COUNT, parser=SEQUENCES)] = None,
    bos: Annotated[Bos | None, typer.Option(help=f"{BOS} \\[default: tokenizer]")] = None,
    epsilon: Annotated[float | None, typer.Option(help=f"{EPSILON} \\[default: 0.3]", parser=SHARE)] = None,
    preset: Annotated[str | None, typer.Option(help=PRESET, autocompletion=beginning(PRESETS))] = None,
    backend: Backend = "huggingface",
    encoder: Encoder = None,
    dtype: Annotated[Dtype | None, typer.Option(help=f"{DTYPE} \\[default: float32]", parser=dtype_named)] = None,
    device_map: DeviceMap = None,
    first_only: Annotated[bool, typer.Option("--first-only", help=FIRST_ONLY)] = False,
    save: Annotated[Path | None, typer.Option(help=SAVE, parser=output_file)] = None,
    json_out: Json = None,
    html_out: Html = None,
    force: Force = False,
) -> None:
    """Measure the attention sinks of a model."""
    with progress_bars() as progress:
        from ..backends.subject import tokenizer_of, words_of
        from ..report.views import overview_tables
        from ..runs.inputs import Inputs

        output = _Output(save, json_out, html_out)
        is_one_text = text is not None and is_text(text)
        _check_used("--seed", seed, "--drawn", drawn)
        _check_about_text(text, is_one_text, column, chat, tokens, bos)
        if is_one_text:
            sequences = _only_one(sequences)
        settings = _settings(preset, length=length, sequences=sequences, bos=bos, epsilon=epsilon, dtype=dtype)
        inputs = Inputs(
            settings.length,
            settings.sequences,
            settings.bos,
            text,
            column or "text",
            tokens,
            drawn,
            seed or 0,
            may_be_shorter=length is None and preset is None,
            may_be_fewer=sequences is None and preset is None,
            chat=chat,
        )
        offline_if_unreachable(None if is_one_text else text)
        subject = load_subject(model, backend, encoder, settings.dtype, device_map)
        _check_used("--bos", bos, "a model with a tokenizer", tokenizer_of(subject))
        is_whole = is_one_text and length is None
        report = _measured(subject, model, inputs, settings, is_whole, first_only, progress)
        word = words_of(subject)
        overview = overview_tables(report, settings.epsilon, word)
    for table in overview:
        print_table(table)
    if report.protocol.texts_too_short:
        skipped = f"{report.protocol.texts_too_short} texts shorter than {settings.length} tokens were passed over."
        console.print(skipped)
    if report.protocol.sequences == 1 and text is not None and not is_one_text:
        more = "--length reads more of it, and a .jsonl or a folder holds many"
        console.print(f"{text} holds one text, read up to {report.protocol.length} tokens; {more}.")
    output.write(report, settings.epsilon, word)


def _check_about_text(
    text: str | None, is_one_text: bool, column: str | None, chat: str | None, tokens: Path | None, bos: Bos | None
) -> None:
    """Raises InputError for options about texts that have no effect on the input that is given."""
    from ..data.rows import ending_of, files_of

    has_columns = text is not None and not is_one_text and ending_of(Path(text)) != ".txt"
    if text is not None and has_columns and Path(text).is_dir():
        has_columns = any(ending_of(file) != ".txt" for file in files_of(Path(text)))
    _check_used("--column", column, "a file of columns in --text", has_columns or None)
    _check_used("--bos", bos, "a text or drawn tokens", True if tokens is None else None)
    if bos is not None and chat is not None:
        raise InputError("a chat template decides about BOS; leave --bos out, or --chat")


def _measured(
    subject: "Subject",
    model: str,
    inputs: "Inputs",
    settings: "Preset",
    is_whole: bool,
    first_only: bool,
    progress: "Progress",
) -> "Report":
    """The report on the inputs: on one whole text, on what was asked for, or on as many docstrings as are enough."""
    from ..backends.subject import text_to_tokens, tokenizer_of
    from ..measurement.enough import measure_enough
    from ..measurement.measure import measure as measure_sinks
    from ..metrics import instruments

    def measured(token_set: "TokenSet", why: str = "") -> "Report":
        n, longest = token_set.tokens.shape
        return measure_sinks(
            subject,
            token_set,
            convention=settings.convention,
            positions=(0,) if first_only else None,
            instruments=() if first_only else instruments.ALL,
            progress=progress(f"measuring {n} {'more ' if why else ''}x {longest} tokens{why}"),
        )

    if is_whole and inputs.text is not None:
        return measured(text_to_tokens(subject, settings.bos).one(inputs.text, settings.length))
    if inputs.given or not inputs.may_be_fewer or tokenizer_of(subject) is None:
        return measured(inputs.token_set(subject, model))
    on_file = progress("reading docstrings")
    return measure_enough(
        lambda n: replace(inputs, sequences=n).token_set(subject, model, on_file),
        measured,
        settings.sequences,
        settings.epsilon,
    )


def _settings(preset: str | None, **given: Any) -> "Preset":
    """The preset, or the default settings, with what the user gave."""
    from ..measurement.presets import preset_of

    return replace(preset_of(preset), **{name: value for name, value in given.items() if value is not None})


def _check_used(option: str, value: Any, needed: str, other: Any) -> None:
    """Raises InputError for an option that has no effect without another one."""
    if value is not None and other is None:
        raise InputError(f"{option} has no effect without {needed}; leave it out, or give {needed}")


def _only_one(sequences: int | None) -> int:
    """The number of sequences where the text itself is given."""
    if sequences not in (None, 1):
        raise InputError(f"one text is one sequence, not {sequences}; leave --sequences out, or give a file of texts")
    return 1


@dataclass(frozen=True)
class _Output:
    """The files to write; None for a file that the user did not ask for."""

    report: Path | None
    json: Path | None
    html: Path | None

    def __post_init__(self) -> None:
        from ..report.formats import writer_of

        if self.report is not None:
            writer_of(self.report)  # before anything is measured

    def write(self, report: "Report", epsilon: float, word: "TokenText") -> None:
        from ..report.formats import write_file
        from ..report.views import tables_as_json

        if self.report is not None:
            write_file(report, self.report)
            print_written(self.report)
        if self.json is not None:
            write_json(self.json, tables_as_json(report, epsilon), indent=1)
            print_written(self.json)
        if self.html is not None:
            from ..pages.report import measurement_page

            write_text(self.html, measurement_page(report, epsilon, word))
            print_written(self.html)


FIELD = "The field of a single file that names the domain."
SOURCES = "Files, folders or datasets, or one file with a field that names the domain."


def domains(
    model: Model,
    sources: Annotated[list[str], typer.Argument(help=SOURCES, parser=source)],
    field: Annotated[str, typer.Option(help=FIELD, parser=filled)] = "domain",
    column: Column = "text",
    length: Annotated[int, typer.Option(help="Tokens per sequence, T.", parser=TOKENS)] = 64,
    sequences: Annotated[int, typer.Option(help="Number of sequences of each domain, n.", parser=SEQUENCES)] = 100,
    bos: Start = Bos.TOKENIZER,
    epsilon: Annotated[float, typer.Option(help=EPSILON, parser=SHARE)] = 0.3,
    backend: Backend = "huggingface",
    json_out: Json = None,
    force: Force = False,
) -> None:
    """Measure the first position's sink on text of several domains; exit code 1 where some had to be left out."""
    with progress_bars() as progress:
        from ..measurement.measure import measure as measure_sinks
        from ..report.compare import sinks_by_domain
        from ..runs.inputs import Inputs

        if all(name.lower().endswith(".txt") for name in sources) and column != "text":
            raise InputError("--column has no effect on .txt files; leave it out")
        if len(sources) > 1 and field != "domain":
            raise InputError("--field has no effect on several sources; leave it out, or give one file")
        offline_if_unreachable(*sources)
        subject = load_subject(model, backend)
        inputs = Inputs(length, sequences, bos, column=column)
        token_sets, errors = inputs.domain_token_sets(subject, sources, field)
        reports = {}
        for name, token_set in token_sets.items():
            bar = progress(f"measuring {name}")
            reports[name] = measure_sinks(subject, token_set, positions=(0,), progress=bar)
        if not reports:
            raise InputError("; ".join(f"{name}: {error}" for name, error in errors.items()))
        table = sinks_by_domain(reports, epsilon)
    print_table(table)
    if json_out is not None:
        write_json(json_out, table.to_dict(), indent=1)
        print_written(json_out)
    for name, error in errors.items():
        print_line(f"left out: {name}: {error}")
    if errors:
        raise typer.Exit(1)


def check(model: Model) -> None:
    """Compare every backend with dense attention and with each other on a model; exit code 1 where they differ."""
    from ..backends.files.model_files import load_model
    from ..measurement.parity import agrees, parity

    quiet_libraries()
    offline_if_unreachable(model)
    table = parity(load_model(model), model)
    print_table(table)
    if not agrees(table):
        raise typer.Exit(1)
