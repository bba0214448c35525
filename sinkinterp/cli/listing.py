"""The command that lists what has a name. It imports no torch."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from ..backends.files.named_models import MADE, models
from ..files import data_of
from ..runs.catalogue import experiment_names, summary_of
from ..spec import flat
from ..table import Table
from . import options
from .terminal import show

Listed = StrEnum("Listed", ["MODELS", "VARIANTS", "RECIPES", "EXPERIMENTS"])


def listing(
    what: Annotated[Listed | None, typer.Argument(help="What is listed; default: all.")] = None,
    format: options.Format = None,
) -> None:
    """List the models, variants, recipes and experiments that have a name.

    Example: sinkinterp list models
    """
    show(list(map(_table, Listed if what is None else [what])), format)


def _table(what: Listed) -> Table:
    note, column, rows = _LISTS[what]
    return Table.of(
        what.value, note, tuple({what.value.removesuffix("s"): key, column: x} for key, x in rows().items())
    )


def _settings() -> dict[str, str]:
    recipes = data_of("train/recipes.toml")
    return {name: " ".join(f"{key}={x}" for key, x in flat(recipe).items()) for name, recipe in recipes.items()}


_MODELS = f"sinkinterp measure MODEL, or its folder, also in transformers; `make models` makes {', '.join(MADE)}"
_LISTS: Mapping[Listed, tuple[str, str, Callable[[], Mapping[str, str]]]] = {
    Listed.MODELS: (_MODELS, "folder", lambda: {name: str(folder) for name, folder in models().items()}),
    Listed.VARIANTS: (
        "sinkinterp train VARIANT; `change` is against softmax, at the demo's sizes",
        "change",
        lambda: data_of("lm/changes.toml"),
    ),
    Listed.RECIPES: ("sinkinterp train VARIANT --recipe RECIPE --set steps=100", "settings", _settings),
    Listed.EXPERIMENTS: (
        "sinkinterp reproduce EXPERIMENT; the beginning of a name is enough: table07",
        "what it reproduces",
        lambda: {name: summary_of(name) for name in experiment_names()},
    ),
}
