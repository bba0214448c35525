"""The command that lists what has a name."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..backends.files.named_models import MADE, models, shipped
from ..table import Cell, Table
from . import options
from .terminal import print_table, print_text

Row = dict[str, Cell]


# what can be listed
Listed = StrEnum("Listed", ["VARIANTS", "RECIPES", "EXPERIMENTS", "EDITS", "CHECKPOINTS", "MODELS"])


def listing(what: Annotated[Listed | None, typer.Argument(show_default="all")] = None) -> None:
    """List the models, variants, recipes, experiments or checkpoints that have a name."""
    for each in (Listed.MODELS, Listed.VARIANTS, Listed.RECIPES, Listed.EXPERIMENTS) if what is None else (what,):
        _print(each)


def info(model: options.Model, loading: options.Loading = options.Loading()) -> None:
    """Print the sizes of a model: its layers, heads, dimensions and parameters."""
    subject = loading.subject(model)
    sizes = vars(subject.shape) | {"parameters": sum(weight.numel() for weight in subject.model.parameters())}
    rows = [{"size": name, "value": len(x) if isinstance(x, tuple) else x} for name, x in sizes.items()]
    print_table(Table.of(subject.name, "attention_layers, mlp_layers: how many blocks have them", tuple(rows)))


def _print(what: Listed) -> None:
    note, rows = _LISTS[what]
    table = Table.of(what.value, note, tuple(rows()))
    if len(table.frame):
        print_table(table)
    else:
        print_text(f"there are no {what} here; {note}")


def _variants() -> list[Row]:
    from ..lm.variants import BASE, VARIANTS

    changes = {name: " ".join(_changes(BASE.to_dict(), spec.to_dict())) for name, spec in VARIANTS.items()}
    return [{"variant": name, "change": change or "none: it is the base"} for name, change in changes.items()]


def _changes(base: Any, plain: Any, path: str = "") -> Iterator[str]:
    """The settings, as `--set` takes them, that make a spec of its base; both in their JSON form."""
    from ..spec import Spec, defaults

    if not isinstance(plain, dict):
        if plain != base:
            yield f"{path}={plain}"
        return
    if not isinstance(base, dict) or plain["kind"] != base["kind"]:
        yield f"{path}={plain['kind']}"
        base = defaults(Spec.kinds[plain["kind"]])
    for name, value in plain.items():
        yield from _changes(base.get(name), value, f"{path}.{name}".lstrip("."))


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


def _edits() -> list[Row]:
    from .. import interventions

    public = {name: getattr(interventions, name) for name in interventions.__all__}
    edits = {
        name: kind for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, interventions.Edit)
    }
    return [{"edit": name, "what it does": str(kind.__doc__).split("\n")[0]} for name, kind in edits.items()]


def _rows(what: str, folders: Callable[[], Mapping[str, Path]]) -> list[Row]:
    return [{what: name, "folder": str(folder)} for name, folder in folders().items()]


_OF_CHECKPOINTS = "sinkinterp measure CHECKPOINT; they ship with sinkinterp"
_OF_MODELS = "sinkinterp measure MODEL, or its folder, also in transformers; `make models` makes "
_LISTS: dict[Listed, tuple[str, Callable[[], list[Row]]]] = {
    Listed.VARIANTS: ("sinkinterp train VARIANT; `change` is against softmax, at the demo's sizes", _variants),
    Listed.RECIPES: ("sinkinterp train VARIANT --recipe RECIPE --set steps=100", _recipes),
    Listed.EXPERIMENTS: ("sinkinterp reproduce EXPERIMENT; the beginning of a name is enough: table07", _experiments),
    Listed.EDITS: ("sinkinterp measure MODEL --edit EDIT; compare, view and generate take it, too", _edits),
    Listed.CHECKPOINTS: (_OF_CHECKPOINTS, partial(_rows, "checkpoint", shipped)),
    Listed.MODELS: (_OF_MODELS + ", ".join(MADE), partial(_rows, "model", models)),
}
