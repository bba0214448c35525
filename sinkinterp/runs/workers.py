"""Makes independent runs in processes of this machine, or on a Ray cluster."""

import multiprocessing
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, TypeVar

from .._experiments import load_package
from ..checks import InputError, check_installed, refusal
from ..data.progress import OnProgress, no_progress

LOCAL = "local"  # the address that stands for a cluster of this machine alone
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Here:
    """One argument after the other, in this process."""

    def results(self, function: Callable[[A], B], arguments: Sequence[A]) -> Iterator[tuple[int, B]]:
        yield from ((i, function(argument)) for i, argument in enumerate(arguments))


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, each with one thread. Raises InputError where one is killed."""

    count: int = os.cpu_count() or 1

    def results(self, function: Callable[[A], B], arguments: Sequence[A]) -> Iterator[tuple[int, B]]:
        context = multiprocessing.get_context("spawn")  # forked processes hang where threads of torch were started
        count = min(self.count, max(1, len(arguments)))
        with ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker) as pool:
            with _interrupts_held():
                futures = {pool.submit(function, argument): i for i, argument in enumerate(arguments)}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool as error:
                why = "a worker was killed, perhaps for lack of memory"
                raise InputError(f"{why}; finished runs are kept, and the same command goes on from there") from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: "auto" for the one that this machine belongs to, or its address. Every run gets `gpus` GPUs.

    "local" starts Ray on this machine for as long as Python runs: a run for each GPU, or two at once without any.
    A run whose worker dies is made again. All machines must see the same cache folder. Raises InputError where Ray is
    not installed or not reached, and what a run raises.
    """

    address: str = "auto"
    gpus: int = 0

    def __post_init__(self) -> None:
        check_installed("ray", "pip install ray")

    def results(self, function: Callable[[A], B], arguments: Sequence[A]) -> Iterator[tuple[int, B]]:
        ray = self._connected()
        gpus = self.gpus if self.address != LOCAL or ray.cluster_resources().get("GPU") else 0
        run = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=-1)(_run)
        calls = (ray.cloudpickle.dumps(partial(function, argument)) for argument in arguments)
        waiting: dict[Any, int] = {run.remote(call): i for i, call in enumerate(calls)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            try:
                yield waiting.pop(done), ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error

    def _connected(self) -> Any:
        import ray  # an extra
        import torch

        start, kinds = "start one with `ray start --head`", (OSError, RuntimeError, ValueError)
        with refusal(f"no Ray cluster at {self.address}", start, kinds):
            host, _, port = self.address.rpartition(":")
            if port.isdigit():  # where nothing listens, Ray itself waits for minutes
                socket.create_connection((host, int(port)), timeout=5).close()
            size = {"num_cpus": torch.cuda.device_count() or 2, "include_dashboard": False}
            local = size if self.address == LOCAL else {}
            ray.init(self.address, ignore_reinit_error=True, log_to_driver=False, **local)
        return ray


Workers = Here | Processes | Ray  # each gives the index of every argument and its result, as they are finished


def in_order(
    workers: Workers, function: Callable[[A], B], arguments: Sequence[A], on_result: OnProgress = no_progress
) -> list[B]:
    """The results for all arguments, in the order of the arguments. `on_result` is told how many there are."""
    results: dict[int, B] = {}
    on_result(0, len(arguments))
    for i, result in workers.results(function, arguments):
        results[i] = result
        on_result(len(results), len(arguments))
    return [results[i] for i in range(len(arguments))]


def _run(packed: bytes) -> Any:
    """One call, on a machine of the cluster, which must know the package of experiments before it unpacks one's."""
    _quiet_and_single_threaded()
    load_package()
    return pickle.loads(packed)()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that are started in the block do not receive Ctrl-C before `_start_worker` wants it.

    While a process imports torch, an interrupt would print a traceback, or abort in C++.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Prepares a process of `Processes`, which ends when the process that started it does, however that ends.

    Ctrl-C ends it without a word, or stops a training at the end of its step.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent,), daemon=True).start()
    load_package()  # whose functions may be called
    _quiet_and_single_threaded()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)  # drafts that this leaves are removed by the next writer


def _quiet_and_single_threaded() -> None:
    import torch  # it takes seconds, in which a process must already know whether its parent lives
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(1)
    disable_progress_bar()  # of loading weights: the study has its own
