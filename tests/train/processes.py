"""Runs in stages, each trained by so many processes, which are forked: libraries are imported once."""

import os
import signal
import socket
from functools import partial
from pathlib import Path

import torch._dynamo  # noqa: F401  what optimisers import when they first run
from forks import ended, forked

from sinkinterp.train import loop
from sinkinterp.train.distributed import joined
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

TOKENS = Recipe().data.sample(3, "token_set")


def evaluate(model):
    return {"loss": model(TOKENS, labels=TOKENS).loss.item()}


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def trained(recipe: Recipe, run: Path, stop_at: int) -> int:
    """Trains as one of the processes that the environment describes; the exit code."""

    def stop(step, metrics):
        if step == stop_at and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGINT)

    with joined() as world:
        try:
            loop.train(job_of(recipe, recipe.data, evaluate, world), run, stop)
        except KeyboardInterrupt:
            return 130
    return 0


def codes_of(recipe: Recipe, run: Path, size: int, stop_at: int) -> list[int]:
    """The exit codes of processes that train a run; the last is interrupted in the step after `stop_at`: 130 then."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}

    def work(rank: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with it ignored
        os.environ.update(place | {"RANK": str(rank)})
        os._exit(trained(recipe, run, stop_at))

    return [*map(ended, [forked(partial(work, rank)) for rank in range(size)])]
