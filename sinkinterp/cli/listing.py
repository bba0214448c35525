"""The command that lists what has a name."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..backends.files.named_models import MADE, models, shipped
from ..table import Cell, Table
from .terminal import print_table, print_text

Row = dict[str, Cell]


class Listed(StrEnum):
    """What can be listed."""

    VARIANTS = "variants"
    RECIPES = "recipes"
    EXPERIMENTS = "experiments"
    CHECKPOINTS = "checkpoints"
    MODELS = "models"


def listing(what: Annotated[Listed | None, typer.Argument(show_default="all")] = None) -> None:
    """List the models, variants, recipes, experiments or checkpoints that have a name."""
    for each in (Listed.MODELS, Listed.VARIANTS, Listed.RECIPES, Listed.EXPERIMENTS) if what is None else (what,):
        _print(each)


def _print(what: Listed) -> None:
    note, rows = _LISTS[what]
    table = Table(what.value, note, tuple(rows()))
    if table.rows:
        print_table(table)
    else:
        print_text(f"there are no {what} here; {note}")


def _variants() -> list[Row]:
    from ..lm.variants import BASE, VARIANTS

    base = _settings(BASE.to_dict())
    return [{"variant": name, "change": _change(base, spec.to_dict())} for name, spec in VARIANTS.items()]


def _settings(plain: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The settings of a spec's JSON form that are not the defaults of their kinds, by their dotted names."""
    from ..spec import Spec

    defaults = {field.name: field.default for field in fields(Spec.kinds[plain["kind"]])}
    settings: dict[str, Any] = {}
    for name, value in plain.items():
        default = defaults.get(name)
        default = default.to_dict() if isinstance(default, Spec) else default
        if name == "kind" or value == default:
            continue
        if not isinstance(value, dict):
            settings[path + name] = value
            continue
        if not isinstance(default, dict) or value["kind"] != default["kind"]:
            settings[path + name] = value["kind"]
        settings |= _settings(value, f"{path}{name}.")
    return settings


def _change(base: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """The settings that make the variant of the base, as `--set` takes them."""
    settings = _settings(plain)
    changed = {name: value for name, value in settings.items() if base.get(name) != value}
    changed |= {name: plain[name]["kind"] for name in base.keys() - settings.keys() if name in plain}
    return " ".join(f"{name}={value}" for name, value in changed.items()) or "none: it is the base"


def _recipes() -> list[Row]:
    from ..train.recipe import RECIPES

    sizes = {"layers": "n_layers", "d_model": "d_model", "heads": "n_heads", "context": "n_ctx"}
    return [
        {"recipe": name, "data": type(recipe.data).__name__}
        | {column: getattr(recipe.model, size) for column, size in sizes.items()}
        | {"steps": recipe.steps, "batch": recipe.batch}
        for name, recipe in RECIPES.items()
    ]


def _experiments() -> list[Row]:
    from ..runs.catalogue import experiment_names, summary_of

    return [{"experiment": name, "what it reproduces": summary_of(name)} for name in experiment_names()]


def _folders(what: str, folders: Mapping[str, Path]) -> list[Row]:
    return [{what: name, "folder": str(folder)} for name, folder in folders.items()]


_LISTS: dict[Listed, tuple[str, Callable[[], list[Row]]]] = {
    Listed.VARIANTS: ("sinkinterp train VARIANT; `change` is against softmax, at the demo's sizes", _variants),
    Listed.RECIPES: ("sinkinterp train VARIANT --recipe RECIPE --set steps=100", _recipes),
    Listed.EXPERIMENTS: ("sinkinterp reproduce EXPERIMENT; the beginning of a name is enough: table07", _experiments),
    Listed.CHECKPOINTS: (
        "sinkinterp measure CHECKPOINT; they ship with sinkinterp",
        lambda: _folders("checkpoint", shipped()),
    ),
    Listed.MODELS: (
        "sinkinterp measure MODEL, or its folder, also in transformers; `make models` makes " + ", ".join(MADE),
        lambda: _folders("model", models()),
    ),
}
