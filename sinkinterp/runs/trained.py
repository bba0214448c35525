"""Models that are trained once and cached under the key of their recipe: ours, and others fine-tuned on chats."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..backends.files.model_files import checked_config, load_model, tokenizer_of
from ..backends.files.named_models import folder_of, located
from ..backends.huggingface import HuggingFaceSubject, context_of
from ..backends.load import load
from ..backends.subject import Subject
from ..checks import InputError, accepting, check_context, refusal
from ..data.progress import OnProgress, no_progress
from ..data.tokens import Tokens, TokenSet, TokensLike
from ..files import cache_folder, check_writable, path_of, sole_writer
from ..measurement.measure import measure, passes
from ..measurement.quantities import sink_rate
from ..measurement.watching import sinks_of
from ..metrics.estimates import SIZES, Estimate, estimate
from ..metrics.metric import next_token_loss
from ..plots.theme import sweep_figure
from ..seals import settle, stated, sums
from ..spec import Limits
from ..table import Table
from ..train import checkpoint, loop
from ..train.chats import Chats, padded, read_chats, tokenised
from ..train.distributed import World, joined
from ..train.loop import Corpus, Evaluate, Job, Task, held_out_tokens, job_of, prepared
from ..train.published import card, push
from ..train.recipe import CosineRate, Decay, Everything, Fit, NextToken, Objective, Rate, Recipe, described, recipe_in
from .catalogue import load_package

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

    @property
    def model(self) -> Subject:
        """The trained model, as `subject` loads it."""
        return self.subject()

    def history(self) -> Table:
        """Losses and sink metrics during training, one row per evaluation."""
        rows = checkpoint.history_of(self.folder)
        columns = dict.fromkeys(column for row in rows for column in row)
        figure = partial(sweep_figure, x=STEP, quantities=("sink_1", "valid_loss"))
        return Table.of(
            f"Training of {self.recipe.key()}", str(self.folder), tuple(columns | row for row in rows), figure
        )

    def sink_rate(self, tokens: TokensLike | Any = None, **how: Any) -> Estimate:
        """Sink_k of the trained model, by default on 100 sequences of its task that the training did not see."""
        given = held_out_tokens(self.recipe.data, 100) if tokens is None else tokens
        return sink_rate(self.subject(), given, **how)

    def push_to_hub(self, repo: str, private: bool = True) -> str:
        """Uploads the final checkpoint with a model card to the Hub, as "me/name", and returns the address.

        `si.load("me/name")` reads it. Raises InputError where the Hub refuses.
        """
        last = checkpoint.history_of(self.folder)[-1]
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in last.items())
        return push(self.folder, repo, card(repo, f"A model of {self.recipe.data}", numbers, self.recipe), private)

    def save(self, path: Path | str) -> Path:
        """Copies the final checkpoint into a folder, which `si.load` reads. Raises InputError where that is there."""
        with refusal(f"cannot write {path}", "name a folder that is not there yet", OSError):
            return shutil.copytree(self.folder, path_of(path, "where the checkpoint is saved"))


def plot_run(run: Run | Path | str) -> go.Figure:
    """The figure of a run, or of a checkpoint's folder: its sinks and its loss by step."""
    return (run if isinstance(run, Run) else Run(recipe_of(Path(run)), Path(run))).history().plot()


class Twins(NamedTuple):
    """The runs of a model with a sink, and of its twin without one."""

    sink: Run
    twin: Run


def twins(**given: Any) -> Twins:
    """The runs of "softmax", which makes a sink, and of "sigmoid", trained alike; `trained` says how.

    In a `folder` each has a folder of its name.
    """
    home = given.pop("folder", None)
    names = ("softmax", "sigmoid")
    both: dict[str, Any] = {x: {} if home is None else {"folder": path_of(home, "folder") / x} for x in names}
    return Twins(*(trained(name, **given, **where) for name, where in both.items()))


