"""Accuracy on multiple-choice tasks, counted as lm-evaluation-harness counts it."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkinterp.backends.model_files import context_of, load_model, load_tokenizer
from sinkinterp.checks import InputError
from sinkinterp.data.sources import embedded_texts
from sinkinterp.files import cache_folder

ENDINGS, HELLASWAG = "docstring endings", "hellaswag"
CONTEXT, ENDING = 150, 80  # characters, up to the next word
CHOICES = 4
CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Germany": "Berlin", "Japan": "Tokyo", "China": "Beijing",
    "Russia": "Moscow", "Egypt": "Cairo",
}  # fmt: skip


def accuracy(source: str, task: str = ENDINGS, documents: int = 500) -> dict[str, float]:
    """The accuracy of a model, acc, and by the length of the choice, acc_norm, with their standard errors.

    `task` is `ENDINGS`, which needs no download, or `HELLASWAG`. The first `documents` are asked, without examples,
    behind BOS where the tokenizer has one. Raises InputError for a model without a tokenizer.
    """
    tokenizer = load_tokenizer(source)
    if tokenizer is None:
        raise InputError(f"{source} has no tokenizer, so it cannot be asked questions; give a model of text")
    model = load_model(source).eval()
    questions = endings(embedded_texts(cache_folder()), documents) if task == ENDINGS else _hellaswag(documents)
    numbers: dict[str, float] = {}
    by_choice = [_scores(model, tokenizer, question) for question in questions]
    lengths = [torch.tensor([float(len(choice)) for choice in question["choices"]]) for question in questions]
    for name, scores in (("acc", by_choice), ("acc_norm", [x / n for x, n in zip(by_choice, lengths, strict=True)])):
        right = [int(x.argmax()) == question["gold"] for x, question in zip(scores, questions, strict=True)]
        share = sum(right) / len(right)
        numbers |= {name: share, f"{name}_stderr": (share * (1 - share) / max(1, len(right) - 1)) ** 0.5}
    return numbers


@torch.no_grad()
def _scores(model: PreTrainedModel, tokenizer: Any, question: dict[str, Any]) -> Tensor:
    """The log-probability of each choice behind the question; of the last tokens, where the context is shorter."""
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    most = context_of(model.config) or 2048
    n_asked = len(tokenizer(question["query"], add_special_tokens=False)["input_ids"])
    scores = []
    for choice in question["choices"]:
        ids = tokenizer(f"{question['query']} {choice}", add_special_tokens=False)["input_ids"]
        kept = torch.tensor([[*bos, *ids][-(most + 1) :]])
        logits = model(kept[:, :-1]).logits.float().log_softmax(-1)
        scores.append(logits.gather(-1, kept[:, 1:, None])[0, -(len(ids) - n_asked) :].sum())
    return torch.stack(scores)


def _hellaswag(documents: int) -> list[dict[str, Any]]:
    """The first questions of the validation split, as the harness words them."""
    from datasets import load_dataset

    def words(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    return [
        {
            "query": words(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"),
            "choices": [words(ending) for ending in row["endings"]],
            "gold": int(row["label"]),
        }
        for row in islice(load_dataset("Rowan/hellaswag", split="validation", streaming=True), documents)
    ]


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
