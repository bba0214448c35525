"""The command that measures a model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data.bos import Bos
from ..data.random_inputs import Drawn
from ..files import write_json, write_text
from .options import BOS, EPSILON, Backend, Column, DeviceMap, Encoder, Json, Model
from .terminal import console, plain_errors, print_table, print_written, progress_bar, progress_bars, quiet_libraries

if TYPE_CHECKING:
    from ..measurement.presets import Preset
    from ..measurement.report import Report
    from ..tables import TokenText

TEXT = "A .txt, .jsonl, .json, .parquet or .csv file, a folder of them, or the name of a dataset on the Hub."
DRAWN = "Tokens without a text: random tokens, or one token repeated."
PRESET = "How published numbers were measured: paper, released-open-models or released-own-models. Options override it."
FIRST_ONLY = "Measure position 0 and norms only: for long sequences."


def measure(
    model: Model,
    text: Annotated[str | None, typer.Option(help=TEXT)] = None,
    column: Column = "text",
    tokens: Annotated[Path | None, typer.Option(help="A .json file: a list of lists of token ids.")] = None,
    drawn: Annotated[Drawn | None, typer.Option(help=DRAWN)] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn tokens.")] = 0,
    length: Annotated[int | None, typer.Option(help="Tokens per sequence, T. [default: 64]")] = None,
    sequences: Annotated[int | None, typer.Option(help="Number of sequences, n. [default: 100]")] = None,
    bos: Annotated[Bos | None, typer.Option(help=f"{BOS} [default: tokenizer]")] = None,
    epsilon: Annotated[float | None, typer.Option(help=f"{EPSILON} [default: 0.3]")] = None,
    preset: Annotated[str | None, typer.Option(help=PRESET)] = None,
    backend: Backend = "huggingface",
    encoder: Encoder = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. [default: float32]")] = None,
    device_map: DeviceMap = None,
    first_only: Annotated[bool, typer.Option("--first-only", help=FIRST_ONLY)] = False,
    save: Annotated[Path | None, typer.Option(help="Write every number to this .safetensors file.")] = None,
    json_out: Json = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a page of figures to this file.")] = None,
) -> None:
    """Measure the attention sinks of a model."""
    with plain_errors(), progress_bars() as progress:
        from .. import tables
        from ..backends.encoder_input import encoder_input
        from ..backends.load import load, words_of
        from ..measurement import instruments
        from ..measurement.measure import measure as measure_sinks
        from ..runs.inputs import Inputs

        settings = _settings(preset, length=length, sequences=sequences, bos=bos, epsilon=epsilon, dtype=dtype)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, text, column, tokens, drawn, seed)
        quiet_libraries()
        given = None if encoder is None else encoder_input(encoder)
        subject = load(model, backend=backend, dtype=settings.dtype, device_map=device_map, encoder=given)
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
    _Output(save, json_out, html_out).write(report, settings.epsilon, word)


def _settings(preset: str | None, **given: Any) -> "Preset":
    """The preset, or the default settings, with what the user gave."""
    from ..measurement.presets import preset_of

    return replace(preset_of(preset), **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class _Output:
    """The files to write; None for a file that the user did not ask for."""

    report: Path | None
    json: Path | None
    html: Path | None

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
