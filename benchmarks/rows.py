"""The rows of the table: what is measured, how, and what it should come to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from .costs import CAN_READ_PEAKS, load_ratio, memory_ratio, peak_mb, seconds_of, time_ratio
from .ways import (
    HAS_REAL,
    REAL,
    RealSetting,
    Setting,
    Way,
    all_positions,
    cache_transformer_lens,
    default_measure,
    first_position,
    first_position_nnsight,
    patterns_nnsight,
    patterns_transformers,
    plain,
)

PEERS: dict[str, Way] = {
    "transformers, eager, attentions kept": patterns_transformers,
    "nnsight, eager, attentions saved": patterns_nnsight,
    "TransformerLens, run_with_cache": cache_transformer_lens,
}


@dataclass(frozen=True)
class Row:
    """A figure, the most that it should be (None: it is only told), and what it is measured in ("" for a ratio).

    at_least: whether the target is the least that it should be.
    """

    what: str
    target: float | None
    figure: Callable[[], float]
    unit: str = ""
    at_least: bool = False

    def verdict(self, figure: float) -> str:
        """Whether a figure meets the target; "" where there is none."""
        if self.target is None:
            return ""
        return "met" if (figure >= self.target if self.at_least else figure <= self.target) else "missed"


@dataclass(frozen=True)
class Scale:
    """At what sizes the rows are measured. `long` is the shortest of three lengths that double, None to leave it out.

    starts: how often processes are started for the median of their seconds. real: what is measured on real weights.
    """

    main: Setting
    peers: Setting
    long: Setting | None
    repeats: int
    starts: int = 5
    real: tuple[RealSetting, ...] = ()


def rows(scale: Scale) -> Iterator[Row]:
    """All rows, in the order of the table."""
    yield from _time_rows(scale)
    yield from real_rows(scale)
    if CAN_READ_PEAKS:
        yield from _memory_rows(scale)
        if scale.long is not None:
            yield from _long_rows(scale.long)
    yield from _start_rows(scale)


def skipped(scale: Scale) -> Iterator[str]:
    """Why rows are missing."""
    if not CAN_READ_PEAKS:
        yield "No memory rows: this system has no /proc/self/clear_refs, which resets a process's high-water mark."
    elif scale.long is None:
        yield "No long rows: not asked for (--long)."
    if not scale.real:
        yield "No rows on real weights: not asked for."
    elif not HAS_REAL:
        yield f"No rows on real weights: {REAL} is not there; `make models` downloads it."


def _time_rows(scale: Scale) -> Iterator[Row]:
    def row(what: str, target: float | None, way: Way, setting: Setting) -> Row:
        return Row(f"{what}, T={setting.length:,}: time", target, partial(time_ratio, way, setting, scale.repeats))

    yield row("plain forward against itself (noise)", None, plain, scale.main)
    yield row("first position and norms", 1.05, first_position, scale.main)
    yield row("all positions and norms", 1.30, all_positions, scale.main)
    yield row("nnsight, first position and norms", 1.15, first_position_nnsight, scale.peers)
    for what, way in PEERS.items():
        yield row(what, None, way, scale.peers)


def real_rows(scale: Scale) -> Iterator[Row]:
    """What a user of the command line waits for, on real weights; none where they were not downloaded."""
    if not (scale.real and HAS_REAL):
        return

    def row(what: str, target: float | None, way: Way, setting: RealSetting) -> Row:
        what = f"SmolLM2, {what}, n={setting.sequences}, T={setting.length:,}: time"
        return Row(what, target, partial(time_ratio, way, setting, scale.repeats))

    for setting in scale.real:
        yield row("plain forward against itself (noise)", None, plain, setting)
        yield row("sinkinterp measure", 1.6, default_measure, setting)
        yield row("sinkinterp measure --first-only", 1.1, first_position, setting)
    load = partial(load_ratio, REAL, scale.repeats)
    yield Row("SmolLM2, si.load: time over from_pretrained", 1.2, load)


def _memory_rows(scale: Scale) -> Iterator[Row]:
    def row(what: str, target: float | None, way: Way, setting: Setting) -> Row:
        return Row(f"{what}, T={setting.length:,}: peak memory", target, partial(memory_ratio, way, setting))

    yield Row(f"plain forward, T={scale.main.length:,}: peak memory", None, partial(peak_mb, plain, scale.main), "MB")
    yield row("first position and norms", 1.10, first_position, scale.main)
    yield row("all positions and norms", 1.10, all_positions, scale.main)
    yield row("nnsight, first position and norms", None, first_position_nnsight, scale.peers)
    for what, way in PEERS.items():
        yield row(what, None, way, scale.peers)


def _long_rows(shortest: Setting) -> Iterator[Row]:
    """Memory at three lengths and its growth; linear is at most 2 per doubling, and 0.1 for what the system rounds."""
    settings = [replace(shortest, length=shortest.length * factor) for factor in (1, 2, 4)]
    name = f"all positions, {shortest.layers} layers, vocabulary {shortest.vocab:,}, T="
    for setting in settings:
        yield Row(f"{name}{setting.length:,}: peak memory", None, partial(peak_mb, all_positions, setting), "MB")
    for half, whole in pairwise(settings):
        yield Row(f"{name}{whole.length:,}: memory over that at half of T", 2.1, partial(_growth, half, whole))


def _growth(half: Setting, whole: Setting) -> float:
    return peak_mb(all_positions, whole) / peak_mb(all_positions, half)


def _start_rows(scale: Scale) -> Iterator[Row]:
    def row(what: str, target: float, code: str, *words: str, beyond: str | None = None) -> Row:
        return Row(what, target, partial(seconds_of, code, *words, repeats=scale.starts, beyond=beyond), "s")

    # torch named first: the package alone waits with it, and would come out below zero
    yield row("import sinkinterp, beyond import torch", 0.3, "import torch, sinkinterp", beyond="import torch")
    yield row("sinkinterp --help", 0.7, "from sinkinterp.cli.main import app; app()", "--help")