def settings(recipe: Recipe | str = "softmax", **given: Any) -> Recipe:
    """The recipe that `trained` makes of a variant and settings, which it takes in their place."""
    return described(recipe, given)


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
    recipe = described(recipe, settings) if settings or not isinstance(recipe, Recipe) else recipe
    told = accepting((lambda step, metrics: None) if on_step is None else on_step, "on_step", 1, {})
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
            told(step, metrics)

        run = Run(job.fit, loop.train(job, folder, on_each))
    for row in checkpoint.history_of(run.folder) if is_named and not steps else ():
        told(row[STEP], row)
    return run


def evaluation_on(task: Task, objective: Objective = NextToken()) -> Evaluate:
    """A function that evaluates a model during training: its loss on held-out sequences, and sinks in their beginnings.

    The columns are valid_loss (nats), alpha_1, sink_1 and sink_slot.
    """
    n = max(LEAST_EVALUATION_SEQUENCES, min(EVALUATION_SEQUENCES, EVALUATION_TOKENS // task.length))
    held_out = held_out_tokens(task, min(n, len(task.split.held_out)) if isinstance(task, Corpus) else n)
    beginnings = held_out.tokens[:, :SINK_LENGTH]
    subject_of = lru_cache(1)(HuggingFaceSubject)  # a training has one model, whose contract is checked once

    def evaluate(model: PreTrainedModel) -> dict[str, float]:
        subject = subject_of(model)
        report = measure(subject, beginnings, positions=(0,))
        return {"valid_loss": valid_loss(subject, held_out, objective).mean, **sinks_of(report)}

    return evaluate


def valid_loss(subject: Subject, token_set: TokenSet, objective: Objective = NextToken()) -> Estimate:
    """Loss in nats on the tokens that the objective predicts, with its interval over sequences."""
    losses = torch.cat([_losses(subject, batch) for _, batch in passes(subject, token_set.tokens)])
    return estimate(losses[:, max(objective.first, 1) - 1 :].mean(1)).within(SIZES)


def _losses(subject: Subject, tokens: Tokens) -> Float[Tensor, "sequence target"]:
    logits = subject.run(tokens).logits
    return next_token_loss(logits, tokens.to(logits.device)).cpu()


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a checkpoint of ours was trained with. Raises InputError if the folder holds none."""
    load_package()  # which has kinds of data of its own
    return recipe_in(folder)


HELD_OUT_CHATS = 32  # chats that are not trained on, at most


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
    tokenizer = tokenizer_of(recipe.model)
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
    fit, batch = replace(recipe, sha256=sha256), partial(training.batch, recipe.batch, recipe.seed)
    base = _base_of(recipe.model) if world.is_first else ""
    return Job(fit, lambda: _model(recipe.model, longest), batch, _watch_on(held_out), world, base=base)


def run_of(recipe: Trainable, cache: Path | None = None) -> Path:
    """The folder in the cache of a recipe's run; on chats, as these are now."""
    if isinstance(recipe, ChatRecipe):
        recipe = replace(recipe, sha256=read_chats(recipe.data)[1])
    return (cache or cache_folder()) / "runs" / recipe.key()


def _model(name: str, longest: int = 0) -> PreTrainedModel:
    """The model to be trained. Raises InputError for one with an encoder, and for chats longer than its context."""
    model = load_model(name)
    if model.config.is_encoder_decoder:
        raise InputError(f"{name} is an encoder-decoder model, which is not trained here; give a causal one")
    n_ctx = context_of(model.config)
    check_context(longest, n_ctx, name, f"cut chats: set length={n_ctx}")
    return model


def _split(chats: Chats) -> tuple[Chats, Chats]:
    """The chats to train on, and of the last tenth, 32 at most, those that are not among them: these are held out."""
    first = len(chats.rows) - min(HELD_OUT_CHATS, len(chats.rows) // 10)
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
        return {"valid_loss": loss, "alpha_1": report.alpha().mean().item(), "sink_1": report.sink_rate().mean}

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
