"""Runs: train or load once, cached under the recipe's key, and read while they train."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .adapters.huggingface import HuggingFaceSubject
from .adapters.loading import load, load_tokenizer
from .adapters.subject import Subject
from .data.backcopy import BigramBackcopy
from .data.bos import Bos
from .data.corpora import embedded_texts, texts_of
from .data.probes import Probe, from_rows, from_texts
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


def probe_for(
    model: str,
    text: Path | None,
    tokens: Path | None,
    length: int,
    sequences: int,
    bos: Bos = Bos.TOKENIZER,
    on_file: Callable[[int, int], None] = lambda done, of: None,
) -> Probe:
    """What to measure a model on: its token ids or texts from a file, else the task it was trained on, else our texts.

    Raises InputError for files that cannot be read so, and for too few texts of that length.
    """
    if tokens is not None:
        return from_rows(_rows_of(tokens), length, sequences, tokens.name)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        return _task_probe(Path(model), text, length, sequences)
    texts = embedded_texts(default_cache(), on_file) if text is None else texts_of(text)
    return from_texts(texts, tokenizer, length, sequences, bos, "embedded docstrings" if text is None else text.name)


def _task_probe(folder: Path, text: Path | None, length: int, sequences: int) -> Probe:
    task = recipe_of(folder).data
    if text is not None or length > task.length:
        raise InputError(
            f"{folder} was trained on {task.length} symbols of a task, not on text; use --length {task.length}"
        )
    probe = held_out_probe(task, sequences)
    return from_rows(probe.tokens.tolist(), length, sequences, probe.source)


def _rows_of(file: Path) -> list[list[int]]:
    try:
        rows = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}; it should hold a JSON list of lists of token ids") from error
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(type(token) is int for token in row) for row in rows
    ):
        raise InputError(f"{file} should hold a JSON list of lists of token ids, such as [[1, 5, 7], [1, 9, 2]]")
    return rows
