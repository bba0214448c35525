"""The command line: parses, calls, prints. No maths."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskID

from ..data.bos import Bos
from ..data.drawn import Drawn
from . import gallery, reproduce, train, view
from .terminal import bar, console, plain_errors, progress_bars, quiet_libraries, show, write, wrote

if TYPE_CHECKING:
    from ..measurement.presets import Preset
    from ..measurement.report import Report
    from ..tables import TokenText

app = typer.Typer(
    help="Attention sinks: read them, move them, train them away.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
Model = Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")]
Column = Annotated[str, typer.Option(help="The column or field that holds the text.")]
Backend = Annotated[str, typer.Option(help="The library that runs it: huggingface, nnsight or transformer_lens.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the tables to this file.")]
TEXT = "A .txt, .jsonl, .json, .parquet or .csv file, a folder of them, or the name of a dataset on the Hub."
BOS = "Begin with BOS: as the tokenizer does, always, or never."
EPSILON = "A head whose importance exceeds this has a sink."
PRESET = "How published numbers were measured: paper, released-open-models or released-own-models. Options win over it."
FIRST_ONLY = "Position 0 and norms alone: for long sequences."
DEVICE_MAP = "Where weights go, as in transformers: auto, cuda:0."
train.mount(app)
gallery.mount(app)
view.mount(app)
reproduce.mount(app)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of all three trainings.")] = 0,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("figures/demo.html"),
) -> None:
    """Train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""
    with plain_errors(), progress_bars() as progress:
        from ..pages import demo as first_light
        from ..pages.report import demo_page

        quiet_libraries()
        bars: dict[str, TaskID] = {}

        def on_step(variant: str, step: int, latest: dict[str, float]) -> None:
            if variant not in bars:
                bars[variant] = progress.add_task(variant, total=first_light.STEPS)
            words = f"loss {latest['valid_loss']:.3f}  Sink_1 {latest['sink_1']:.0%}  Sink_* {latest['sink_slot']:.0%}"
            progress.update(bars[variant], completed=step, description=f"training {variant:8} {words}")

        result = first_light.run(seed, on_step=on_step)
        html = demo_page(result)
    show(result.twins)
    show(result.residuals)
    show(result.swaps)
    write(out, html)


@app.command()
def measure(
    model: Model,
    text: Annotated[str | None, typer.Option(help=TEXT)] = None,
    column: Column = "text",
    tokens: Annotated[Path | None, typer.Option(help="A .json file: a list of lists of token ids.")] = None,
    drawn: Annotated[Drawn | None, typer.Option(help="Tokens without a text: random ones, or one repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn tokens.")] = 0,
    length: Annotated[int | None, typer.Option(help="Tokens per sequence, T. [default: 64]")] = None,
    sequences: Annotated[int | None, typer.Option(help="Number of sequences, n. [default: 100]")] = None,
    bos: Annotated[Bos | None, typer.Option(help=f"{BOS} [default: tokenizer]")] = None,
    epsilon: Annotated[float | None, typer.Option(help=f"{EPSILON} [default: 0.3]")] = None,
    preset: Annotated[str | None, typer.Option(help=PRESET)] = None,
    backend: Backend = "huggingface",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. [default: float32]")] = None,
    device_map: Annotated[str | None, typer.Option(help=DEVICE_MAP)] = None,
    first_only: Annotated[bool, typer.Option("--first-only", help=FIRST_ONLY)] = False,
    save: Annotated[Path | None, typer.Option(help="Write every number to this .safetensors file.")] = None,
    json_out: Json = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a page of figures to this file.")] = None,
) -> None:
    """Measure the attention sinks of a model."""
    with plain_errors(), progress_bars() as progress:
        from .. import tables
        from ..backends.load import load, words_of
        from ..measurement import instruments
        from ..measurement.measure import measure as measured
        from ..runs.inputs import Inputs

        settings = _settings(preset, length=length, sequences=sequences, bos=bos, epsilon=epsilon, dtype=dtype)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, text, column, tokens, drawn, seed)
        quiet_libraries()
        subject = load(model, backend=backend, dtype=settings.dtype, device_map=device_map)
        token_set = inputs.token_set(model, subject.shape.vocab, bar(progress, "reading docstrings"))
        report = measured(
            subject, token_set, convention=settings.convention, on_batch=bar(progress, "measuring"),
            positions=(0,) if first_only else None, instruments=() if first_only else instruments.ALL,
        )  # fmt: skip
        word = words_of(model)
        overview = tables.overview_tables(report, settings.epsilon, word)
    for table in overview:
        show(table)
    if report.protocol.texts_too_short:
        console.print(
            f"{report.protocol.texts_too_short} texts shorter than {settings.length} tokens were passed over."
        )
    _write_report(report, settings.epsilon, word, save, json_out, html_out)


def _write_report(
    report: "Report", epsilon: float, word: "TokenText", save: Path | None, json_out: Path | None, html_out: Path | None
) -> None:
    """The files that were asked for."""
    from ..tables import tables_as_json

    if save is not None:
        report.save(save)
        wrote(save)
    if json_out is not None:
        write(json_out, json.dumps(tables_as_json(report, epsilon), indent=1))
    if html_out is not None:
        from ..pages.report import measurement_page

        write(html_out, measurement_page(report, epsilon, word))


@app.command()
def domains(
    model: Model,
    sources: Annotated[list[str], typer.Argument(help="Files, folders or datasets, or one file with a domain field.")],
    field: Annotated[str, typer.Option(help="The field of a single file that names the domain.")] = "domain",
    column: Column = "text",
    length: Annotated[int, typer.Option(help="Tokens per sequence, T.")] = 64,
    sequences: Annotated[int, typer.Option(help="Number of sequences of each domain, n.")] = 100,
    bos: Annotated[Bos, typer.Option(help=BOS)] = Bos.TOKENIZER,
    epsilon: Annotated[float, typer.Option(help=EPSILON)] = 0.3,
    backend: Backend = "huggingface",
    json_out: Json = None,
) -> None:
    """Measure the first position's sink on text of several domains."""
    with plain_errors(), progress_bars() as progress:
        from .. import tables
        from ..backends.load import load
        from ..measurement.measure import measure as measured
        from ..runs.inputs import Inputs

        settings = _settings(None, length=length, sequences=sequences, bos=bos, epsilon=epsilon)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, column=column)
        quiet_libraries()
        subject = load(model, backend=backend)
        reports = {
            name: measured(subject, token_set, positions=(0,), on_batch=bar(progress, f"measuring {name}"))
            for name, token_set in inputs.domain_token_sets(model, sources, field).items()
        }
        table = tables.sinks_by_domain(reports, settings.epsilon)
    show(table)
    if json_out is not None:
        write(json_out, json.dumps(table.to_dict(), indent=1))


@app.command()
def check(model: Model) -> None:
    """Compare every backend with dense attention and with each other on a model; exit code 1 where they differ."""
    with plain_errors():
        from ..backends.load import load_model
        from ..measurement.parity import agrees, parity

        quiet_libraries()
        table = parity(load_model(model), model)
    show(table)
    if not agrees(table):
        raise typer.Exit(1)


def _settings(preset: str | None, **given: Any) -> "Preset":
    """A preset, the default without one, with what the user gave in place of its own."""
    from ..measurement.presets import preset_of

    return replace(preset_of(preset), **{name: value for name, value in given.items() if value is not None})
