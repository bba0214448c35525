"""How a training run shows its progress: a bar on a terminal, else a line every few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .terminal import error_console

if TYPE_CHECKING:
    from ..runs.finetune import ChatRecipe
    from ..train.recipe import Recipe

SECONDS_BETWEEN_LINES = 5.0  # where standard error is no terminal
StepMetrics = dict[str, Any]
OnStep = Callable[[int, StepMetrics], None]
OnData = Callable[[int, int], None]


@contextmanager
def run_progress(
    recipe: "Recipe | ChatRecipe", folder: Path, log: str | None, is_first: bool, name: str
) -> Iterator[tuple[OnStep, OnData]]:
    """Yields the functions that take the progress of steps and of data; they show it to the user and log the steps.

    Only the first process shows and logs anything.
    """
    from ..train.logs import open_log

    if not is_first:
        yield lambda step, metrics: None, lambda done, total: None
        return
    with open_log(log, folder, recipe) as write_log, step_progress(name, recipe.steps) as show_step:

        def on_step(step: int, metrics: StepMetrics) -> None:
            show_step(step, metrics)
            write_log(step, {key: value for key, value in metrics.items() if key != "step"})

        yield on_step, data_lines()


@contextmanager
def step_progress(name: str, steps: int) -> Iterator[OnStep]:
    """Yields a function that shows each step of `steps`: in a progress bar on a terminal, else in lines."""
    speed = Speed()
    if not error_console.is_terminal:
        yield step_lines(name, steps, speed)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=error_console) as progress:
        bar = progress.add_task(name, total=steps, left="")

        def on_step(step: int, metrics: StepMetrics) -> None:
            description = f"{name}  {_metrics_text(metrics, speed.tokens_per_second(step, metrics['tokens']))}"
            progress.update(bar, completed=step, description=description, left=speed.time_left(step, steps))

        yield on_step


def step_lines(name: str, steps: int, speed: "Speed") -> OnStep:
    """Returns a function that prints a step every few seconds, and the last step."""
    last_line = time.monotonic()

    def on_step(step: int, metrics: StepMetrics) -> None:
        nonlocal last_line
        rate = speed.tokens_per_second(step, metrics["tokens"])
        if time.monotonic() - last_line >= SECONDS_BETWEEN_LINES or step == steps:
            last_line = time.monotonic()
            line = f"{name}  step {step}/{steps}  {_metrics_text(metrics, rate)}  {speed.time_left(step, steps)}"
            error_console.print(line, highlight=False, markup=False, soft_wrap=True)

    return on_step


def data_lines() -> OnData:
    """Returns a function that prints every few seconds how much of the data is prepared."""
    last_line = time.monotonic()

    def on_data(done: int, total: int) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            error_console.print(f"data: {done:,}{f' of {total:,}' if total else ''}", highlight=False)

    return on_data


class Speed:
    """Measures tokens per second and the time left. The clock starts at the first step that it is given."""

    def __init__(self) -> None:
        self.first_step, self.start, self.tokens, self.seconds = 0, 0.0, 0, 0.0

    def tokens_per_second(self, step: int, tokens: int) -> float:
        """Adds the tokens of a step; returns the rate since the first step, 0 at the first step."""
        if not self.first_step:
            self.first_step, self.start = step, time.monotonic()
            return 0.0
        self.tokens, self.seconds = self.tokens + tokens, time.monotonic() - self.start
        return self.tokens / self.seconds if self.seconds else 0.0

    def time_left(self, step: int, steps: int) -> str:
        """The time until the last step, as text; empty at the first step."""
        if step <= self.first_step:
            return ""
        seconds = round((steps - step) * self.seconds / (step - self.first_step))
        return f"{timedelta(seconds=seconds)} left"


def _metrics_text(metrics: StepMetrics, tokens_per_second: float) -> str:
    sinks = f"  Sink_1 {metrics['sink_1']:.0%}" if "sink_1" in metrics else ""
    rate = f"{tokens_per_second:,.0f} tokens/s"
    return f"loss {metrics['train_loss']:.3f}{sinks}  |grad| {metrics['grad_norm']:.2g}  {rate}"
