"""The command that runs the demo."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from ..files import write_text
from .options import SEED
from .terminal import print_table, print_written, progress_bars, quiet_libraries
from .values import output_file


def demo(
    seed: Annotated[int, typer.Option(help="Seed of all three trainings.", parser=SEED)] = 0,
    out: Annotated[Path, typer.Option(help="The page to write.", parser=output_file)] = Path("figures/demo.html"),
) -> None:
    """Train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""
    with progress_bars() as progress:
        from ..pages.demo import run
        from ..pages.report import demo_page
        from ..train.recipes import DEMO_STEPS

        quiet_libraries()
        bars: dict[str, TaskID] = {}

        def on_step(variant: str, step: int, metrics: dict[str, Any]) -> None:
            if variant not in bars:
                bars[variant] = progress.add_task(variant, total=DEMO_STEPS)
            sinks = f"Sink_1 {metrics['sink_1']:.0%}  Sink_* {metrics['sink_slot']:.0%}"
            description = f"training {variant:8} loss {metrics['valid_loss']:.3f}  {sinks}"
            progress.update(bars[variant], completed=step, description=description)

        result = run(seed, on_step=on_step)
        html = demo_page(result)
    for table in (result.twins, result.residuals, result.swaps):
        print_table(table)
    write_text(out, html)
    print_written(out)
