"""The commands that train: a model of ours, and a chat model further."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..data.choices import Remedy, Weights
from ..errors import InputError
from ..files import cache_folder
from .loading import offline_if_unreachable
from .options import (
    RECIPES,
    SEED,
    VARIANTS,
    Device,
    Force,
    Length,
    Log,
    Model,
    Settings,
    beginning,
    filled,
    output_folder,
    source,
    whole,
)
from .places import check_run
from .terminal import print_line, print_table, print_text, quiet_libraries, run_progress

VARIANT = f"What is changed in the architecture: {', '.join(VARIANTS)}."
RECIPE = f"The sizes and the schedule: {', '.join(RECIPES)}."
TEXT = "Train on text instead: a file, a folder, the name of a dataset, or `embedded` for the docstrings."
OUT = "The run's folder; by default in the cache, named by the recipe."
CHATS = "A .jsonl file of chats, or the name of a dataset of chats on the Hub."
TUNED = "The run's folder; the model is written to its folder `model`."
MENDED = "The run's folder; what mends the model is written to its folder `adapter`, which every command reads."
REMEDY = "What heads may attend to instead: sink_logit, k_bias, or none (a control)."
WEIGHTS = "Which weights are trained too: all, lora (of peft) or none."
PENALTY = "What the loss gains for each unit of attention that later queries give to the first token."
READ = "Train on this text: a file, a folder, the name of a dataset, or `embedded` for the docstrings."


def train(
    variant: Annotated[str, typer.Argument(help=VARIANT, parser=filled, autocompletion=beginning(VARIANTS))],
    recipe: Annotated[str, typer.Option(help=RECIPE, parser=filled, autocompletion=beginning(RECIPES))] = "demo",
    text: Annotated[str | None, typer.Option(help=TEXT, parser=source)] = None,
    settings: Settings = [],
    out: Annotated[Path | None, typer.Option(help=OUT, parser=output_folder)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order of the data.", parser=SEED)] = 0,
    device: Device = "auto",
    log: Log = None,
    force: Force = False,
) -> None:
    """Train a language model of ours, from the newest checkpoint if there is one; reads its sinks along the way.

    Several processes share every batch, and with --use_fsdp the weights:

    accelerate launch --num_processes 8 [--use_fsdp] -m sinkinterp train ...

    On CPUs (accelerate's --cpu starts one process only, --multi_gpu several):

    torchrun --nproc-per-node 2 -m sinkinterp train ... --device cpu
    """
    check_run(out, force)
    quiet_libraries()
    from ..data.texts import check_readable
    from ..lm.model import check_size
    from ..runs import trained
    from ..train.distributed import joined
    from ..train.recipes import NAMED, on_text, recipe_named, with_variant
    from ..train.settings import changed

    base = with_variant(recipe_named(recipe), variant)
    if text is not None:
        if text not in NAMED:
            offline_if_unreachable(text)
        base = on_text(base, text)
    chosen = changed(replace(base, seed=seed), settings)
    if text is not None and text not in NAMED:
        check_readable(text, getattr(chosen.data.source, "column", "text"))
    check_size(chosen.model)
    folder = out or cache_folder() / "runs" / chosen.key()
    with joined(device) as world, run_progress(chosen, folder, log, world.is_first, variant) as (on_step, on_data):
        run = trained.trained(chosen, on_step=on_step, folder=folder, device=device, on_data=on_data)
    if world.is_first:
        last = run.history()[-1]
        print_text(f"loss {last['valid_loss']:.3f}  Sink_1 {last['sink_1']:.1%}")
        print_text(f"trained: {run.folder}")


def finetune(
    model: Model,
    data: Annotated[str, typer.Argument(help=CHATS, parser=source)],
    out: Annotated[Path, typer.Option(help=TUNED, parser=output_folder)],
    settings: Settings = [],
    seed: Annotated[int, typer.Option(help="Seed of the order of the chats.", parser=SEED)] = 0,
    device: Device = "auto",
    log: Log = None,
    force: Force = False,
) -> None:
    """Fine-tune a chat model on the assistants' tokens of chats, from the newest checkpoint if there is one.

    Several processes share every batch; see train.
    """
    check_run(out, force)
    quiet_libraries()
    offline_if_unreachable(model, data)
    from ..runs.finetune import ChatRecipe, finetuned
    from ..train.distributed import joined
    from ..train.settings import changed

    chosen = changed(ChatRecipe(model=model, data=data, seed=seed), settings)
    if (chosen.model, chosen.data, chosen.sha256) != (model, data, ""):
        raise InputError("model and data are arguments, and sha256 is computed; leave them out of --set")
    with joined(device) as world, run_progress(chosen, out, log, world.is_first, "chat") as (on_step, _):
        folder = finetuned(chosen, out, on_step, world, print_line if world.is_first else lambda message: None)
    if world.is_first:
        print_text(f"fine-tuned: {folder}")


def mend(
    model: Model,
    out: Annotated[Path, typer.Option(help=MENDED, parser=output_folder)],
    remedy: Annotated[Remedy, typer.Option("--with", help=REMEDY)] = Remedy.SINK_LOGIT,
    weights: Annotated[Weights, typer.Option(help=WEIGHTS)] = Weights.ALL,
    penalty: Annotated[float, typer.Option(help=PENALTY)] = 1.0,
    text: Annotated[str, typer.Option(help=READ, parser=source)] = "embedded",
    length: Length = 96,
    steps: Annotated[int, typer.Option(help="Steps of training, at most.", parser=whole(1))] = 600,
    settings: Settings = [],
    seed: Annotated[int, typer.Option(help="Seed of the order of the text.", parser=SEED)] = 0,
    device: Device = "auto",
    log: Log = None,
    force: Force = False,
) -> None:
    """Move the sink of a model into a learned logit of each head, and measure what that is worth.

    A short training; it goes on from the newest checkpoint if there is one.
    """
    check_run(out, force)
    quiet_libraries()
    from ..applications.mend import mend_recipe, mended
    from ..train.distributed import joined
    from ..train.recipes import NAMED
    from ..train.settings import changed

    offline_if_unreachable(model, None if text in NAMED else text)
    recipe = mend_recipe(model, text, length, remedy, weights, seed=seed, steps=steps, penalty=penalty)
    chosen = changed(recipe, settings)
    with joined(device) as world, run_progress(chosen, out, log, world.is_first, "mend") as (on_step, on_data):
        mend = mended(chosen, out, on_step=on_step, on_data=on_data, world=world)
    print_table(mend.table)
    print_text(mend.answer())
