"""Models that are trained once and cached under the key of their recipe, ours and an experiment's; their histories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor
from transformers import PreTrainedModel

from ..backends.huggingface import HuggingFaceSubject
from ..backends.load import load
from ..backends.subject import Subject
from ..checks import accepting
from ..data.packing import PreparedText
from ..data.progress import OnProgress, no_progress
from ..data.tokens import Tokens, TokenSet
from ..files import cache_folder, check_writable, path_of
from ..measurement.measure import measure, passes
from ..measurement.watching import emergence_of, sinks_of
from ..metrics.estimates import SIZES, Estimate, estimate
from ..metrics.importance import control_positions
from ..metrics.metric import next_token_loss
from ..plots.theme import (
    PERCENT,
    add_band,
    add_curve,
    colour,
    escaped,
    model_numbers,
    sweep_figure,
    themed,
    unique_values,
)
from ..table import MODEL, SEED, Table, high_of, low_of, with_all_columns
from ..train import checkpoint, loop
from ..train.checkpoint import card, push
from ..train.distributed import joined
from ..train.loop import Evaluate, Job, Task, held_out_tokens, job_of, prepared
from ..train.recipe import Fit, NextToken, Objective, Recipe, described

EVALUATION_SEQUENCES = 256  # held-out sequences that an evaluation during training reads, at most
EVALUATION_TOKENS = 65_536  # tokens that these sequences have together, at most
LEAST_EVALUATION_SEQUENCES = 8  # but at least so many sequences, however long they are
STEP = "step"
SINK_LENGTH = 64  # positions of each sequence in which sinks are measured, as in Gu et al. (2025)


@dataclass(frozen=True, repr=False)
class Run:
    """A finished training run: its recipe and the folder of its final checkpoint. A model wherever one is taken."""

    recipe: Recipe
    folder: Path

    def __repr__(self) -> str:
        return f"<Run of {self.recipe.key()}: {self.recipe.steps} steps, in {self.folder}>"

    def __fspath__(self) -> str:
        return str(self.folder)

    def subject(self, name: str | None = None, device: str = "cpu") -> Subject:
        """The trained model, ready to be measured on a device. Its default name is the recipe's key."""
        return load(self.folder, name=name or self.recipe.key(), device_map=None if device == "cpu" else device)

    def history(self) -> Table:
        """Losses and sink metrics during training, one row per evaluation."""
        rows = with_all_columns(checkpoint.history_of(self.folder))
        figure = partial(sweep_figure, x=STEP, quantities=("sink_1", "valid_loss"))
        return Table.of(f"Training of {self.recipe.key()}", str(self.folder), rows, figure)

    def push_to_hub(self, repo: str, private: bool = True) -> str:
        """Uploads the final checkpoint with a model card to the Hub, as "me/name", and returns the address.

        `si.load("me/name")` reads it. Raises InputError where the Hub refuses.
        """
        last = checkpoint.history_of(self.folder)[-1]
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in last.items())
        return push(self.folder, repo, card(repo, f"A model of {self.recipe.data}", numbers, self.recipe), private)


def trained(
    recipe: Recipe | str = "softmax",
    cache: Path | str | None = None,
    on_step: loop.OnStep | None = None,
    folder: Path | str | None = None,
    device: str = "cpu",
    on_data: OnProgress | None = None,
    **settings: Any,
) -> Run:
    """The run of a recipe. Trains what is not in its folder yet, from the newest whole checkpoint there.

    The folder is `folder`, or the recipe's key in `cache` (default: `cache_folder()`). The recipe of a run on text
    names the hash of the text. `device` is "cpu", "cuda" or "auto"; processes that `torchrun` started train together.
    In place of a recipe, the name of a variant takes the demo's, and `settings` change it: steps=100, n_layers=2.
    The default variant is "softmax", the plain transformer.
    `on_data` is called while data are prepared, `on_step` as in `loop.train`, or, of a variant that is trained already,
    with the rows of its history. Raises InputError as `loop.train` and `joined` do, and if the data cannot be prepared.
    """
    is_named = bool(settings) or not isinstance(recipe, Recipe)
    recipe = described(recipe, settings)
    on_step = accepting((lambda step, metrics: None) if on_step is None else on_step, "on_step", 1, {})
    on_data = accepting(no_progress if on_data is None else on_data, "on_data", 0, 1)
    cache = path_of(cache_folder() if cache is None else cache, "cache")
    recipe.check_batch(recipe.length)
    folder = path_of(cache / "runs" / recipe.key() if folder is None else folder, "folder")
    with joined(device) as world:
        if world.is_first:
            check_writable(folder / "lock")  # data may take minutes to prepare
        task = prepared(recipe.data, cache, on_data)
        job = job_of(recipe, task, evaluation_on(task, recipe.objective), world)
        steps: list[int] = []

        def on_each(step: int, metrics: Any) -> None:
            steps.append(step)
            on_step(step, metrics)

        run = Run(job.fit, loop.train(job, folder, on_each))
    for row in checkpoint.history_of(run.folder) if is_named and not steps else ():
        on_step(row[STEP], row)
    return run


