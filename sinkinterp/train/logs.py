"""Optional logs of a run in wandb or tensorboard, which are imported only when they are asked for."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InputError
from ..files import check_writable, remove
from ..guesses import choice
from ..spec import Spec

Write = Callable[[int, Mapping[str, Any]], None]  # takes a step and its numbers


def open_log(name: str | None, folder: Path, recipe: Spec) -> AbstractContextManager[Write]:
    """Yields a function that writes the numbers of a step to "wandb" or "tensorboard", or nowhere if `name` is None.

    Raises InputError for another name, if the library is not installed, and if `folder` cannot be written to.
    """
    if name is None:
        return nullcontext(lambda step, numbers: None)
    log = choice(name, _LOGS, "log")
    check_writable(folder / name)
    return log(folder, recipe)


@contextmanager
def _wandb(folder: Path, recipe: Spec) -> Iterator[Write]:
    wandb = _library("wandb", "wandb")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"project": "sinkinterp", "dir": str(folder), "id": recipe.key(), "resume": "allow"}
    try:
        started = wandb.init(**settings, config=recipe.to_dict())
    except Exception as error:  # no key, no network, another version of its server
        if is_new:
            remove(folder)
        reason = " ".join(str(error).split())
        fix = "`wandb login`, or WANDB_MODE=offline, or leave log=... out"
        raise InputError(f"wandb does not start: {reason}; {fix}") from error
    with started as run:
        yield lambda step, numbers: run.log(dict(numbers), step=step)


@contextmanager
def _tensorboard(folder: Path, recipe: Spec) -> Iterator[Write]:
    _library("tensorboard", "tensorboard")
    with _library("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard")) as writer:
        writer.add_text("recipe", json.dumps(recipe.to_dict()))

        def write(step: int, numbers: Mapping[str, Any]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, step)

        yield write


def _library(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{extra} is not installed; pip install {extra}, or leave log=... out") from error


_LOGS: dict[str, Callable[[Path, Spec], AbstractContextManager[Write]]] = {"wandb": _wandb, "tensorboard": _tensorboard}
