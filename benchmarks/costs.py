"""What a way costs: processor time, memory in a process of its own, seconds until a command answers."""

import ctypes
import gc
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import sinkinterp as si
from sinkinterp.backends.named_models import located

from .ways import Case, Setting, Way, plain

Call = Callable[[], object]
MB = 1e6
PATIENCE = 1800.0  # seconds that one run may take
_M_MMAP_THRESHOLD = -3  # malloc.h
_WARM_UP = 16  # tokens of the pass that makes libraries load what they load late
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
CAN_READ_PEAKS = _CLEAR.exists()


def time_ratio(way: Way, case: Case, repeats: int, base_way: Way = plain) -> float:
    """Time of a way over that of another, by default the plain forward pass, on the same weights.

    It is the median over alternated pairs.

    Processor time on the CPU, seconds until the device is idle elsewhere. The other way runs on a model of its own,
    since libraries leave theirs changed.
    """
    tokens = case.tokens()
    base, run = (each(case.model()) for each in (base_way, way))
    clock = _processor_seconds if case.device == "cpu" else _seconds_to_idle
    return _ratio(lambda: run(tokens), lambda: base(tokens), clock, repeats)


def load_ratio(name: str, repeats: int) -> float:
    """Processor time of `si.load` over that of transformers' `from_pretrained`: the median over alternated pairs."""
    folder = str(located(name))
    ours, theirs = partial(si.load, folder), partial(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)
    return _ratio(ours, theirs, _processor_seconds, repeats)


def _ratio(call: Call, base: Call, clock: Callable[[Call], float], repeats: int) -> float:
    """Time of `call` over that of `base`: each once without a clock, then the median over alternated pairs."""
    base()
    call()
    pairs = [(clock(base), clock(call)) for _ in range(repeats)]
    return statistics.median(seconds / base_seconds for base_seconds, seconds in pairs)


def _processor_seconds(call: Call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _seconds_to_idle(call: Call) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@cache
def peak_mb(way: Way, setting: Setting) -> float:
    """Megabytes above the loaded model at the highest point of one run, in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_peak, args=(sender, way, setting))
    process.start()
    sender.close()
    try:
        if not receiver.poll(PATIENCE):
            raise RuntimeError(f"{way.__name__} gave no answer in {PATIENCE:.0f} s")
        return receiver.recv()
    finally:
        process.terminate()
        process.join()


def _send_peak(sender: Connection, way: Way, setting: Setting) -> None:
    sender.send(peak_mb_here(way, setting))


def peak_mb_here(way: Way, setting: Setting) -> float:
    """The same in this process, where a GPU counts its own memory."""
    torch.set_num_threads(1)
    _give_back_what_is_freed()
    tokens = setting.tokens()
    run = way(setting.model())
    run(tokens[:, :_WARM_UP])
    gc.collect()
    if setting.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        loaded = torch.cuda.memory_allocated()
        run(tokens)
        return (torch.cuda.max_memory_allocated() - loaded) / MB
    _CLEAR.write_text("5")  # VmHWM, the high-water mark, falls to the present level
    loaded = _status("VmRSS")
    run(tokens)
    return (_status("VmHWM") - loaded) / MB


def _give_back_what_is_freed() -> None:
    """glibc's allocator told to return blocks from 64 kB up at once; else what it keeps differs by 100 MB a process."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 16)


def _status(field: str) -> int:
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def memory_ratio(way: Way, setting: Setting) -> float:
    """Memory of a way over that of the plain forward pass, each above the loaded model."""
    return peak_mb(way, setting) / peak_mb(plain, setting)


def seconds_of(code: str, *words: str, repeats: int, beyond: str | None = None) -> float:
    """Seconds that a fresh Python takes for `code`, beyond what it takes for other code: the median of alternations."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
        return time.perf_counter() - start

    seconds(code)  # the first time, files come from the disk
    return statistics.median(seconds(code) - (seconds(beyond) if beyond else 0) for _ in range(repeats))
