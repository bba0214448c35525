"""The training loop: a step of the optimiser, evaluations, checkpoints, and interrupts that wait for a step's end."""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checks import InputError, instance_of, refusal
from ..data.draws import HELD_OUT, generator
from ..data.packing import PreparedText
from ..data.progress import OnProgress, no_progress
from ..data.tokens import Tokens, TokenSet, sequences_that_fit
from ..files import sole_writer
from ..lm.model import IGNORED, build
from . import checkpoint
from .checkpoint import History
from .distributed import Batch, World, gradient_sync
from .recipe import Fit, Recipe, parameter_groups


@runtime_checkable
class Task(Protocol):
    """A source of sequences: `length` tokens out of `vocab` symbols. Reports call the sequences `title`."""

    @property
    def vocab(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def title(self) -> str: ...

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream.

        A stream is (seed, step), with steps counted from 1, or ("held out",) for sequences that no training sees.
        """
        ...


def held_out_tokens(task: Task, sequences: int) -> TokenSet:
    """Sequences of the task that no training sees."""
    instance_of(task, Task, "a task is that of a recipe, si.Recipe().data")
    sequences = sequences_that_fit(sequences, task.length, "use fewer or shorter sequences")
    return TokenSet.of(task.sample(sequences, *HELD_OUT), f"held-out {task.title}")


def prepared(data: Any, cache: Path, on_progress: OnProgress = no_progress) -> Task:
    """The task that a spec of data describes. Data that need preparation are prepared once, in `cache`."""
    prepare = getattr(data, "prepare", None)
    return data if prepare is None else prepare(cache, on_progress)


F = TypeVar("F", bound=Fit, covariant=True)
Evaluate = Callable[[PreTrainedModel], dict[str, float]]


def loss_of(model: nn.Module, batch: Batch, **options: Any) -> Tensor:
    """The mean loss of a batch that the model itself computes."""
    return model(**batch, use_cache=False, **options).loss


@dataclass(frozen=True)
class Job(Generic[F]):
    """One training run.

    fit: the settings; recipe.json stores them.
    start: builds the model of step 0.
    batch: the batch of a step, counted from 1, for all processes together.
    evaluate: numbers about the model at step 0, every `fit.watch_every` steps and at the last step.
    world: the processes that train together.
    tokenizer: of the text that is trained on, if there is one; every checkpoint holds it.
    base: the hash of the model that the training begins with, if it exists already.
    loss: what a step lowers, of a model and a batch.
    is_done: whether the training ends early, by its newest evaluation.
    """

    fit: F
    start: Callable[[], PreTrainedModel]
    batch: Callable[[int], Batch]
    evaluate: Evaluate
    world: World = field(default_factory=World)
    tokenizer: PreTrainedTokenizerBase | None = None
    base: str = ""
    loss: Callable[[nn.Module, Batch], Tensor] = loss_of
    is_done: Callable[[dict[str, float]], bool] = lambda newest: False


def job_of(recipe: Recipe, task: Task, evaluate: Evaluate, world: World = World()) -> Job[Recipe]:
    """The job that trains the recipe's model on a task. The job's recipe describes this task as its data."""
    recipe = replace(recipe, data=task.recipe if isinstance(task, PreparedText) else task)

    def batch(step: int) -> Batch:
        tokens = task.sample(recipe.batch, recipe.seed, step)
        return {"input_ids": tokens, "labels": recipe.objective.labels(tokens)}

    tokenizer = task.tokenizer() if isinstance(task, PreparedText) else None
    loss = partial(loss_of, skip_logits=True)
    return Job(recipe, lambda: build(recipe.model, recipe.seed), batch, evaluate, world, tokenizer, loss=loss)


OnStep = Callable[[int, dict[str, Any]], None]
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def train(job: Job[Fit], run: Path, on_step: OnStep = lambda step, metrics: None) -> Path:
    """The folder of the job's final checkpoint in `run`, trained from the newest whole checkpoint there.

    Every evaluation becomes a row of the checkpoint's history. `on_step` is called after every step with its number,
    and with the newest evaluation plus the step's loss, gradient norm, learning rate and number of tokens.

    Raises Diverged if the loss is not finite any more, and InputError if the disk is full or `run` holds the run of
    another recipe. The checkpoints stay. After an interrupt, saves a checkpoint and raises KeyboardInterrupt.
    """
    fit, world = job.fit, job.world
    if fit.batch % world.size:
        raise InputError(f"{world.size} processes cannot share {fit.batch} sequences")
    with ExitStack() as stack:
        stack.enter_context(threads(fit.threads))
        if world.is_first:
            stack.enter_context(sole_writer(run, "give another folder"))
        done = int(world.summed(checkpoint.opened(run, fit, job.base) if world.is_first else 0)[0])
        if done < fit.steps and not (done and job.is_done(checkpoint.history_of(checkpoint.folder_of(run, done))[-1])):
            _continue(job, run, done, on_step)
    return checkpoint.folder_of(run, checkpoint.latest(run))


def _continue(job: Job[Fit], run: Path, done: int, on_step: OnStep) -> None:
    """Trains from step `done` to the last step."""
    fit, world = job.fit, job.world
    model, engine, optimizer, history = _start(job, run, done)
    with deferred() as interrupted:
        for step in range(done + 1, fit.steps + 1):
            step_metrics = update(job, step, engine, optimizer)
            stop, last = world.summed(float(interrupted()))[0] > 0, step == fit.steps
            if step % fit.watch_every == 0 or last:
                history.append(_evaluation(job, step, model) | step_metrics)
                last = last or job.is_done(history[-1])
            if world.is_first and (step % fit.save_every == 0 or last or stop):
                of = checkpoint.identity(fit, step, job.base)
                checkpoint.save(run, of, fit, model, optimizer, history, job.tokenizer)
            on_step(step, history[-1] | step_metrics)
            if stop and not last:
                raise KeyboardInterrupt
            if last:
                return


def _start(job: Job[Fit], run: Path, done: int) -> tuple[PreTrainedModel, nn.Module, Optimizer, History]:
    """The model, what computes its gradients, the optimiser and the history after `done` steps."""
    fit = job.fit
    model = started(job)
    history = [] if done else [_evaluation(job, 0, model)]
    engine = engine_of(job, model)
    optimizer = AdamW(parameter_groups(model, fit.decay, fit.weight_decay), betas=(0.9, 0.95), fused=True)
    if done:
        history = checkpoint.restore(run, done, model, optimizer)
    return model, engine, optimizer, history


def started(job: Job[Fit]) -> PreTrainedModel:
    """The model of step 0 on its device, which computes blocks again where the recipe says so."""
    model = job.start().to(job.world.device)
    if job.fit.recompute:
        model.activation_checkpointing_enable()
    return model


def engine_of(job: Job[Fit], model: PreTrainedModel) -> nn.Module:
    """What computes the model's gradients: the model in all processes, compiled where the recipe says so."""
    engine = job.world.wrapped(model.train())
    return cast(nn.Module, torch.compile(engine)) if job.fit.compiled else engine


def _evaluation(job: Job[Fit], step: int, model: PreTrainedModel) -> dict[str, Any]:
    """A row of the history. Only the first process evaluates."""
    model.eval()
    metrics = job.evaluate(model) if job.world.is_first else {}
    model.train()
    return {"step": step} | metrics


class Diverged(InputError):
    """The loss or its gradient is not finite any more. It is the only error of a training itself."""


def update(job: Job[Fit], step: int, model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """Changes the model by one step. Returns the loss, gradient norm before clipping, learning rate and token count.

    Padding does not count as tokens. Raises Diverged, and changes nothing, if loss or gradient is not finite, and
    InputError where the model is to be compiled and cannot be.
    """
    fit, world, rate = job.fit, job.world, job.fit.rate(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    batch = job.batch(step)
    unfit = (torch._dynamo.exc.TorchDynamoException,) if fit.compiled else ()
    refused = refusal("torch.compile cannot compile the model", "set compiled=false", unfit)
    with torch.random.fork_rng([world.device] if world.device.type == "cuda" else []), refused:
        torch.manual_seed(generator("dropout", fit.seed, step, world.rank).initial_seed())
        local_loss = accumulate(job, batch, model)
    local_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), fit.clip)
    loss, norm = (total / world.size for total in world.summed(local_loss, local_norm))
    _check_finite(step, loss, norm, fit)
    optimizer.step()
    return {"train_loss": loss, "grad_norm": norm, "lr": rate, "tokens": _tokens(batch)}


def accumulate(job: Job[Fit], batch: Batch, model: nn.Module) -> torch.Tensor:
    """Adds the gradient of the batch's mean loss to the model, one micro-batch at a time.

    Returns this process's part of the loss, which averages to the loss over processes. A micro-batch that predicts
    nothing adds nothing. Raises InputError where none predicts a token.
    """
    fit, world = job.fit, job.world
    if not (targets := _targets(batch)):
        raise InputError("no token of a batch is predicted, so it has no loss")
    part = world.part(batch)
    starts = range(0, len(part["labels"]), fit.micro_batch)
    pieces = [{name: tensor[i : i + fit.micro_batch] for name, tensor in part.items()} for i in starts]
    is_one_piece = len(pieces) == world.size == 1
    total = torch.zeros((), device=world.device)
    for piece in pieces:
        share = _targets(piece) * world.size / targets
        if not share:  # the mean over no token is not a number
            piece["labels"] = piece["input_ids"]
        with gradient_sync(model, enabled=piece is pieces[-1]):
            with torch.autocast(world.device.type, torch.bfloat16, enabled=fit.bf16):
                loss = job.loss(model, piece)
            loss = loss if is_one_piece else loss * share
            loss.backward()
            total += loss.detach()
    return total


def _targets(batch: Batch) -> int:
    """How many tokens of a batch are predicted."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def _tokens(batch: Batch) -> int:
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


def _check_finite(step: int, loss: float, norm: float, fit: Fit) -> None:
    """Raises Diverged before a step that would ruin the weights."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = f"gradient norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
        fix = f"lower lr (now {fit.lr}) or clip (now {fit.clip}); all checkpoints are kept"
        if step == 1:
            fix = "no step has changed the weights yet, so they or the data are the cause"
        raise Diverged(f"the {what} at step {step}; {fix}")


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGINT (Ctrl-C) or SIGTERM was received.

    The second signal has its usual effect: it stops the program immediately. A signal that the parent process told us
    to ignore, as nohup does with SIGINT, stays ignored. Only the main thread can catch signals. In other threads the
    function always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        _install(handlers)

    _install(dict.fromkeys(handlers, receive))
    try:
        yield lambda: bool(received)
    finally:
        _install(handlers)


def _install(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """In this context PyTorch computes on `count` threads. With a fixed number, sums are bitwise repeatable."""
    outer_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(outer_count)
