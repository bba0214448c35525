"""Optional logs of a run in wandb or tensorboard, which are imported only when they are asked for."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import extra, refusal
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
    wandb = extra("wandb", "pip install wandb, or leave log=... out")
    settings = {"project": "sinkinterp", "dir": str(folder), "id": recipe.key(), "resume": "allow"}
    fix = "`wandb login`, or WANDB_MODE=offline, or leave log=... out"
    with ExitStack() as undo, refusal("wandb does not start", fix):  # no key, no network, another version of its server
        if not folder.exists():
            undo.callback(remove, folder)
        folder.mkdir(parents=True, exist_ok=True)
        started = wandb.init(**settings, config=recipe.to_dict())
        undo.pop_all()
    with started as run:
        yield lambda step, numbers: run.log(dict(numbers), step=step)


@contextmanager
def _tensorboard(folder: Path, recipe: Spec) -> Iterator[Write]:
    extra("tensorboard", "pip install tensorboard, or leave log=... out")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        writer.add_text("recipe", json.dumps(recipe.to_dict()))

        def write(step: int, numbers: Mapping[str, Any]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, step)

        yield write


_LOGS: dict[str, Callable[[Path, Spec], AbstractContextManager[Write]]] = {"wandb": _wandb, "tensorboard": _tensorboard}
