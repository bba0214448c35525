"""What measuring costs, beside other ways to look at attention and beside what we promise.

    python -m benchmarks.measure [--repeats 7] [--length 2048] [--no-long] [--quick] [--only-real] [--json FILE]

A GPT-2 of the small size with random weights, one sequence, fp32, one thread. Every way runs right after a plain SDPA
forward pass, again and again; its ratio is the median over these pairs. The plain pass against itself shows the noise
of the machine. Memory is the high-water mark of a process of its own, above the loaded model.
"""

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.console import NOISY, say
from benchmarks.rows import Row, Scale, real_rows, rows, skipped
from benchmarks.ways import RealSetting, Setting
from sinkinterp.files import write_file

REAL_SETTINGS = (RealSetting(64, sequences=16), RealSetting(1024, sequences=1))
_SMALL = Setting(128, layers=2, heads=12, width=768, vocab=5003)
QUICK = Scale(_SMALL, _SMALL, None, repeats=3, starts=1)
_PACKAGES = ("sinkinterp", "torch", "transformers", "nnsight", "transformer-lens")


@dataclass(frozen=True)
class Result:
    """A row's figure beside its target."""

    what: str
    figure: float
    unit: str
    target: float | None
    verdict: str


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Alternated pairs for every ratio of times.")] = 7,
    length: Annotated[int, typer.Option(min=4, help="Tokens of the sequence; half of it for other libraries.")] = 2048,
    long: Annotated[bool, typer.Option(help="Memory at T = 8,192, 16,384 and 32,768 too: minutes.")] = True,
    quick: Annotated[bool, typer.Option(help="Two minutes: small sizes, 3 pairs; noisy, and no targets.")] = False,
    only_real: Annotated[bool, typer.Option("--only-real", help="Only the rows on real weights.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Print the table of ratios."""
    torch.set_num_threads(1)
    scale = QUICK if quick else _full(length, long, repeats)
    console, progress = Console(), Console(stderr=True)
    every = [*(real_rows if only_real else rows)(scale)]
    say(f"{len(every)} rows, which take about {'two' if quick else 'ten'} minutes on an idle core")
    every = [replace(row, target=None) for row in every] if quick else every
    results = [measured(row, progress) for row in track(every, "measuring", console=progress)]
    caption = " ".join((NOISY, protocol(scale), *skipped(scale)) if quick else (protocol(scale), *skipped(scale)))
    console.print(table(results, caption))
    if json_out is not None:
        plain = {"protocol": caption, "rows": [asdict(result) for result in results]}
        write_file(json_out, plain)


def _full(length: int, long: bool, repeats: int) -> Scale:
    # 6.6 GB of logits at T = 32,768 would hide how our own part grows; hence the small vocabulary
    longest = Setting(8192, layers=2, vocab=1024) if long else None
    return Scale(Setting(length), Setting(length // 2), longest, repeats, real=REAL_SETTINGS)


def measured(row: Row, progress: Console) -> Result:
    """The row's figure, told once it is there."""
    figure = row.figure()
    verdict = row.verdict(figure)
    progress.print(f"{row.what} {figure:.4g} {row.unit} {verdict}", highlight=False)
    return Result(row.what, figure, row.unit, row.target, verdict)


def protocol(scale: Scale) -> str:
    """How the figures came about."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    main = scale.main
    return (
        f"GPT-2 with {main.layers} layers of {main.width}, random weights, fp32, one sequence, "
        f"{torch.get_num_threads()} thread. Rows of SmolLM2: its own weights, n docstrings of T tokens. "
        f"Ratios are over the plain SDPA forward pass on the same weights. "
        f"Times: processor time, median of {scale.repeats} alternated pairs. "
        f"Memory: high-water mark above the loaded model, a process each, freed blocks returned at once. "
        f"Starts: seconds of fresh processes, median of {scale.starts}. Python {platform.python_version()}, {versions}."
    )


def table(results: Iterable[Result], caption: str, title: str = "What measuring costs") -> Table:
    """The results as they are printed."""
    grid = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    grid.add_column("what")
    for heading in ("figure", "target", "verdict"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        target = "" if result.target is None else f"≤ {result.target:.2f} {result.unit}".rstrip()
        grid.add_row(result.what, _words(result), target, result.verdict)
    return grid


def _words(result: Result) -> str:
    return (
        f"{result.figure:.{0 if result.figure >= 100 else 1}f} MB"
        if result.unit == "MB"
        else f"{result.figure:.3f} {result.unit}".rstrip()
    )


if __name__ == "__main__":
    typer.run(main)
