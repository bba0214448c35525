"""What the training loop runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..lm.model import build
from .distributed import Batch, World
from .recipe import Fit, Recipe
from .task import Corpus, Task

F = TypeVar("F", bound=Fit, covariant=True)
Evaluate = Callable[[PreTrainedModel], dict[str, float]]


@dataclass(frozen=True)
class Job(Generic[F]):
    """One training run.

    fit: the settings; recipe.json stores them.
    start: builds the model of step 0.
    batch: the batch of a step, counted from 1, for all processes together.
    evaluate: numbers about the model at step 0, every `fit.watch_every` steps and at the last step.
    world: the processes that train together.
    tokenizer: of the text that is trained on, if there is one; every checkpoint holds it.
    """

    fit: F
    start: Callable[[], PreTrainedModel]
    batch: Callable[[int], Batch]
    evaluate: Evaluate
    world: World = field(default_factory=World)
    tokenizer: PreTrainedTokenizerBase | None = None


def job_of(recipe: Recipe, task: Task, evaluate: Evaluate, world: World = World()) -> Job[Recipe]:
    """The job that trains the recipe's model on a task. The job's recipe describes this task as its data."""
    recipe = replace(recipe, data=task.recipe if isinstance(task, Corpus) else task)

    def batch(step: int) -> Batch:
        tokens = task.sample(recipe.batch, recipe.seed, step)
        return {"input_ids": tokens, "labels": recipe.objective.labels(tokens)}

    tokenizer = task.tokenizer() if isinstance(task, Corpus) else None
    return Job(recipe, lambda: build(recipe.model, recipe.seed), batch, evaluate, world, tokenizer)
