"""Chats as token ids with labels: the model reads every message and predicts those of the assistant."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..checks import InputError, check_count, refusal, unicode_text
from ..data.draws import in_epochs
from ..data.given_tokenizer import messages_in, rendered
from ..data.hub import asking_hub
from ..data.texts import files_of, is_path, rows_of
from ..lm.model import IGNORED
from .distributed import Batch

Messages = list[dict[str, str]]
Labelled = tuple[list[int], list[int] | None]  # ids, and labels where the assistants' tokens are known
Row = tuple[list[int], list[int]]  # the ids and labels of one chat
MARK = "{% generation %}"
PLAIN = (  # for tokenizers without a chat template; BOS comes first, since a model trained with BOS has its sink there
    "{{ bos_token or '' }}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Chats:
    """Tokenised chats, a row each. `rule` says how the labels were chosen."""

    rows: list[Row]
    rule: str
    left_out: int

    def batch(self, n: int, seed: int, step: int) -> Batch:
        """The `n` chats of a step, counted from 1. Every epoch takes each chat once, in a new order."""
        return padded([self.rows[i] for i in in_epochs("chats", len(self.rows), n, seed, step).tolist()])


def padded(rows: list[Row]) -> Batch:
    """Ids, labels and attention mask, each `chat pos`, padded on the right to the longest row."""
    ids, labels = ([torch.tensor(row, dtype=torch.long) for row in part] for part in zip(*rows, strict=True))
    mask = [torch.ones_like(row) for row in ids]
    parts = {"input_ids": (ids, 0), "labels": (labels, IGNORED), "attention_mask": (mask, 0)}
    return {name: pad_sequence(part, batch_first=True, padding_value=pad) for name, (part, pad) in parts.items()}


def read_chats(source: str) -> tuple[list[Messages], str]:
    """The chats of a file, of the files in a folder, or of the train split of a dataset, and their hash.

    Raises InputError if neither exists, or if a row holds no messages; the message names the row.
    """
    files = files_of(Path(source)) if is_path(source) else []
    rows = (row for file in files for row in rows_of(file)) if files else _dataset(source)
    chats = [_messages(row, f"{source}, row {i}") for i, row in enumerate(rows, 1)]
    check_count(chats, f"chats in {source}")
    return chats, hashlib.sha256(json.dumps(chats).encode()).hexdigest()[:12]


def tokenised(chats: Iterable[Messages], tokenizer: Any, length: int) -> Chats:
    """Chats cut at `length` tokens, without those in which no assistant's token is left to predict.

    The loss is on the assistants' tokens if the template marks them. Without marks, those tokens are found by the
    lengths of the chat's beginnings, if the template renders a beginning as it renders it in the full chat. Otherwise
    the loss is on all tokens. A tokenizer without a template gets `PLAIN`. Raises InputError if no chat is left, or if
    the template refuses one.
    """
    chats = list(chats)
    if not any(m["role"] == "assistant" and m["content"].strip() for chat in chats for m in chat):
        raise InputError("the chats hold no text of an assistant to train on; give chats with answers")
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN if tokenizer.eos_token else PLAIN.replace(" + eos_token", "")
    is_marked = MARK in tokenizer.chat_template.replace("{%-", "{%").replace("-%}", "%}")
    label = _by_marks if is_marked else _by_beginnings
    labelled = [label(chat, tokenizer, f"chat {i}") for i, chat in enumerate(chats, 1)]
    on_all = any(labels is None for _, labels in labelled)
    cut = [(ids[:length], (ids if on_all or labels is None else labels)[:length]) for ids, labels in labelled]
    rows = [(ids, labels) for ids, labels in cut if any(label != IGNORED for label in labels[1:])]
    if not rows:
        raise InputError(f"no chat has an assistant's token within {length} tokens; set length higher")
    rule = "all tokens" if on_all else f"assistants' tokens, {'marked by the template' if is_marked else 'by prefixes'}"
    return Chats(rows, rule, len(chats) - len(rows))


def _by_marks(chat: Messages, tokenizer: Any, name: str) -> Labelled:
    """Ids, and labels where the template marks an assistant's tokens."""
    out = rendered(chat, tokenizer, name, return_dict=True, return_assistant_tokens_mask=True)
    ids, masks = out["input_ids"], [bool(on) for on in out["assistant_masks"]]
    labels = [token if on else IGNORED for token, on in zip(ids, masks, strict=True)]
    n_spans = sum(on and not before for before, on in pairwise([False, *masks]))
    if n_spans == sum(m["role"] == "assistant" for m in chat):
        return ids, labels
    whole = _by_beginnings(chat, tokenizer, name)[1]  # marks go astray in tokenizers that drop white space
    if whole is None or (any(masks) and all(at != IGNORED for at, on in zip(whole, masks, strict=True) if on)):
        return ids, labels
    return ids, whole


def _by_beginnings(chat: Messages, tokenizer: Any, name: str) -> Labelled:
    """Ids and labels. Labels are None if the full chat does not begin as its first messages alone do."""

    def ids_of(messages: Messages, prompt: bool = False) -> list[int]:
        return rendered(messages, tokenizer, name, return_dict=True, add_generation_prompt=prompt)["input_ids"]

    ids = ids_of(chat)
    labels = [IGNORED] * len(ids)
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            question, answered = ids_of(chat[:i], True) if i else [], ids_of(chat[: i + 1])
            if ids[: len(question)] != question or ids[: len(answered)] != answered:
                return ids, None
            labels[len(question) : len(answered)] = ids[len(question) : len(answered)]
    return ids, labels


def _dataset(name: str) -> Iterable[Any]:
    from datasets import load_dataset

    with refusal(f"cannot load the data set {name!r}", "give a .jsonl file of chats"), asking_hub(name):
        return load_dataset(name, split="train")


def _messages(row: Any, name: str) -> Messages:
    """The messages of a row. Raises InputError if it has none."""
    messages: Any = messages_in(row)
    parts = (row, *messages) if isinstance(messages, list) else (row,)
    if any(part.get("tools") or part.get("tool_calls") for part in parts if isinstance(part, dict)):
        raise InputError(f"{name} has tools or tool calls, which are not rendered here; leave such chats out")
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise InputError(f'{name} is not a chat; each is {{"messages": [{{"role": ..., "content": ...}}, ...]}}')
    return [{"role": m["role"], "content": unicode_text(m["content"], name)} for m in messages]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
