"""Fine-tuning any causal language model of transformers on chats, by the training loop of our own models."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..backends.files.model_files import checked_config, load_model, load_tokenizer
from ..backends.files.named_models import folder_of, located
from ..backends.huggingface import HuggingFaceSubject, context_of
from ..errors import InputError
from ..files import cache_folder, check_writable, sole_writer
from ..measurement.measure import measure
from ..seals import Damaged, read_record, settle, stated, sums, write_record
from ..spec import Limits
from ..train import checkpoint, loop
from ..train.chats import Chats, padded, read_chats, tokenised
from ..train.distributed import Batch, World
from ..train.loop import Job
from ..train.recipe import CosineRate, Decay, Everything, Fit, Rate, Recipe

HELD_OUT = 32  # chats that are not trained on, at most
SINK_LENGTH = 64  # tokens of a held-out chat in which sinks are measured, at most


@dataclass(frozen=True)
class ChatRecipe(Fit):
    """A model, the chats that it is fine-tuned on, and the length in tokens at which chats are cut.

    The loss is on the assistants' tokens wherever the chat template tells them apart. Rate and schedule are those of
    full fine-tuning as commonly done at 7B parameters (2e-5, cosine to zero). `sha256` is filled in from the chats.
    """

    limits: ClassVar[Limits] = {"length": 2}

    model: str = ""
    data: str = ""
    length: int = 2048
    sha256: str = ""
    steps: int = 200
    batch: int = 16
    micro_batch: int = 4
    lr: float = 2e-5
    schedule: Rate = CosineRate(floor=0.0)
    warmup: int = 20
    weight_decay: float = 0.0
    decay: Decay = Everything()
    watch_every: int = 10
    save_every: int = 50


Trainable = Recipe | ChatRecipe


def finetuned(
    recipe: ChatRecipe,
    run: Path,
    on_step: loop.OnStep = lambda step, latest: None,
    world: World = World(),
    on_message: Callable[[str], None] = lambda message: None,
) -> Path:
    """The folder of the fine-tuned model and its tokenizer: `run`/model.

    Training continues from the newest whole checkpoint in `run`. A damaged run/model is written again. The history of
    the last checkpoint holds losses, gradient norms and Sink_1. `on_message` receives one line that says which tokens
    the loss is on. Raises InputError as `loop.train` does, and for models without a tokenizer.
    """
    recipe.check_batch(recipe.length)
    tokenizer = tokenizer_of(recipe)
    if world.is_first:
        check_writable(run / "lock")
        checkpoint.check_made(run / "model")
    job = job_on_chats(recipe, tokenizer, world, on_message)
    last = loop.train(job, run, on_step)
    if world.is_first:
        with sole_writer(run):
            settle(run / "model", stated(last), lambda draft: _save_model(draft, recipe.model, last, tokenizer))
    return run / "model"


def job_on_chats(
    recipe: ChatRecipe,
    tokenizer: PreTrainedTokenizerBase,
    world: World = World(),
    on_message: Callable[[str], None] = lambda message: None,
) -> Job[ChatRecipe]:
    """The job that fine-tunes the recipe's model; `tokenizer` is given a chat template where it has none.

    The job's recipe holds the hash of the chats.
    """
    messages, sha256 = read_chats(recipe.data)
    training, held_out = _split(tokenised(messages, tokenizer, recipe.length))
    on_message(f"{len(training.rows)} chats, loss on {training.rule}; {training.left_out} chats had none")

    longest = max(len(ids) for ids, _ in (*training.rows, *held_out.rows))

    def batch(step: int) -> Batch:
        return training.batch(recipe.batch, recipe.seed, step)

    return Job(
        replace(recipe, sha256=sha256),
        lambda: _model(recipe.model, longest),
        batch,
        _watch_on(held_out),
        world,
        base=_base_of(recipe.model) if world.is_first else "",
    )


def run_of(recipe: ChatRecipe, cache: Path | None = None) -> Path:
    """The folder in the cache of a recipe's run on the chats as they are now."""
    recipe = replace(recipe, sha256=read_chats(recipe.data)[1])
    return (cache or cache_folder()) / "runs" / recipe.key()


