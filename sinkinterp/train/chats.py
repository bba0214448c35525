"""Chats as token ids with labels: who is spoken to is read, the assistant is predicted."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.seeding import generator
from ..errors import InputError
from .distributed import Batch
from .objectives import IGNORED

Messages = list[dict[str, str]]
MARK = "{% generation %}"
PLAIN = (  # for tokenizers without a template of their own
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Chats:
    """Tokenised chats: ids and labels per chat, how the labels came about, and how many chats were left out."""

    rows: list[tuple[list[int], list[int]]]
    rule: str
    left_out: int

    def batch(self, n: int, seed: int, step: int) -> Batch:
        """The `n` chats of a step, counted from 1: every epoch takes each chat once, in an order of its own."""
        first, of = (step - 1) * n, len(self.rows)
        orders = {epoch: torch.randperm(of, generator=generator("chats", seed, epoch)).tolist()
                  for epoch in range(first // of, (first + n - 1) // of + 1)}  # fmt: skip
        return padded([self.rows[orders[i // of][i % of]] for i in range(first, first + n)])


def padded(rows: list[tuple[list[int], list[int]]]) -> Batch:
    """Rows of one length, padded on the right: ids, labels and attention mask, `chat pos`."""
    longest = max(len(ids) for ids, _ in rows)
    gaps = [longest - len(ids) for ids, _ in rows]
    return {
        "input_ids": torch.tensor([ids + [0] * gap for (ids, _), gap in zip(rows, gaps, strict=True)]),
        "labels": torch.tensor([labels + [IGNORED] * gap for (_, labels), gap in zip(rows, gaps, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - gap) + [0] * gap for gap in gaps]),
    }


def read_chats(source: str) -> tuple[list[Messages], str]:
    """The chats of a .jsonl file, or of the train split of a data set, and a hash of them.

    Raises InputError where there is neither, naming the line that holds no messages.
    """
    file = Path(source)
    if not file.exists() and (source.endswith(".jsonl") or source.startswith((".", "/", "~"))):
        raise InputError(f"there is no file {source}; check the path")
    rows = _lines(file) if file.exists() else _hub(source)
    chats = [_messages(row, f"{source}, row {i}") for i, row in enumerate(rows, 1)]
    if not chats:
        raise InputError(f"{source} holds no chats")
    return chats, hashlib.sha256(json.dumps(chats).encode()).hexdigest()[:12]


def tokenised(chats: Iterable[Messages], tokenizer: Any, length: int) -> Chats:
    """Chats cut at `length` tokens, those without any assistant's token left out.

    The loss is on assistants' tokens where the template marks them, or else where what a template makes of a chat up
    to a message begins what it makes of the whole chat; in templates of neither kind it is on all tokens. A tokenizer
    without a template gets a plain one. Raises InputError where no chat is left.
    """
    chats = list(chats)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN if tokenizer.eos_token else PLAIN.replace(" + eos_token", "")
    marked = MARK in tokenizer.chat_template.replace("{%-", "{%").replace("-%}", "%}")
    found = [(_marked if marked else _by_prefixes)(chat, tokenizer) for chat in chats]
    whole = any(labels is None for _, labels in found)
    cut = [(ids[:length], (ids if whole or labels is None else labels)[:length]) for ids, labels in found]
    rows = [(ids, labels) for ids, labels in cut if any(label != IGNORED for label in labels[1:])]
    if not rows:
        raise InputError(f"no chat has an assistant's token within {length} tokens; set length higher")
    rule = "all tokens" if whole else f"assistants' tokens, {'marked by the template' if marked else 'by prefixes'}"
    return Chats(rows, rule, len(chats) - len(rows))


def _marked(chat: Messages, tokenizer: Any) -> tuple[list[int], list[int] | None]:
    out = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    masks = out["assistant_masks"]
    return out["input_ids"], [t if on else IGNORED for t, on in zip(out["input_ids"], masks, strict=True)]


def _by_prefixes(chat: Messages, tokenizer: Any) -> tuple[list[int], list[int] | None]:
    """Ids and labels; None for labels where a part's text does not begin the whole's."""

    def ids(messages: Messages, prompt: bool = False) -> list[int]:
        return tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=prompt)["input_ids"]

    whole = ids(chat)
    labels = [IGNORED] * len(whole)
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            before, after = ids(chat[:i], True) if i else [], ids(chat[: i + 1])
            if whole[: len(before)] != before or whole[: len(after)] != after:
                return whole, None
            labels[len(before) : len(after)] = whole[len(before) : len(after)]
    return whole, labels


def _lines(file: Path) -> Iterator[Any]:
    number = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}, line {number}: {error}; it should hold a JSON object a line") from error


def _hub(name: str) -> Iterable[Any]:
    from datasets import load_dataset

    try:
        return load_dataset(name, split="train")
    except Exception as error:  # datasets raises a dozen unrelated kinds
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot load the data set {name!r}: {line}; give a .jsonl file of chats") from error


def _messages(row: Any, where: str) -> Messages:
    messages: Any = row.get("messages") if isinstance(row, dict) else None
    good = isinstance(messages, list) and messages and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    )  # fmt: skip
    if not good:
        raise InputError(f'{where} is no chat; each is {{"messages": [{{"role": ..., "content": ...}}, ...]}}')
    return [{"role": m["role"], "content": m["content"]} for m in messages]
