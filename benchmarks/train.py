"""What training costs: ratios of tokens per second to other ways of training the same shape, one thread.

    python -m benchmarks.train [--length 256] [--repeats 7] [--quick]

Every way takes its turn right after the one that it is compared with, again and again; a ratio is the median over
these pairs. With `--device cuda`: tokens per second and model FLOP utilisation of the paper's 60M model in bf16.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import Trainer, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from benchmarks.console import NOISY, say
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.lm.attention import AttentionSpec
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.runs import trained
from sinkinterp.runs.estimate import Noise
from sinkinterp.train.distributed import World
from sinkinterp.train.loop import Job, engine_of, job_of, update
from sinkinterp.train.recipe import RECIPES, Recipe, parameter_groups

STEPS, BATCH = 4, 8
NORMALISED = ("sink_logit", "k_bias", "gated", "alibi", "t5")  # whose step takes at most 1.3 times softmax's
Clock = Callable[[], float]


def seconds(way: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    way()
    return time.process_time() - start


def recipe_of(model: LMSpec, length: int) -> Recipe:
    """`STEPS` steps of the shape that is compared, at a length of `length`."""
    shape = replace(model, vocab=1009, n_ctx=length, d_model=256, n_heads=4, n_layers=4, ffn=GatedFFN(width=512))
    return Recipe(model=shape, data=BigramBackcopy(vocab=1009, length=length), steps=STEPS, batch=BATCH, lr=1e-3)


class Ours:
    """The updates of our loop on one model, without evaluations and checkpoints."""

    def __init__(self, recipe: Recipe, world: World = World()) -> None:
        tokens = Noise(recipe.model.vocab, recipe.data.length).sample(recipe.batch)
        batch = {"input_ids": tokens, "labels": tokens}
        self.job = Job(recipe, lambda: build(recipe.model), lambda step: batch, lambda model: {}, world)
        self.model = build(recipe.model).to(world.device).train()
        groups = parameter_groups(self.model, recipe.decay, recipe.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.engine = engine_of(self.job, self.model)

    def __call__(self) -> None:
        for step in range(1, STEPS + 1):
            update(self.job, step, self.engine, self.optimizer)


class Minimal:
    """The same updates on a LlamaForCausalLM, in as few lines as they take."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.model = recipe, build(recipe.model).to_llama().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), recipe.lr, (0.9, 0.95), fused=True)
        self.tokens = Noise(recipe.model.vocab, recipe.data.length).sample(recipe.batch)

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            self.model(self.tokens, labels=self.tokens, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


class Transformers:
    """Updates by transformers' Trainer; one step of them is timed apart, and its set-up taken off with it."""

    def __init__(self, recipe: Recipe, folder: str, steps: int) -> None:
        tokens = Noise(recipe.model.vocab, recipe.data.length).sample(recipe.batch)
        rows = [{"input_ids": row, "labels": row} for row in tokens] * steps
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=recipe.batch,
            max_steps=steps,
            learning_rate=recipe.lr,
            use_cpu=True,
            adam_beta2=0.95,
            optim="adamw_torch_fused",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        self.trainer = Trainer(model=build(recipe.model).to_llama(), args=arguments, train_dataset=rows)

    def __call__(self) -> None:
        with redirect_stdout(StringIO()):  # it prints its own summary
            self.trainer.train()


def pairs(plain: Clock, other: Clock, repeats: int) -> list[tuple[float, float]]:
    """Seconds of both, in turns, after one round to warm up."""
    plain(), other()
    return [(plain(), other()) for _ in range(repeats)]


def rows(length: int, repeats: int) -> Iterator[tuple[str, str, float, float]]:
    """Name, what it is over, the ratio of tokens per second, and the goal."""
    softmax = recipe_of(VARIANTS["llama"], length)
    ours = partial(seconds, Ours(softmax))
    with tempfile.TemporaryDirectory() as folder:
        short, long = (Transformers(softmax, folder, steps) for steps in (1, STEPS + 1))
        others: dict[str, Clock] = {
            "itself (noise)": partial(seconds, Ours(softmax)),
            "LlamaForCausalLM, minimal loop": partial(seconds, Minimal(softmax)),
            "its Trainer, set-up taken off": lambda: seconds(long) - seconds(short),
        }
        for name, other in others.items():
            yield "our softmax", name, statistics.median(b / a for a, b in pairs(ours, other, repeats)), 1.0
    kernels = {spec.attention.kernel: name for name, spec in VARIANTS.items()}
    others_of_ours = {name: VARIANTS[name] for name in NORMALISED}
    for kernel, name in kernels.items():
        if not kernel.is_normalised:
            others_of_ours[name] = replace(VARIANTS["llama"], attention=AttentionSpec(kernel=kernel))
    for name, spec in others_of_ours.items():
        seconds_of_both = pairs(ours, partial(seconds, Ours(recipe_of(spec, length))), repeats)
        goal = 0.77 if name in NORMALISED else 0.7
        yield f"our {name}", "our softmax", statistics.median(a / b for a, b in seconds_of_both), goal


def overhead(recipe: Recipe, repeats: int) -> float:
    """Share of a run's time that evaluations, checkpoints and one resumption take."""
    plain = replace(recipe, watch_every=recipe.steps + 1, save_every=recipe.steps + 1)
    shares = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            whole = seconds(lambda: _interrupted(recipe, Path(folder)))
            bare = seconds(lambda: _bare(plain))
        shares.append((whole - bare) / whole)
    return statistics.median(shares)


def _interrupted(recipe: Recipe, folder: Path) -> None:
    """A run that is stopped once halfway and goes on."""

    def stop(step: int, latest: dict[str, float]) -> None:
        if step == recipe.steps // 2:
            raise KeyboardInterrupt

    try:
        trained.trained(recipe, folder, stop)
    except KeyboardInterrupt:
        trained.trained(recipe, folder)


def _bare(recipe: Recipe) -> None:
    """The updates of a run alone."""
    job = job_of(recipe, recipe.data, lambda model: {})
    model = job.start()
    groups = parameter_groups(model, recipe.decay, recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    for step in range(1, recipe.steps + 1):
        update(job, step, model, optimizer)


def speed_on(recipe: Recipe, device: torch.device, repeats: int) -> tuple[float, float]:
    """Tokens per second, and FLOP per token: 6 per weight, and 12 L d T halved, since attention is causal."""
    ours = Ours(recipe, World(device))
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ours()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        ours()
    wait()
    spec = recipe.model
    speed = repeats * STEPS * recipe.batch * spec.n_ctx / (time.perf_counter() - start)
    weights = sum(p.numel() for p in ours.model.parameters()) - spec.vocab * spec.d_model
    return speed, 6 * weights + 6 * spec.n_layers * spec.d_model * spec.n_ctx


def main(
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 256,
    repeats: Annotated[int, typer.Option(help="Pairs for every ratio.")] = 7,
    quick: Annotated[bool, typer.Option(help="A minute: T=64, 1 pair, fewer rows; noisy, and no goals.")] = False,
) -> None:
    """Print the table of ratios."""
    disable_progress_bar()
    torch.set_num_threads(1)
    if quick:
        length, repeats = 64, 1
    say(f"about {'one minute' if quick else f'{4 + 2 * repeats} minutes'} on an idle core")
    table = Table(
        title=f"4 layers of 256, vocabulary 1009, T={length}, batch {BATCH}, fp32, one thread, {repeats} pairs"
    )
    for heading in ("way", "over", "ratio of tokens/s", "goal"):
        table.add_column(heading, justify="left" if heading in ("way", "over") else "right")
    for name, other, ratio, goal in islice(rows(length, repeats), 4 if quick else None):
        add(table, name, other, f"{ratio:.3f}", "" if quick else f">= {goal}")
    demo = replace(RECIPES["demo"], steps=60, watch_every=30, save_every=30) if quick else RECIPES["demo"]
    share = overhead(demo, max(1, repeats // 2))
    add(table, "resuming, evaluations, checkpoints of the demo", "the run", f"{share:.1%}", "" if quick else "< 3%")
    table.caption = NOISY if quick else None
    Console().print(table)


def add(table: Table, *cells: str) -> None:
    """Adds a row to the table, and tells it at once."""
    say(", ".join(cells))
    table.add_row(*cells)


if __name__ == "__main__":
    typer.run(main)
