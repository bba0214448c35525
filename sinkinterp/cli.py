"""The command line: parses, calls, prints. No maths."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from . import cli_train
from .data.bos import Bos
from .errors import InputError

if TYPE_CHECKING:
    from .table import Table

app = typer.Typer(
    help="Attention sinks: read them, move them, train them away.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
console, errors = Console(), Console(stderr=True)
cli_train.mount(app)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of all three trainings.")] = 0,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("figures/demo.html"),
) -> None:
    """Train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""
    with _plain_errors(), _progress() as progress:
        from . import demo as first_light
        from .reporting import demo_page

        _quiet_libraries()
        bars: dict[str, TaskID] = {}

        def on_step(variant: str, step: int, latest: dict[str, float]) -> None:
            if variant not in bars:
                bars[variant] = progress.add_task(variant, total=first_light.STEPS)
            words = f"loss {latest['valid_loss']:.3f}  Sink_1 {latest['sink_1']:.0%}  Sink_* {latest['sink_slot']:.0%}"
            progress.update(bars[variant], completed=step, description=f"training {variant:8} {words}")

        result = first_light.run(seed, on_step=on_step)
        html = demo_page(result)
    _print(result.twins)
    _print(result.residuals)
    _print(result.swaps)
    _write(out, html)


@app.command()
def measure(
    model: Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")],
    text: Annotated[Path | None, typer.Option(help="A .jsonl file with a text field, or a .txt file.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="A .json file: a list of lists of token ids.")] = None,
    length: Annotated[int, typer.Option(help="Tokens per sequence, T.")] = 64,
    sequences: Annotated[int, typer.Option(help="Number of sequences, n.")] = 100,
    bos: Annotated[Bos, typer.Option(help="Begin with BOS: as the tokenizer does, always, or never.")] = Bos.TOKENIZER,
    epsilon: Annotated[float, typer.Option(help="A head whose importance exceeds this has a sink.")] = 0.3,
    backend: Annotated[
        str, typer.Option(help="The library that runs it: huggingface, nnsight or transformer_lens.")
    ] = "huggingface",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    html_out: Annotated[Path | None, typer.Option("--html", help="Write a page of figures to this file.")] = None,
) -> None:
    """Measure the attention sinks of a model."""
    with _plain_errors(), _progress() as progress:
        from . import tabulate
        from .adapters.loading import load
        from .measurement import measure as measured
        from .metrics.sink import check_epsilon
        from .study import probe_for

        check_epsilon(epsilon)
        if text is not None and tokens is not None:
            raise InputError("--text and --tokens are both given; give one")
        _quiet_libraries()
        subject = load(model, backend=backend)
        probe = probe_for(model, text, tokens, length, sequences, bos, _bar(progress, "reading docstrings"))
        report = measured(subject, probe, on_batch=_bar(progress, "measuring"))
        tables = [tabulate.signature(report, epsilon), tabulate.strongest_heads(report, epsilon)]
    for table in tables:
        _print(table)
    if report.protocol.texts_too_short:
        console.print(f"{report.protocol.texts_too_short} texts shorter than {length} tokens were passed over.")
    if json_out is not None:
        _write(json_out, json.dumps(tabulate.plain(report, epsilon), indent=1))
    if html_out is not None:
        from .reporting import measurement_page

        _write(html_out, measurement_page(report, epsilon))


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")],
) -> None:
    """Compare every backend with dense attention and with each other on a model; exit code 1 where they differ."""
    with _plain_errors():
        from .adapters.loading import load_model
        from .parity import agrees, parity

        _quiet_libraries()
        table = parity(load_model(model), model)
    _print(table)
    if not agrees(table):
        raise typer.Exit(1)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """A user's mistake as one line on standard error and exit code 2; an interrupt as exit code 130."""
    try:
        yield
    except InputError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; what was saved so far is kept, and the same command goes on from there")
        raise typer.Exit(130) from interrupt


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors)


def _bar(progress: Progress, words: str) -> Callable[[int, int], None]:
    """A progress bar that appears with its first news."""
    bars: list[TaskID] = []

    def on_news(done: int, of: int) -> None:
        if not bars:
            bars.append(progress.add_task(words, total=of))
        progress.update(bars[0], completed=done)

    return on_news


def _quiet_libraries() -> None:
    """Transformers' own progress bars off: ours are enough."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


def _print(table: "Table") -> None:
    """The table on the terminal."""
    grid = RichTable(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
    rows = table.words()
    for name in rows[0] if rows else ():
        grid.add_column(name, justify="left" if table.is_wordy(name) else "right")
    for row in rows:
        grid.add_row(*map(escape, row.values()))
    console.print(grid)


def _write(path: Path, text: str) -> None:
    """The file, whole or not at all."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", highlight=False)
