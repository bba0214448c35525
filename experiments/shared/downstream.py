"""Accuracy on multiple-choice tasks, by lm-evaluation-harness (the extra `lm-eval`)."""

import logging
import os
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from datasets import Dataset

from sinkinterp.backends.files.model_files import load_model, load_tokenizer
from sinkinterp.checks import InputError
from sinkinterp.data.sources import embedded_texts
from sinkinterp.files import cache_folder

ENDINGS = "docstring endings"
CONTEXT, ENDING = 150, 80  # characters, up to the next word
CHOICES = 4
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Germany": "Berlin", "Japan": "Tokyo", "China": "Beijing",
    "Russia": "Moscow", "Egypt": "Cairo",
}  # fmt: skip


def accuracy(source: str, task: str = ENDINGS, documents: int = 500) -> dict[str, float]:
    """The harness's numbers of a model: acc, acc_norm (by the length of the choice), and their standard errors.

    `task` is `ENDINGS`, which needs no download, or the name of a multiple-choice task of the harness, such as
    hellaswag. The first `documents` are asked, without examples. Raises InputError where the harness is not installed
    or the model has no tokenizer.
    """
    tokenizer = load_tokenizer(source)
    if tokenizer is None:
        raise InputError(f"{source} has no tokenizer, so it cannot be asked questions; give a model of text")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from lm_eval import simple_evaluate
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError("lm-evaluation-harness is not installed; pip install lm-eval") from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    begins_with_bos = tokenizer.bos_token_id is not None
    model = HFLM(load_model(source), tokenizer=tokenizer, batch_size=8, truncation=True, add_bos_token=begins_with_bos)
    asked: Any = ConfigurableTask(config=_endings_task(documents)) if task == ENDINGS else task
    results = simple_evaluate(model, tasks=[asked], limit=documents, bootstrap_iters=100, log_samples=False)
    (numbers,) = results["results"].values()
    return {name.partition(",")[0]: value for name, value in numbers.items() if isinstance(value, float)}


def endings(texts: Sequence[str], documents: int) -> list[dict[str, Any]]:
    """Questions: how a text goes on. One choice is its own next words, the others are those of the next texts.

    The right choice is at each place equally often. Raises InputError where the texts are too few or too short.
    """
    parts = list(islice(filter(None, map(_cut, texts)), documents + CHOICES - 1))
    if len(parts) < documents + CHOICES - 1:
        raise InputError(f"{documents} questions were asked for, but only {len(parts)} texts are long enough")
    return [_question(parts[i : i + CHOICES], label=i % CHOICES) for i in range(documents)]


def _cut(text: str) -> tuple[str, str] | None:
    """The beginning of a text and the words that follow; None where it is too short, or a word there is very long."""
    first = text.find(" ", CONTEXT)
    last = text.find(" ", first + ENDING)
    is_fit = 0 < first < 2 * CONTEXT and first < last < first + 2 * ENDING
    return (text[:first], text[first + 1 : last]) if is_fit else None


def _question(parts: Sequence[tuple[str, str]], label: int) -> dict[str, Any]:
    choices = [ending for _, ending in parts[1:]]
    choices.insert(label, parts[0][1])
    return {"query": parts[0][0], "choices": choices, "gold": label}


def _endings_task(documents: int) -> dict[str, Any]:
    """The task in the harness's terms."""
    return {
        "task": ENDINGS,
        "custom_dataset": partial(_endings_dataset, documents),
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{query}}",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def _endings_dataset(documents: int, **_: Any) -> dict[str, Dataset]:
    return {"test": Dataset.from_list(endings(embedded_texts(cache_folder()), documents))}
