"""Checks and measures everything on a GPU, in at most eight minutes.

    python -m benchmarks.gpu [--json gpu.json] [--minutes 8]
    python -m benchmarks.gpu --toy        # the same code on a CPU, at sizes at which its figures mean nothing

Checks compare the GPU with a CPU: every kernel, every intervention, a trainer that resumes. Figures
are ratios over the plain SDPA forward pass on the same weights, as in `benchmarks.measure`. A row that fails says why,
and the others go on. Rows that do not fit into the time are named.
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers.utils.logging import disable_progress_bar

from benchmarks import gpu_checks
from benchmarks.console import say
from benchmarks.costs import peak_mb_here, time_ratio
from benchmarks.gpu_checks import Size
from benchmarks.rows import PEERS, Row
from benchmarks.train import recipe_of, speed_on
from benchmarks.ways import (
    LlamaSetting,
    Setting,
    Way,
    all_positions,
    compiled,
    default_measure,
    first_position,
    generation,
    generation_in_a_block,
    patching,
    plain,
)
from sinkinterp.files import write_file
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.table import Table
from sinkinterp.train.recipe import RECIPES, Recipe, with_variant

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}  # dense bf16, as NVIDIA's data sheets say
NO_DEVICE = "there is no CUDA device here; --toy runs the same code on the CPU, where figures mean nothing"
NOT_MEASURED = "not measured yet"
PEOPLES = ((16, 64), (100, 64), (8, 2048), (1, 32_768))  # sequences and tokens that people have


@dataclass(frozen=True)
class Scale:
    """At what sizes everything runs, and where.

    lengths: those of the ratios; peers run at the first. has_goals: whether figures are held against goals.
    """

    device: str
    setting: Setting
    lengths: tuple[int, ...]
    calls: Size
    recipe: Recipe
    llamas: tuple[LlamaSetting, ...]
    repeats: int
    peak_tflops: float
    compiler: str = "inductor"
    has_goals: bool = True


def full(peak_tflops: float) -> Scale:
    """GPT-2 small in bf16 at two lengths, and the paper's 60M model."""
    setting = Setting(2048, device="cuda", dtype=torch.bfloat16)
    recipe = replace(with_variant(RECIPES["paper-60m"], "llama"), batch=16)
    one = partial(LlamaSetting, "Llama-3.2-1B", layers=16, heads=32, kv_heads=8, width=2048, inner=8192)
    eight = partial(LlamaSetting, "Llama-3.1-8B", layers=32, heads=32, kv_heads=8, width=4096, inner=14_336)
    llamas = tuple(make(n, length) for make in (one, eight) for n, length in PEOPLES)
    return Scale("cuda", setting, (2048, 32_768), Size(), recipe, llamas, repeats=7, peak_tflops=peak_tflops)


def toy() -> Scale:
    """Sizes that a CPU runs in a minute."""
    setting = Setting(17, layers=1, heads=3, width=24, vocab=97, dtype=torch.bfloat16)
    recipe = replace(recipe_of(VARIANTS["llama"], 23), batch=2)
    llama = LlamaSetting(
        "a tiny Llama", 2, 17, layers=1, heads=4, kv_heads=2, width=24, inner=32, vocab=97, device="cpu"
    )
    return Scale(
        "cpu", setting, (17, 37), Size(29, 16), recipe, (llama,), 1, peak_tflops=1.0, compiler="eager", has_goals=False
    )


