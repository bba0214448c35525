"""Runs in stages, each trained by so many processes. A line of standard input is [RECIPE, RUN, STAGES] as JSON.

A stage is [processes, step]; the last process is interrupted in the step after `step`. Prints a line of JSON
for each run: the exit codes of every stage, 130 where processes were interrupted. They are forked, so that libraries
are imported once.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch._dynamo  # noqa: F401  what optimisers import when they first run

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


def forked(place: dict[str, str], task: Callable[[], int]) -> int:
    """The id of a new process that does the task in this place."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(place)
        code = task()
    finally:
        os._exit(code)


def codes_of(recipe: Recipe, run: Path, size: int, stop_at: int) -> list[int]:
    """The exit codes of a stage's processes."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}
    task = partial(trained, recipe, run, stop_at)
    children = [forked(place | {"RANK": str(rank)}, task) for rank in range(size)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with it ignored
    for line in sys.stdin:
        recipe, run, stages = json.loads(line)
        codes = [codes_of(Recipe.from_dict(recipe), Path(run), *stage) for stage in stages]
        print(f"codes {json.dumps(codes)}", flush=True)


if __name__ == "__main__":
    main()
