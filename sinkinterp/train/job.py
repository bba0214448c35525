"""What the training loop needs: a task, which gives sequences, and a job, which gives everything else too."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.draws import Split
from ..data.progress import OnProgress, no_progress
from ..data.tokens import Tokens
from ..lm.model import build
from ..spec import Spec
from .distributed import Batch, World
from .recipe import Fit, Recipe


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


@runtime_checkable
class Corpus(Task, Protocol):
    """A task that draws from a text. `recipe` holds the hash of the text. `split` says what is held out."""

    @property
    def recipe(self) -> Spec: ...

    @property
    def split(self) -> Split: ...

    def tokenizer(self) -> Any:
        """The transformers tokenizer of the text."""
        ...


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
    recipe = replace(recipe, data=task.recipe if isinstance(task, Corpus) else task)

    def batch(step: int) -> Batch:
        tokens = task.sample(recipe.batch, recipe.seed, step)
        return {"input_ids": tokens, "labels": recipe.objective.labels(tokens)}

    tokenizer = task.tokenizer() if isinstance(task, Corpus) else None
    loss = partial(loss_of, skip_logits=True)
    return Job(recipe, lambda: build(recipe.model, recipe.seed), batch, evaluate, world, tokenizer, loss=loss)