def evaluation_on(task: Task, objective: Objective = NextToken()) -> Evaluate:
    """A function that evaluates a model during training: its loss on held-out sequences, and sinks in their beginnings.

    The columns are valid_loss (nats), alpha_1, sink_1, sink_slot, and above_p99 and induction (`emergence_of`).
    """
    n = max(LEAST_EVALUATION_SEQUENCES, min(EVALUATION_SEQUENCES, EVALUATION_TOKENS // task.length))
    held_out = held_out_tokens(task, min(n, len(task.split.held_out)) if isinstance(task, PreparedText) else n)
    beginnings = held_out.tokens[:, :SINK_LENGTH]
    subject_of = lru_cache(1)(HuggingFaceSubject)  # a training has one model, whose contract is checked once

    def evaluate(model: PreTrainedModel) -> dict[str, float]:
        subject = subject_of(model)
        report = measure(subject, beginnings, positions=control_positions(beginnings.shape[1]))
        loss = valid_loss(subject, held_out, objective).mean
        return {"valid_loss": loss, **sinks_of(report), **emergence_of(subject, report)}

    return evaluate


def valid_loss(subject: Subject, token_set: TokenSet, objective: Objective = NextToken()) -> Estimate:
    """Loss in nats on the tokens that the objective predicts, with its interval over sequences."""
    losses = torch.cat([_losses(subject, batch) for _, batch in passes(subject, token_set.tokens)])
    return estimate(losses[:, max(objective.first, 1) - 1 :].mean(1)).within(SIZES)


def _losses(subject: Subject, tokens: Tokens) -> Float[Tensor, "sequence target"]:
    logits = subject.run(tokens).logits
    return next_token_loss(logits, tokens.to(logits.device)).cpu()


class OwnTraining(Fit):
    """Base of the trainings that an experiment has of its own: what is trained, and on what."""

    length: int = 0

    def job(self) -> Job[Any]:
        """What trains the model."""
        raise NotImplementedError

    def identified(self) -> "OwnTraining":
        """The recipe with the hash of its data, as these are now."""
        return self


Trainable = Recipe | OwnTraining


def run_of(recipe: Trainable, cache: Path | None = None) -> Path:
    """The folder in the cache of a recipe's run."""
    recipe = recipe.identified() if isinstance(recipe, OwnTraining) else recipe
    return (cache or cache_folder()) / "runs" / recipe.key()


VALID_LOSS = "valid_loss"
SINK_OF_FIRST = "sink_1"
SINK_OF_SLOT = "sink_slot"


@dataclass(frozen=True)
class Panel:
    """A column that is drawn over steps, the title of its panel, and its axis."""

    column: str
    title: str
    axis: Mapping[str, Any] = field(default_factory=dict)


PANELS = (
    Panel(VALID_LOSS, "validation loss (nats)"),
    Panel(SINK_OF_FIRST, "Sink_1 (share of heads)", PERCENT),
    Panel(SINK_OF_SLOT, "Sink_* (slot, share of heads)", PERCENT),
)


def training(table: Table, chosen: Sequence[Panel] = PANELS) -> go.Figure:
    """Validation loss and sink rates, or what is chosen, over optimiser steps, a line per model.

    The table is that of `training_history`. Columns that no run holds have no panel. Of several seeds, the line is the
    mean, in a band from the least to the most.
    """
    known = table.frame.dropna(axis="columns", how="all")
    panels = [panel for panel in chosen if panel.column in known]
    titles = [panel.title for panel in panels]
    figure = make_subplots(1, len(panels), subplot_titles=titles, horizontal_spacing=0.24 / max(3, len(panels)))
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        for j, panel in enumerate(panels):
            place, column = {"row": 1, "col": j + 1}, panel.column
            mean = _over_seeds(rows, column)
            add_band(figure, mean, STEP, column, str(model), place, colour(i))
            named = {"name": escaped(model), "legendgroup": model, "showlegend": j == 0}
            look = {"connectgaps": True, "error_y": None, "mode": "lines" if len(mean.frame) > 40 else "lines+markers"}
            add_curve(figure, mean, STEP, column, i, **named, **look, **place)
    figure.update_xaxes(title="optimiser step")
    for j, panel in enumerate(panels):
        figure.update_yaxes(**panel.axis, row=1, col=j + 1)
    names = ", ".join(panel.title for panel in panels)
    seeds = " Line and band: mean, least and most of the seeds." * (
        SEED in table.frame and table.frame[SEED].nunique() > 1
    )
    caption = f"{names[:1].upper()}{names[1:]} along training, on held-out sequences.{seeds} {table.note}"
    return themed(figure, table.title, caption=caption)


def _over_seeds(rows: Table, column: str) -> Table:
    """The mean of a column at each step and, where several seeds trained, the least and the most as its interval."""
    several = SEED in rows.frame and rows.frame[SEED].nunique() > 1
    names = {"mean": column} | ({"min": low_of(column), "max": high_of(column)} if several else {})
    frame = rows.frame.groupby(STEP, sort=True)[column].agg([*names])
    return Table("", "", frame.rename(columns=names).reset_index())


def training_history(histories: Mapping[str, Iterable[Mapping[str, Any]]], note: str) -> Table:
    """The numbers that were watched along training runs, by name (rows of history.json); others are missing.

    `note` says on what: n, T, BOS, epsilon.
    """
    rows = with_all_columns([{MODEL: name, **row} for name, rows in histories.items() for row in rows])
    return Table.of("Losses and sinks over training", note, rows, training)
