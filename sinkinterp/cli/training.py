"""The commands that train: a model of ours, and a chat model further."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InputError, choice
from ..data.choices import Remedy, Weights
from ..data.progress import OnProgress, no_progress, progress_bars
from ..files import cache_folder
from . import options
from .options import check_run
from .reproducing import cost_text
from .terminal import print_line, print_table, print_text

if TYPE_CHECKING:
    from ..train.recipe import Fit


def train(
    variant: Annotated[str, typer.Argument(parser=options.filled, autocompletion=options.beginning(options.VARIANTS))],
    recipe: Annotated[
        str, typer.Option(parser=options.filled, autocompletion=options.beginning(options.RECIPES))
    ] = "demo",
    text: Annotated[str | None, typer.Option(parser=options.source)] = None,
    out: Annotated[Path | None, typer.Option(parser=options.output_folder)] = None,
    dry_run: bool = False,
    how: options.Training = options.Training(),
) -> None:
    """Train a language model of ours, from the newest checkpoint if there is one; reads its sinks along the way.

    Several processes share every batch:

    accelerate launch --num_processes 8 -m sinkinterp train ...

    On CPUs (accelerate's --cpu starts one process only, --multi_gpu several):

    torchrun --nproc-per-node 2 -m sinkinterp train ... --device cpu
    """
    check_run(out, how.force)
    from ..data.texts import check_readable
    from ..lm.model import check_size
    from ..runs import trained
    from ..spec import changed
    from ..train.distributed import joined
    from ..train.recipe import NAMED, RECIPES, on_text, with_variant

    base = with_variant(choice(recipe, RECIPES, "recipe"), variant)
    if text is not None:
        base = on_text(base, text)
    chosen = changed(replace(base, seed=how.seed), how.settings)
    if text is not None and text not in NAMED:
        check_readable(text, getattr(chosen.data.source, "column", "text"))
    check_size(chosen.model)
    folder = out or cache_folder() / "runs" / chosen.key()
    if dry_run:
        print_text(f"{folder}: {cost_text([chosen], None)}")
        return
    with joined(how.device) as world, run_progress(chosen, world.is_first, variant) as (on_step, on_data):
        run = trained.trained(chosen, on_step=on_step, folder=folder, device=how.device, on_data=on_data)
    if world.is_first:
        last = run.history().records()[-1]
        print_text(f"loss {last['valid_loss']:.3f}  Sink_1 {last['sink_1']:.1%}")
        print_text(f"trained: {run.folder}")


def finetune(
    model: options.Model,
    data: Annotated[str, typer.Argument(parser=options.source)],
    out: Annotated[Path, typer.Option(parser=options.output_folder)],
    how: options.Training = options.Training(),
) -> None:
    """Fine-tune a chat model on the assistants' tokens of chats, from the newest checkpoint if there is one.

    Several processes share every batch; see train.
    """
    check_run(out, how.force)
    from ..runs.trained import ChatRecipe, finetuned
    from ..spec import changed
    from ..train.distributed import joined

    chosen = changed(ChatRecipe(model=model, data=data, seed=how.seed), how.settings)
    if (chosen.model, chosen.data, chosen.sha256) != (model, data, ""):
        raise InputError("model and data are arguments, and sha256 is computed; leave them out of --set")
    with joined(how.device) as world, run_progress(chosen, world.is_first, "chat") as (on_step, _):
        folder = finetuned(chosen, out, on_step, world, print_line if world.is_first else lambda message: None)
    if world.is_first:
        print_text(f"fine-tuned: {folder}")


def mend(
    model: options.Model,
    out: Annotated[Path, typer.Option(parser=options.output_folder)],
    remedy: Annotated[Remedy, typer.Option("--with")] = Remedy.KV_BIAS,
    weights: Weights = Weights.NONE,
    penalty: float = 1.0,
    text: Annotated[str, typer.Option(parser=options.source)] = "embedded",
    length: Annotated[int | None, typer.Option(parser=options.TOKENS, show_default=False)] = None,
    steps: Annotated[int, typer.Option(parser=options.whole(0))] = 0,
    how: options.Training = options.Training(),
) -> None:
    """Move the sink of a model into a key and a value beside those of each head, and measure what that is worth.

    With --steps they are trained; that goes on from the newest checkpoint if there is one.
    """
    check_run(out, how.force)
    from ..applications.mend import mend_recipe, mended
    from ..spec import changed
    from ..train.distributed import joined

    recipe = mend_recipe(model, text, length, remedy, weights, seed=how.seed, steps=steps, penalty=penalty)
    chosen = changed(recipe, how.settings)
    with joined(how.device) as world, run_progress(chosen, world.is_first, "mend") as (on_step, on_data):
        mend = mended(chosen, out, on_step=on_step, on_data=on_data, world=world)
    print_table(mend.table)
    print_text(mend.answer())


OnStep = Callable[[int, dict[str, Any]], None]


@contextmanager
def run_progress(recipe: "Fit", is_first: bool, name: str) -> Iterator[tuple[OnStep, OnProgress]]:
    """Yields the functions that take the progress of steps and of data. Only the first process shows it."""
    if not is_first:
        yield lambda step, metrics: None, no_progress
        return
    with progress_bars(in_lines=True) as progress:
        show, began, tokens = progress(f"{name} step"), 0.0, 0

        def on_step(step: int, metrics: dict[str, Any]) -> None:
            nonlocal began, tokens
            now = time.monotonic()
            began, tokens = (began, tokens + metrics["tokens"]) if began else (now, 0)  # the first step warms up
            show(step, recipe.steps, _metrics_text(metrics, tokens / max(now - began, 1e-9)))

        yield on_step, progress("data")


def _metrics_text(metrics: dict[str, Any], tokens_per_second: float) -> str:
    sinks = f"  Sink_1 {metrics['sink_1']:.0%}" if "sink_1" in metrics else ""
    if "peak_over_median" in metrics:  # of a model that is mended
        sinks += f"  alpha_1 {metrics['alpha_1']:.3f} ({metrics['alpha_1_uniform']:.3f})  Sink_* "
        sinks += f"{metrics['sink_slot']:.0%}  largest entry {metrics['peak_over_median']:,.0f} medians"
    rate = f"{tokens_per_second:,.0f} tokens/s"
    return f"loss {metrics['train_loss']:.3f}{sinks}  |grad| {metrics['grad_norm']:.2g}  {rate}"
