"""Models of ours, trained once and cached under the key of their recipe."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ..backends.huggingface import HuggingFaceSubject
from ..backends.load import load
from ..backends.subject import Subject
from ..checks import accepting, check_memory, instance_of, whole_number
from ..data.draws import HELD_OUT
from ..data.progress import OnProgress, no_progress
from ..data.tokens import Tokens, TokenSet
from ..errors import InputError, refusal
from ..files import cache_folder, check_writable, path_of
from ..guesses import keywords
from ..measurement.inputs import passes
from ..measurement.measure import measure
from ..measurement.watching import sinks_of
from ..metrics.bootstrap import SIZES, Estimate, estimate
from ..metrics.metric import next_token_loss
from ..seals import verify
from ..train import checkpoint, loop
from ..train.distributed import joined
from ..train.loop import Corpus, Evaluate, Task, job_of, prepared
from ..train.recipe import NextToken, Objective, Recipe

EVALUATION_SEQUENCES = 256  # held-out sequences that an evaluation during training reads, at most
EVALUATION_TOKENS = 65_536  # tokens that these sequences have together, at most
LEAST_EVALUATION_SEQUENCES = 8  # but at least so many sequences, however long they are
SINK_LENGTH = 64  # positions of each sequence in which sinks are measured, as in Gu et al. (2025)


@dataclass(frozen=True)
class Run:
    """A finished training run: its recipe and the folder of its final checkpoint."""

    recipe: Recipe
    folder: Path

    def subject(self, name: str | None = None, device: str = "cpu") -> Subject:
        """The trained model, ready to be measured on a device. Its default name is the recipe's key."""
        return load(self.folder, name=name or self.recipe.key(), device_map=None if device == "cpu" else device)

    def history(self) -> list[dict[str, Any]]:
        """Losses and sink metrics during training, one row per evaluation."""
        return checkpoint.history_of(self.folder)


@keywords
def trained(
    recipe: Recipe,
    cache: Path | str | None = None,
    on_step: loop.OnStep | None = None,
    folder: Path | str | None = None,
    device: str = "cpu",
    on_data: OnProgress | None = None,
) -> Run:
    """The run of a recipe. Trains what is not in its folder yet, from the newest whole checkpoint there.

    The folder is `folder`, or the recipe's key in `cache` (default: `cache_folder()`). The recipe of a run on text
    names the hash of the text. `device` is "cpu", "cuda" or "auto"; processes that `torchrun` started train together.
    `on_data` is called while data are prepared, `on_step` as in `loop.train`. Raises InputError as `loop.train` and
    `joined` do, and if the data cannot be prepared.
    """
    instance_of(recipe, Recipe, 'give a recipe, such as si.Recipe(model=si.VARIANTS["sigmoid"])')
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
        return Run(job.fit, loop.train(job, folder, on_step))


def evaluation_on(task: Task, objective: Objective = NextToken()) -> Evaluate:
    """A function that evaluates a model during training: its loss on held-out sequences, and sinks in their beginnings.

    The columns are valid_loss (nats), alpha_1, sink_1 and sink_slot.
    """
    held_out = held_out_tokens(task, _evaluation_sequences(task))
    beginnings = held_out.tokens[:, :SINK_LENGTH]

    def evaluate(model: PreTrainedModel) -> dict[str, float]:
        subject = HuggingFaceSubject(model)
        report = measure(subject, beginnings, positions=(0,))
        return {"valid_loss": valid_loss(subject, held_out, objective).mean, **sinks_of(report)}

    return evaluate


def _evaluation_sequences(task: Task) -> int:
    """How many held-out sequences to evaluate on; no more than a corpus holds out."""
    n = max(LEAST_EVALUATION_SEQUENCES, min(EVALUATION_SEQUENCES, EVALUATION_TOKENS // task.length))
    return min(n, len(task.split.held_out)) if isinstance(task, Corpus) else n


def held_out_tokens(task: Task, sequences: int) -> TokenSet:
    """Sequences of the task that no training sees."""
    instance_of(task, Task, "a task is that of a recipe, si.Recipe().data")
    sequences = whole_number(sequences, "sequences", 1)
    check_memory(3 * 8 * sequences * task.length, f"{sequences:,} sequences of {task.length:,} tokens", "ask for fewer")
    return TokenSet.of(task.sample(sequences, *HELD_OUT), f"held-out {task.title}")


def valid_loss(subject: Subject, token_set: TokenSet, objective: Objective = NextToken()) -> Estimate:
    """Loss in nats on the tokens that the objective predicts, with its interval over sequences."""
    losses = torch.cat([_losses(subject, batch) for _, batch in passes(subject, token_set.tokens)])
    return estimate(losses[:, max(objective.first, 1) - 1 :].mean(1)).within(SIZES)


def _losses(subject: Subject, tokens: Tokens) -> Float[Tensor, "sequence target"]:
    logits = subject.run(tokens).logits
    return next_token_loss(logits, tokens.to(logits.device)).cpu()


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a checkpoint of ours was trained with. Raises InputError if the folder holds none."""
    verify(folder, "recipe.json")
    file = folder / "recipe.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no tokenizer and no recipe.json; give token ids: tokens=FILE.json")
    fix = "copy the folder again, or train the model again"
    with refusal(f"{file} is not a recipe", fix, (OSError, ValueError, TypeError, AttributeError)):
        return Recipe.from_dict(json.loads(file.read_text()))