def main(
    toy_sizes: Annotated[bool, typer.Option("--toy", help="On the CPU; figures mean nothing.")] = False,
    minutes: Annotated[float, typer.Option(min=0, help="Rows that do not fit into this time are left out.")] = 8.0,
    peak_tflops: Annotated[float | None, typer.Option(help="The device's dense bf16 peak; by its name.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Print the table of checks and ratios; exit code 1 where a check fails, 2 where there is no device."""
    if not toy_sizes and not torch.cuda.is_available():
        say(NO_DEVICE)
        raise typer.Exit(2)
    disable_progress_bar()
    name = "a CPU, toy sizes: the figures mean nothing" if toy_sizes else torch.cuda.get_device_name()
    scale = toy() if toy_sizes else full(peak_tflops or peak_of(name))
    say(f"{len([*rows(scale)])} rows on {name}, in at most {minutes:g} minutes")
    results = [*measured(rows(scale), time.monotonic() + 60 * minutes)]
    print(table(results, name).to_markdown())
    if json_out is not None:
        write_file(json_out, {"device": name, "torch": version("torch"), "rows": [asdict(r) for r in results]})
    if any(result.verdict.startswith(("failed", "missed")) for result in results if result.what.startswith("check")):
        raise typer.Exit(1)


def peak_of(name: str) -> float:
    """Dense bf16 TFLOP/s of a device by its name. Exits where the name is not known."""
    known = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    if known is None:
        raise SystemExit(f"the bf16 peak of {name} is not known; give it: --peak-tflops")
    return known


def rows(scale: Scale) -> Iterator[Row]:
    """All rows: checks first, then what has a goal, then the peers."""
    yield from _checks(scale)
    long = [replace(scale.setting, length=length) for length in scale.lengths]
    for setting in long:
        yield from _ratios("first position and norms", first_position, setting, scale, 1.05)
        yield from _ratios("all positions and norms", all_positions, setting, scale, 1.15)
    for kind, recipe in (("", scale.recipe), (", compiled", replace(scale.recipe, compiled=True))):
        yield from _speed(f"the 60M recipe{kind}, batch {recipe.batch} x {recipe.model.n_ctx:,}", recipe, scale)
    for llama in scale.llamas:
        yield from _of_people(llama, scale)
    yield from _ratios("plain forward, torch.compile", partial(compiled, compiler=scale.compiler), long[0], scale, None)
    yield from _ratios("plain forward against itself (noise)", plain, long[0], scale, None)
    for what, way in PEERS.items():
        yield from _ratios(what, way, long[0], scale, None)


def _of_people(setting: LlamaSetting, scale: Scale) -> Iterator[Row]:
    ways = {"first position": (first_position, 1.10), "all positions": (all_positions, 1.25)}
    for what, (way, goal) in {**ways, "all instruments": (default_measure, None)}.items():
        name = f"{what}, {setting.name}, {setting.sequences} x {setting.length:,}: time"
        yield Row(name, goal if scale.has_goals else None, partial(time_ratio, way, setting, scale.repeats))
    if (setting.sequences, setting.length) != PEOPLES[0] and scale.has_goals:
        return
    for what, peer in {**PEERS, "activation_patching of one pair of prompts": patching}.items():
        yield Row(f"{what}, {setting.name}: time", None, partial(time_ratio, peer, setting, scale.repeats))
    ratio = partial(time_ratio, generation_in_a_block, setting, scale.repeats, generation)
    yield Row(f"16 tokens in a block of an edit over 16 tokens, {setting.name}: time", None, ratio)


def _speed(what: str, recipe: Recipe, scale: Scale) -> Iterator[Row]:
    speed = cache(partial(speed_on, recipe, torch.device(scale.device), scale.repeats))
    yield Row(f"{what}: tokens a second", None, lambda: speed()[0])
    goal = 0.45 if scale.has_goals else None
    yield Row(f"{what}: MFU", goal, lambda: speed()[0] * speed()[1] / scale.peak_tflops / 1e12, at_least=True)


def _checks(scale: Scale) -> Iterator[Row]:
    for what, most, check in gpu_checks.kernels(scale.device, scale.calls):
        yield Row(f"check: kernel, {what}", most, check)
    yield Row("check: all interventions, logits", 1e-4, partial(gpu_checks.intervention_difference, scale.device))
    yield Row("check: a trainer that resumes, loss", 1e-4, partial(gpu_checks.resume_difference, scale.device))


def _ratios(what: str, way: Way, setting: Setting, scale: Scale, goal: float | None) -> Iterator[Row]:
    name = f"{what}, bf16, T={setting.length:,}"
    goal = goal if scale.has_goals else None
    yield Row(f"{name}: time", goal, partial(time_ratio, way, setting, scale.repeats))
    yield Row(f"{name}: peak memory", None if goal is None else 1.05, partial(_memory_ratio, way, setting))


def _memory_ratio(way: Way, setting: Setting) -> float:
    return max(peak_mb_here(way, setting), 1e-3) / max(_plain_mb(setting), 1e-3)  # a toy's may be zero


@cache
def _plain_mb(setting: Setting) -> float:
    return peak_mb_here(plain, setting)


@dataclass(frozen=True)
class Result:
    """A row's figure beside its goal; None where it failed or was not reached, which the verdict says."""

    what: str
    figure: float | None
    goal: str
    verdict: str


def measured(every: Iterator[Row], deadline: float, clock: Callable[[], float] = time.monotonic) -> Iterator[Result]:
    """Each row's result, told as soon as it is there. After the deadline none is begun."""
    for row in every:
        result = _result(row) if clock() < deadline else Result(row.what, None, goal_of(row), "not reached in the time")
        figure = "" if result.figure is None else f"{result.figure:.4g}"
        say(f"{result.what}: {figure} {result.verdict}".rstrip())
        yield result


def _result(row: Row) -> Result:
    try:
        figure = float(row.figure())
    except Exception as error:  # whatever one row does, the others are measured
        reason = (str(error).strip().splitlines() or [""])[0]
        return Result(row.what, None, goal_of(row), f"failed: {type(error).__name__}: {reason[:150]}")
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return Result(row.what, figure, goal_of(row), row.verdict(figure))


def goal_of(row: Row) -> str:
    """A row's target in words."""
    return "" if row.target is None else f"{'at least' if row.at_least else 'at most'} {row.target:g}"


def table(results: list[Result], device: str) -> Table:
    """The results as they stand in README.md."""
    cells = (
        {
            "on a GPU": result.what,
            "figure": NOT_MEASURED if result.figure is None else f"{result.figure:.4g}",
            "goal": result.goal,
            "verdict": result.verdict,
        }
        for result in results
    )
    return Table.of(f"On {device}", f"torch {version('torch')}, transformers {version('transformers')}", tuple(cells))


if __name__ == "__main__":
    typer.run(main)
