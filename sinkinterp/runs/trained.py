"""Runs: train or load once, cached under the recipe's key, and read while they train."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..backends.huggingface import HuggingFaceSubject
from ..backends.load import load
from ..backends.subject import Subject
from ..data.packing import PreparedText
from ..data.tokens import TokenSet
from ..errors import InputError
from ..files import cache_folder
from ..lm.model import SinkForCausalLM
from ..measurement.batching import sequences_per_pass
from ..measurement.measure import measure
from ..metrics.bootstrap import Estimate, estimate
from ..metrics.loss import next_token_loss
from ..train import checkpoint, loop
from ..train.distributed import World
from ..train.objectives import NextToken, Objective
from ..train.recipe import Recipe, Task, prepared

WATCHED, WATCHED_TOKENS, LEAST_WATCHED = 256, 65_536, 8  # held-out data that the curves over training are read from
SINK_LENGTH = 64  # positions of them that sinks are read in, as in Gu et al. (2025)


@dataclass(frozen=True)
class Run:
    """A finished training run: its recipe and the folder of its final checkpoint."""

    recipe: Recipe
    folder: Path

    def subject(self, name: str | None = None) -> Subject:
        """The trained model, ready to be measured; named by its recipe's key where no name is given."""
        return load(self.folder, name=name or self.recipe.key())

    def history(self) -> list[dict[str, Any]]:
        """Losses and sink metrics along the way, a row per reading."""
        return checkpoint.history_of(self.folder)


def trained(
    recipe: Recipe,
    cache: Path | None = None,
    on_step: loop.OnStep = lambda step, latest: None,
    folder: Path | None = None,
    world: World = World(),
    on_data: Callable[[int, int], None] = lambda done, of: None,
) -> Run:
    """The run of `recipe`: found in `cache` (default `cache_folder()`), finished there, or trained.

    It lies in `folder` where one is given, else in the cache under the recipe's key. `on_data` is told how the data
    come along. Raises InputError as `loop.train` does.
    """
    home = cache or cache_folder()
    task = prepared(recipe.data, home, on_data)
    run = folder or home / "runs" / recipe.key()
    if isinstance(task, PreparedText):  # its recipe names the text that it found
        recipe = replace(recipe, data=task.recipe)
    last = loop.train(recipe, run, watch_on(task, recipe.objective), on_step, task, world)
    tokenizer = getattr(task, "tokenizer", None)
    if tokenizer is not None and world.is_first:  # so that the model reads text wherever it is taken
        tokenizer().save_pretrained(last)
    return Run(recipe, last)


def watch_on(task: Task, objective: Objective = NextToken()) -> loop.Watch:
    """What is read along the way: loss on held-out sequences, and the sinks in the first 64 positions of them."""
    held_out = held_out_tokens(task, _watched(task))
    beginnings = held_out.tokens[:, :SINK_LENGTH]

    def watch(model: SinkForCausalLM) -> dict[str, float]:
        subject = HuggingFaceSubject(model)
        report = measure(subject, beginnings, positions=(0,))
        slot = report.slot_rate()
        return {
            "valid_loss": valid_loss(subject, held_out, objective).mean,
            "alpha_1": report.alpha().mean().item(),
            "sink_1": report.sink_rate(),
            "sink_slot": slot.mean if slot else 0.0,
        }

    return watch


def _watched(task: Task) -> int:
    """How many held-out sequences to watch: of a corpus, no more than it holds out."""
    n = max(LEAST_WATCHED, min(WATCHED, WATCHED_TOKENS // task.length))
    split = getattr(task, "split", None)
    return n if split is None else min(n, len(split.held_out))


def held_out_tokens(task: Task, sequences: int) -> TokenSet:
    """Sequences of the task that no training run has seen."""
    title = getattr(task, "title", type(task).__name__)
    return TokenSet.of(task.sample(sequences, "held out"), f"held-out {title}")


def valid_loss(subject: Subject, token_set: TokenSet, objective: Objective = NextToken()) -> Estimate:
    """Loss in nats of the tokens that the objective predicts, with its interval over sequences."""
    batches = token_set.tokens.split(sequences_per_pass(subject, token_set.tokens.shape[1]))
    losses = torch.cat([_losses(subject, batch) for batch in batches])
    return estimate(losses[:, max(objective.first, 1) - 1 :].mean(1))


def _losses(subject: Subject, tokens: Tensor) -> Tensor:
    logits = subject.run(tokens).logits
    return next_token_loss(logits, tokens.to(logits.device)).cpu()


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a checkpoint of ours was trained by. Raises InputError where the folder holds none."""
    file = folder / "recipe.json"
    if not file.is_file():
        raise InputError(
            f"{folder} holds no tokenizer and no recipe.json; give its input as token ids, --tokens FILE.json"
        )
    return Recipe.from_dict(json.loads(file.read_text()))
