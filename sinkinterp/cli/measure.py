"""The command that measures a model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data.bos import Bos
from ..data.random_inputs import Drawn
from ..data.texts import is_text
from ..errors import InputError
from ..files import write_json, write_text
from . import names
from .hub import offline_if_unreachable
from .options import (
    BOS,
    EPSILON,
    SEED,
    SEQUENCES,
    SHARE,
    TOKENS,
    Backend,
    Column,
    DeviceMap,
    Encoder,
    Json,
    Model,
    TokenFile,
)
from .terminal import console, print_table, print_written, progress_bar, progress_bars, quiet_libraries
from .values import filled, output_file

if TYPE_CHECKING:
    from ..measurement.presets import Preset
    from ..measurement.report import Report
    from ..tables import TokenText

TEXT = (
    "A .txt, .jsonl, .json, .parquet or .csv file, a folder of them, the name of a dataset on the Hub, or the text "
    "itself: two words or more, in quotes."
)
LENGTH = "Tokens per sequence, T. [default: 64]"
COUNT = "Number of sequences, n. [default: 100]"
DTYPE = "float32, bfloat16 or float16. [default: float32]"
SAVE = "Write every number to this .safetensors file."
HTML = "Write a page of figures to this file."
DRAWN = "Tokens without a text: random tokens, or one token repeated."
PRESET = "How published numbers were measured: paper, released-open-models or released-own-models. Options override it."
FIRST_ONLY = "Measure position 0 and norms only: for long sequences."


def measure(
    model: Model,
    text: Annotated[str | None, typer.Option(help=TEXT, parser=filled)] = None,
    column: Column = "text",
    tokens: TokenFile = None,
    drawn: Annotated[Drawn | None, typer.Option(help=DRAWN)] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn tokens.", parser=SEED)] = 0,
    length: Annotated[int | None, typer.Option(help=LENGTH, parser=TOKENS)] = None,
    sequences: Annotated[int | None, typer.Option(help=COUNT, parser=SEQUENCES)] = None,
    bos: Annotated[Bos | None, typer.Option(help=f"{BOS} [default: tokenizer]")] = None,
    epsilon: Annotated[float | None, typer.Option(help=f"{EPSILON} [default: 0.3]", parser=SHARE)] = None,
    preset: Annotated[str | None, typer.Option(help=PRESET, autocompletion=names.beginning(names.PRESETS))] = None,
    backend: Backend = "huggingface",
    encoder: Encoder = None,
    dtype: Annotated[str | None, typer.Option(help=DTYPE, autocompletion=names.beginning(names.DTYPES))] = None,
    device_map: DeviceMap = None,
    first_only: Annotated[bool, typer.Option("--first-only", help=FIRST_ONLY)] = False,
    save: Annotated[Path | None, typer.Option(help=SAVE, parser=output_file)] = None,
    json_out: Json = None,
    html_out: Annotated[Path | None, typer.Option("--html", help=HTML, parser=output_file)] = None,
) -> None:
    """Measure the attention sinks of a model."""
    with progress_bars() as progress:
        from .. import tables
        from ..backends.encoder_input import encoder_input
        from ..backends.load import load
        from ..backends.model_files import words_of
        from ..measurement import instruments
        from ..measurement.measure import measure as measure_sinks
        from ..runs.inputs import Inputs, one_text

        output = _Output(save, json_out, html_out)
        is_one_text = text is not None and is_text(text)
        if is_one_text:
            sequences = _only_one(sequences)
        settings = _settings(preset, length=length, sequences=sequences, bos=bos, epsilon=epsilon, dtype=dtype)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, text, column, tokens, drawn, seed)
        quiet_libraries()
        offline_if_unreachable(model, text)
        given = None if encoder is None else encoder_input(encoder)
        subject = load(model, backend=backend, dtype=settings.dtype, device_map=device_map, encoder=given)
        if text is not None and is_one_text and length is None:
            token_set = one_text(text, model, settings.bos, settings.length)
        else:
            token_set = inputs.token_set(model, subject.shape.vocab, progress_bar(progress, "reading docstrings"))
        report = measure_sinks(
            subject,
            token_set,
            convention=settings.convention,
            positions=(0,) if first_only else None,
            instruments=() if first_only else instruments.ALL,
            progress=progress_bar(progress, "measuring"),
        )
        word = words_of(model)
        overview = tables.overview_tables(report, settings.epsilon, word)
    for table in overview:
        print_table(table)
    if report.protocol.texts_too_short:
        skipped = f"{report.protocol.texts_too_short} texts shorter than {settings.length} tokens were passed over."
        console.print(skipped)
    output.write(report, settings.epsilon, word)


def _settings(preset: str | None, **given: Any) -> "Preset":
    """The preset, or the default settings, with what the user gave."""
    from ..measurement.presets import preset_of

    return replace(preset_of(preset), **{name: value for name, value in given.items() if value is not None})


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
        files = [file.absolute() for file in (self.report, self.json, self.html) if file is not None]
        if len(set(files)) < len(files):
            raise InputError("--save, --json and --html name the same file; give each its own")

    def write(self, report: "Report", epsilon: float, word: "TokenText") -> None:
        from ..tables import tables_as_json

        if self.report is not None:
            report.save(self.report)
            print_written(self.report)
        if self.json is not None:
            write_json(self.json, tables_as_json(report, epsilon), indent=1)
            print_written(self.json)
        if self.html is not None:
            from ..pages.report import measurement_page

            write_text(self.html, measurement_page(report, epsilon, word))
            print_written(self.html)
