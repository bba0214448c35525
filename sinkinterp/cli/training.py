"""The commands that train: a model of ours, and what mends the sink of another one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import choice
from ..data.choices import Remedy, Weights
from ..data.progress import Progress, progress_bars, silent
from ..files import cache_folder, data_of
from . import options
from .options import beginning, check_run, folder, n, option, source, word
from .reproducing import cost_text
from .terminal import deliver, print_text, say

if TYPE_CHECKING:
    from ..applications.mend import MendRecipe
    from ..train.recipe import Fit


VARIANTS, RECIPES = (beginning(partial(data_of, name)) for name in ("lm/changes.toml", "train/recipes.toml"))


@dataclass(frozen=True)
class Training:
    """With what changes of its settings a model is trained, and where."""

    settings: options.Changes = field(default_factory=list)
    seed: options.Seed = 0
    device: Annotated[str, word("cpu, cuda, or auto: cuda if there is one.", "NAME")] = "auto"


def train(
    variant: Annotated[
        str, typer.Argument(help="See `sinkinterp list variants`.", autocompletion=VARIANTS, metavar="VARIANT")
    ],
    *,
    recipe: Annotated[
        str, word("The sizes and the schedule: see `sinkinterp list recipes`.", "NAME", autocompletion=RECIPES)
    ] = "demo",
    text: Annotated[
        str | None, word("A file, a folder, hub:NAME, or `embedded`: docstrings.", "FILE", parser=source)
    ] = None,
    out: Annotated[Path | None, folder("The run's folder; default: in the cache.")] = None,
    dry_run: Annotated[bool, option("Say what the run costs, and run nothing.", "--dry-run")] = False,
    how: Training,
) -> None:
    """Train a language model, from its newest checkpoint, and read its sinks along the way.

    Example: sinkinterp train sigmoid --set steps=100

    Several processes share every batch: accelerate launch --num_processes 8 -m sinkinterp train ...
    On CPUs: torchrun --nproc-per-node 2 -m sinkinterp train ... --device cpu
    """
    if out is not None:
        check_run(out)
    say(f"preparing {variant}, recipe {recipe}")
    from ..data.texts import named_texts
    from ..lm.model import check_size
    from ..runs import trained
    from ..spec import changed
    from ..train.distributed import joined
    from ..train.recipe import NAMED, RECIPES, on_text, with_variant

    base = with_variant(choice(recipe, RECIPES, "recipe"), variant)
    if text is not None:
        base = on_text(base, text if text in NAMED else named_texts(text))
    chosen = changed(replace(base, seed=how.seed), how.settings)
    if text is not None and text not in NAMED:
        column = getattr(chosen.data.source, "column", "text")
        options.readable_texts(text, None if column == "text" else column)
    check_size(chosen.model)
    folder = out or cache_folder() / "runs" / chosen.key()
    if dry_run:
        print_text(f"{folder}: {cost_text([chosen], None)}")
        return
    with joined(how.device) as world, run_progress(chosen, world.is_first, variant) as (on_step, progress):
        on_data = progress("data")
        run = trained.trained(chosen, on_step=on_step, folder=folder, device=how.device, on_data=on_data)
    if world.is_first:
        last = run.history().records()[-1]
        print_text(f"loss {last['valid_loss']:.3f}  Sink_1 {last['sink_1']:.1%}")
        print_text(f"trained: {run.folder}")


@dataclass(frozen=True)
class Mending:
    """What heads may attend to in place of the first token, and the text on which that is made."""

    remedy: Annotated[Remedy, option(f"What heads may attend to: {', '.join(Remedy)}.", "--with", metavar="WHAT")] = (
        Remedy.KV_BIAS
    )
    weights: Annotated[Weights, option(f"Weights trained too: {', '.join(Weights)}.", metavar="WHICH")] = Weights.NONE
    penalty: Annotated[float, option("What the loss gains for attention to token 1.", min=0, metavar="X")] = 1.0
    text: Annotated[str, word("A file, a folder, hub:NAME, or `embedded`.", "FILE", parser=source)] = "embedded"
    length: Annotated[int | None, n("Tokens of a chunk of the text; default: 96 or fewer.", min=2)] = None
    steps: Annotated[int, n("Steps of training, at most.", min=0)] = 0

    def recipe(self, model: str, how: Training) -> "MendRecipe":
        """What mends the model."""
        from ..applications.mend import check_trained, mend_recipe
        from ..data.texts import named_texts
        from ..spec import changed
        from ..train.recipe import NAMED

        given = {each.name: getattr(self, each.name) for each in fields(self)}
        given["text"] = self.text if self.text in NAMED else named_texts(self.text)
        recipe = changed(mend_recipe(model, **given, seed=how.seed), how.settings)
        check_trained(recipe)
        return recipe


def mend(
    model: options.Model,
    *,
    out: Annotated[Path, folder("The run's folder; its folder `adapter` is a model.")],
    what: Mending,
    how: Training,
    format: options.Format = None,
) -> None:
    """Move the sink of a model into a key and a value of each head, and measure the result.

    Example: sinkinterp mend smollm2 --out mended

    With --steps they are trained; that goes on from the newest checkpoint if there is one.
    """
    check_run(out)
    say(f"loading {model}")
    from ..applications.mend import mended
    from ..train.distributed import joined

    chosen = what.recipe(model, how)
    with joined(how.device) as world, run_progress(chosen, world.is_first, "mend") as (on_step, progress):
        mend = mended(chosen, out, on_step=on_step, progress=progress, world=world)
        table = mend.before_and_after(progress)
    deliver([mend.answer(), table], form=format)


OnStep = Callable[[int, dict[str, Any]], None]


@contextmanager
def run_progress(recipe: "Fit", is_first: bool, name: str) -> Iterator[tuple[OnStep, Progress]]:
    """Yields the functions that take the progress of steps and of other work. Only the first process shows it."""
    if not is_first:
        yield lambda step, metrics: None, silent
        return
    with progress_bars(in_lines=True) as progress:
        show, began, tokens = progress(f"{name} step"), 0.0, 0

        def on_step(step: int, metrics: dict[str, Any]) -> None:
            nonlocal began, tokens
            now = time.monotonic()
            began, tokens = (began, tokens + metrics["tokens"]) if began else (now, 0)  # the first step warms up
            show(step, recipe.steps, _metrics_text(metrics, tokens / max(now - began, 1e-9)))

        yield on_step, progress


def _metrics_text(metrics: dict[str, Any], tokens_per_second: float) -> str:
    sinks = f"  Sink_1 {metrics['sink_1']:.0%}" if "sink_1" in metrics else ""
    if "peak_over_median" in metrics:  # of a model that is mended
        sinks += f"  alpha_1 {metrics['alpha_1']:.3f} ({metrics['alpha_1_uniform']:.3f})  Sink_* "
        sinks += f"{metrics['sink_slot']:.0%}  largest entry {metrics['peak_over_median']:,.0f} medians"
    rate = f"{tokens_per_second:,.0f} tokens/s"
    return f"loss {metrics['train_loss']:.3f}{sinks}  |grad| {metrics['grad_norm']:.2g}  {rate}"
