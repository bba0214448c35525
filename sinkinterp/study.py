"""Runs: train or load once, cached under the recipe's key, and read while they train."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .adapters.huggingface import HuggingFaceSubject
from .adapters.loading import load
from .adapters.subject import Subject
from .data.backcopy import BigramBackcopy
from .data.probes import Probe
from .errors import InputError
from .lm.model import SinkForCausalLM
from .measurement import measure
from .metrics.intervals import Estimate, estimate
from .metrics.language import next_token_loss
from .train import checkpoint, loop
from .train.recipe import Recipe

WATCHED = 256  # held-out sequences that the curves over training are read from


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


def default_cache() -> Path:
    """Where runs and texts are kept: $SINKINTERP_CACHE, else `sinkinterp` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SINKINTERP_CACHE") or Path(home) / "sinkinterp")


def trained(recipe: Recipe, cache: Path | None = None, on_step: loop.OnStep = lambda step, latest: None) -> Run:
    """The run of `recipe`: found in `cache` (default `default_cache()`), finished there, or trained."""
    runs = (cache or default_cache()) / "runs"
    held_out = held_out_probe(recipe.data, WATCHED)

    def watch(model: SinkForCausalLM) -> dict[str, float]:
        subject = HuggingFaceSubject(model)
        report = measure(subject, held_out, positions=(0,))
        slot = report.slot_rate()
        return {
            "valid_loss": valid_loss(subject, held_out).mean,
            "alpha_1": report.alpha().mean().item(),
            "sink_1": report.sink_rate(),
            "sink_slot": slot.mean if slot else 0.0,
        }

    return Run(recipe, loop.train(recipe, runs / recipe.key(), watch, on_step))


def held_out_probe(task: BigramBackcopy, sequences: int) -> Probe:
    """Sequences of the task that no training run has seen."""
    return Probe.of(task.sample(sequences, "held out"), "held-out Bigram-Backcopy")


def valid_loss(subject: Subject, probe: Probe) -> Estimate:
    """Next-token loss in nats, with its interval over sequences."""
    return estimate(next_token_loss(subject.run(probe.tokens).logits, probe.tokens).mean(1))


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a checkpoint of ours was trained by. Raises InputError where the folder holds none."""
    file = folder / "recipe.json"
    if not file.is_file():
        raise InputError(
            f"{folder} holds no tokenizer and no recipe.json; give its input as token ids, --tokens FILE.json"
        )
    return Recipe.from_dict(json.loads(file.read_text()))
