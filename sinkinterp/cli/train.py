"""The commands that train: parses, calls, prints. No maths."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..errors import InputError
from ..files import cache_folder
from .terminal import console, errors, plain_errors, quiet_libraries

EVERY = 5.0  # seconds between lines where standard error is no terminal
OnStep = Callable[[int, dict[str, Any]], None]

Settings = Annotated[list[str], typer.Option("--set", help="key=value, dotted: lr=1e-2, model.n_layers=4; repeatable.")]
TEXT = "Train on text instead: a file, a folder, the name of a dataset, or `embedded` for the docstrings."
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is some.")]
Log = Annotated[str | None, typer.Option(help="Also write every step to wandb or tensorboard.")]


def train(
    variant: Annotated[str, typer.Argument(help="What is changed in the architecture: softmax, sigmoid, k_bias, ...")],
    recipe: Annotated[str, typer.Option(help="demo, small, text, paper-60m or paper-1b.")] = "demo",
    text: Annotated[str | None, typer.Option(help=TEXT)] = None,
    settings: Settings = [],
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default in the cache, by the recipe.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data's order.")] = 0,
    device: Device = "auto",
    log: Log = None,
) -> None:
    """Train a language model of ours, from the newest checkpoint if there is one; reads its sinks along the way.

    Several processes share every batch, and with --use_fsdp the weights:

    accelerate launch --num_processes 8 [--use_fsdp] -m sinkinterp train ...

    On CPUs (accelerate's --cpu starts one process only, --multi_gpu several):

    torchrun --nproc-per-node 2 -m sinkinterp train ... --device cpu
    """
    with plain_errors():
        quiet_libraries()
        from ..lm.variants import VARIANTS
        from ..runs import trained
        from ..train.distributed import joined
        from ..train.recipes import RECIPES, on_text, with_variant
        from ..train.settings import changed

        base = with_variant(_one_of(RECIPES, recipe, "recipe"), _one_of(VARIANTS, variant, "variant"))
        base = base if text is None else on_text(base, text)
        chosen = changed(base, [f"seed={seed}", *settings])
        folder = out or cache_folder() / "runs" / chosen.key()
        with joined(device) as world, _told(chosen, folder, log, world.is_first, variant) as (on_step, on_data):
            run = trained.trained(chosen, on_step=on_step, folder=folder, world=world, on_data=on_data)
    if world.is_first:
        last = run.history()[-1]
        console.print(f"loss {last['valid_loss']:.3f}  Sink_1 {last['sink_1']:.1%}", highlight=False)
        console.print(f"trained: {run.folder}", highlight=False, soft_wrap=True)


def finetune(
    model: Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")],
    data: Annotated[str, typer.Argument(help="A .jsonl file of chats, or the name of a set of them on the Hub.")],
    out: Annotated[Path, typer.Option(help="The run's folder; the model lies in its folder `model`.")],
    settings: Settings = [],
    seed: Annotated[int, typer.Option(help="Seed of the order of the chats.")] = 0,
    device: Device = "auto",
    log: Log = None,
) -> None:
    """Fine-tune a chat model on the assistants' tokens of chats, from the newest checkpoint if there is one.

    Several processes share every batch; see train.
    """
    with plain_errors():
        quiet_libraries()
        from ..runs.finetune import ChatRecipe, finetuned
        from ..train.distributed import joined
        from ..train.settings import changed

        chosen = changed(ChatRecipe(model=model, data=data), [f"seed={seed}", *settings])
        with joined(device) as world, _told(chosen, out, log, world.is_first, "chat") as (on_step, _):
            say = partial(errors.print, highlight=False, markup=False, soft_wrap=True)
            folder = finetuned(chosen, out, on_step, world, say if world.is_first else lambda words: None)
    if world.is_first:
        console.print(f"fine-tuned: {folder}", highlight=False, soft_wrap=True)


def mount(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    app.command()(train)
    app.command()(finetune)


def _one_of(named: dict[str, Any], name: str, what: str) -> Any:
    if name not in named:
        raise InputError(f"there is no {what} {name!r}; choose from {', '.join(named)}")
    return named[name]


@contextmanager
def _told(
    recipe: Any, folder: Path, log: str | None, speaks: bool, name: str
) -> Iterator[tuple[OnStep, Callable[[int, int], None]]]:
    """What tells the user, and the log, how a run goes: of its steps, and of its data."""
    from ..train.logs import open_log

    if not speaks:
        yield lambda step, latest: None, lambda done, of: None
        return
    with open_log(log, folder, recipe) as write, _narrator(name, recipe.steps) as narrate:

        def on_step(step: int, latest: dict[str, Any]) -> None:
            narrate(step, latest)
            write(step, {key: value for key, value in latest.items() if key != "step"})

        yield on_step, _data_lines()


def _data_lines() -> Callable[[int, int], None]:
    """A line every few seconds on how far the data have come."""
    before = [time.monotonic()]

    def on_data(done: int, of: int) -> None:
        if time.monotonic() - before[0] >= EVERY:
            before[0] = time.monotonic()
            errors.print(f"data: {done:,}{f' of {of:,}' if of else ''}", highlight=False)

    return on_data


@contextmanager
def _narrator(name: str, steps: int) -> Iterator[OnStep]:
    """A progress bar on a terminal, else a line every few seconds."""
    speed = _Speed()
    if not errors.is_terminal:
        yield _lines(name, steps, speed)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=errors) as progress:
        bar = progress.add_task(name, total=steps, left="")

        def on_step(step: int, latest: dict[str, Any]) -> None:
            words, left = f"{name}  {_words(latest, speed(step, latest))}", speed.left(step, steps)
            progress.update(bar, completed=step, description=words, left=left)

        yield on_step


def _lines(name: str, steps: int, speed: "_Speed") -> OnStep:
    before = [time.monotonic()]

    def on_step(step: int, latest: dict[str, Any]) -> None:
        rate = speed(step, latest)
        if time.monotonic() - before[0] >= EVERY or step == steps:
            before[0] = time.monotonic()
            line = f"{name}  step {step}/{steps}  {_words(latest, rate)}  {speed.left(step, steps)}"
            errors.print(line, highlight=False, markup=False, soft_wrap=True)

    return on_step


class _Speed:
    """Tokens per second, and the time left, since the first step that was told."""

    def __init__(self) -> None:
        self.first, self.start, self.tokens, self.seconds = 0, 0.0, 0, 0.0

    def __call__(self, step: int, latest: dict[str, Any]) -> float:
        """Tokens per second; 0 at the first step, from which the clock runs."""
        if not self.first:
            self.first, self.start = step, time.monotonic()
            return 0.0
        self.tokens, self.seconds = self.tokens + latest["tokens"], time.monotonic() - self.start
        return self.tokens / self.seconds if self.seconds else 0.0

    def left(self, step: int, steps: int) -> str:
        """What remains, in words."""
        if step <= self.first:
            return ""
        seconds = round((steps - step) * self.seconds / (step - self.first))
        return f"{timedelta(seconds=seconds)} left"


def _words(latest: dict[str, Any], rate: float) -> str:
    sinks = f"  Sink_1 {latest['sink_1']:.0%}" if "sink_1" in latest else ""
    return f"loss {latest['train_loss']:.3f}{sinks}  |grad| {latest['grad_norm']:.2g}  {rate:,.0f} tokens/s"