def history_of(recipe: ChatRecipe, cache: Path | None = None) -> list[dict[str, Any]]:
    """The evaluations of a recipe's run, a row each; the run is made where it is not in the cache."""
    run = run_of(recipe, cache)
    file, of = run / "evaluations.json", {"run": run.name, "base": _base_of(recipe.model)}
    if file.is_file():
        try:
            return read_record(file, of)
        except Damaged as damage:
            damage.warn("the run is read again")
    finetuned(recipe, run)
    history = checkpoint.history_of(checkpoint.folder_of(run, checkpoint.latest(run)))
    write_record(file, history, of)
    return history


def tokenizer_of(recipe: ChatRecipe) -> PreTrainedTokenizerBase:
    """The tokenizer of the recipe's model. Raises InputError where it has none."""
    tokenizer = load_tokenizer(recipe.model)
    if tokenizer is None:
        raise InputError(f"{recipe.model} holds no tokenizer; save the one that it was trained with beside it")
    return tokenizer


def _model(name: str, longest: int = 0) -> PreTrainedModel:
    """The model to be trained. Raises InputError for one with an encoder, and for chats longer than its context."""
    model = load_model(name)
    if model.config.is_encoder_decoder:
        raise InputError(f"{name} is an encoder-decoder model, which is not trained here; give a causal one")
    n_ctx = context_of(model.config)
    if n_ctx is not None and longest > n_ctx:
        raise InputError(f"a chat has {longest} tokens, more than {name}'s context of {n_ctx}; set length={n_ctx}")
    return model


def _split(chats: Chats) -> tuple[Chats, Chats]:
    """The chats to train on, and of the last tenth, 32 at most, those that are not among them: these are held out."""
    first = len(chats.rows) - min(HELD_OUT, len(chats.rows) // 10)
    trained_on = {tuple(ids) for ids, _ in chats.rows[:first]}
    held_out = [row for row in chats.rows[first:] if tuple(row[0]) not in trained_on]
    return replace(chats, rows=chats.rows[:first]), replace(chats, rows=held_out)


def _watch_on(held_out: Chats) -> Callable[[PreTrainedModel], dict[str, float]]:
    """Returns what is measured during the training: the loss on held-out chats, and the sinks in their first tokens."""
    length = min([SINK_LENGTH, *(len(ids) for ids, _ in held_out.rows)])
    beginnings = [ids[:length] for ids, _ in held_out.rows]

    def watch(model: PreTrainedModel) -> dict[str, float]:
        if length < 2 or not beginnings:
            return {}
        loss = _loss(model, held_out)
        try:
            subject = HuggingFaceSubject(model)
        except InputError:  # a model outside the attention interface can be trained, though not measured
            return {"valid_loss": loss}
        report = measure(subject, torch.tensor(beginnings), positions=(0,))
        return {"valid_loss": loss, "alpha_1": report.alpha().mean().item(), "sink_1": report.sink_rate()}

    return watch


@torch.no_grad()
def _loss(model: PreTrainedModel, chats: Chats) -> float:
    """The loss in nats on the predicted tokens, averaged over chats."""
    batches = [{name: part.to(model.device) for name, part in padded([row]).items()} for row in chats.rows]
    return sum(model(**batch, use_cache=False).loss.item() for batch in batches) / len(batches)


def _base_of(name: str) -> str:
    """The hash of a model's files, as they are now; of a model on the Hub its commit."""
    folder = folder_of(name)
    if folder is None:
        return str(getattr(checked_config(name), "_commit_hash", None) or "")
    patterns = ("*.safetensors", "*config.json") if Path(located(name)).is_dir() else (Path(name).name,)
    return hashlib.sha256(json.dumps(sums(folder, *patterns)).encode()).hexdigest()


def _save_model(folder: Path, base: str, last: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the model of the last checkpoint and its tokenizer, as transformers reads them."""
    model = _model(base)
    checkpoint.fill(last, model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
