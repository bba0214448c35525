"""The command that fine-tunes."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .hub import offline_if_unreachable
from .options import SEED, Device, Log, Model, Settings
from .terminal import console, error_console, quiet_libraries
from .training_progress import run_progress
from .values import filled, output_folder

DATA = "A .jsonl file of chats, or the name of a dataset of chats on the Hub."
OUT = "The run's folder; the model is written to its folder `model`."


def finetune(
    model: Model,
    data: Annotated[str, typer.Argument(help=DATA, parser=filled)],
    out: Annotated[Path, typer.Option(help=OUT, parser=output_folder)],
    settings: Settings = [],
    seed: Annotated[int, typer.Option(help="Seed of the order of the chats.", parser=SEED)] = 0,
    device: Device = "auto",
    log: Log = None,
) -> None:
    """Fine-tune a chat model on the assistants' tokens of chats, from the newest checkpoint if there is one.

    Several processes share every batch; see train.
    """
    quiet_libraries()
    offline_if_unreachable(model, data)
    from ..runs.finetune import ChatRecipe, finetuned
    from ..train.distributed import joined
    from ..train.settings import changed

    chosen = changed(ChatRecipe(model=model, data=data, seed=seed), settings)
    with joined(device) as world, run_progress(chosen, out, log, world.is_first, "chat") as (on_step, _):
        warn = partial(error_console.print, highlight=False, markup=False, soft_wrap=True)
        folder = finetuned(chosen, out, on_step, world, warn if world.is_first else lambda message: None)
    if world.is_first:
        console.print(f"fine-tuned: {folder}", highlight=False, soft_wrap=True)
