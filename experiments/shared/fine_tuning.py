"""Fine-tuning on chats, for Figure 30: the model reads every message and predicts those of the assistant."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.model_files import checked_config, load_model, tokenizer_of
from sinkinterp.backends.named_models import folder_of, located
from sinkinterp.checks import InputError
from sinkinterp.data.draws import in_epochs
from sinkinterp.files import file_hashes
from sinkinterp.lm.model import IGNORED
from sinkinterp.measurement.measure import measure
from sinkinterp.runs.trained import SINK_LENGTH, OwnTraining
from sinkinterp.spec import Limits
from sinkinterp.train.distributed import Batch, World
from sinkinterp.train.loop import Job
from sinkinterp.train.recipe import CosineRate, Decay, Everything, Rate

Messages = list[dict[str, str]]
Labelled = tuple[list[int], list[int]]
Row = tuple[list[int], list[int]]  # the ids and labels of one chat
HELD_OUT_CHATS = 32  # chats that are not trained on, at most
PLAIN = (  # the template; BOS comes first, since a model trained with BOS has its sink there
    "{{ bos_token or '' }}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


class ChatRecipe(OwnTraining):
    """A model, the chats that it is fine-tuned on, and the length in tokens at which chats are cut.

    The loss is on the assistants' tokens. Rate and schedule are those of full fine-tuning as commonly done at 7B
    parameters (2e-5, cosine to zero). `sha256` is filled in from the chats.
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

    def identified(self) -> "ChatRecipe":
        return replace(self, sha256=read_chats(self.data)[1])

    def job(self) -> "Job[ChatRecipe]":
        messages, sha256 = read_chats(self.data)
        training, held_out = split(tokenised(messages, tokenizer_of(self.model), self.length))
        fit, batch = replace(self, sha256=sha256), partial(training.batch, self.batch, self.seed)
        return Job(fit, lambda: load_model(self.model), batch, _watch_on(held_out), World(), base=_base_of(self.model))


@dataclass(frozen=True)
class Chats:
    """Tokenised chats, a row each."""

    rows: list[Row]

    def batch(self, n: int, seed: int, step: int) -> Batch:
        """The `n` chats of a step, counted from 1. Every epoch takes each chat once, in a new order."""
        return padded([self.rows[i] for i in in_epochs("chats", len(self.rows), n, seed, step).tolist()])


def padded(rows: list[Row]) -> Batch:
    """Ids, labels and attention mask, each `chat pos`, padded on the right to the longest row."""
    ids, labels = ([torch.tensor(row, dtype=torch.long) for row in part] for part in zip(*rows, strict=True))
    mask = [torch.ones_like(row) for row in ids]
    parts = {"input_ids": (ids, 0), "labels": (labels, IGNORED), "attention_mask": (mask, 0)}
    return {name: pad_sequence(part, batch_first=True, padding_value=pad) for name, (part, pad) in parts.items()}


def read_chats(file: str) -> tuple[list[Messages], str]:
    """The chats of a .jsonl file in the column `messages`, and their hash."""
    lines = Path(file).read_text(encoding="utf-8-sig").strip().split("\n")
    chats = [json.loads(line)["messages"] for line in lines]
    return chats, hashlib.sha256(json.dumps(chats).encode()).hexdigest()[:12]


def tokenised(chats: Iterable[Messages], tokenizer: Any, length: int) -> Chats:
    """Chats cut at `length` tokens, without those in which no assistant's token is left to predict.

    The tokenizer gets the template `PLAIN`. Raises InputError if no chat is left.
    """
    tokenizer.chat_template = PLAIN if tokenizer.eos_token else PLAIN.replace(" + eos_token", "")
    labelled = [_by_marks(chat, tokenizer) for chat in chats]
    cut = [(ids[:length], labels[:length]) for ids, labels in labelled]
    rows = [(ids, labels) for ids, labels in cut if any(label != IGNORED for label in labels[1:])]
    if not rows:
        raise InputError(f"no chat has an assistant's token within {length} tokens; set length higher")
    return Chats(rows)


def _by_marks(chat: Messages, tokenizer: Any) -> Labelled:
    """Ids, and labels where the template marks an assistant's tokens."""
    out = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    ids, masks = out["input_ids"], [bool(on) for on in out["assistant_masks"]]
    labels = [token if on else IGNORED for token, on in zip(ids, masks, strict=True)]
    n_spans = sum(on and not before for before, on in pairwise([False, *masks]))
    if n_spans == sum(m["role"] == "assistant" for m in chat):
        return ids, labels
    whole = _by_beginnings(chat, tokenizer)[1]  # marks go astray in tokenizers that drop white space
    if whole is None or (any(masks) and all(at != IGNORED for at, on in zip(whole, masks, strict=True) if on)):
        return ids, labels
    return ids, whole


def _by_beginnings(chat: Messages, tokenizer: Any) -> tuple[list[int], list[int] | None]:
    """Ids and labels. Labels are None if the full chat does not begin as its first messages alone do."""

    def ids_of(messages: Messages, prompt: bool = False) -> list[int]:
        return tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=prompt)["input_ids"]

    ids = ids_of(chat)
    labels = [IGNORED] * len(ids)
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            question, answered = ids_of(chat[:i], True) if i else [], ids_of(chat[: i + 1])
            if ids[: len(question)] != question or ids[: len(answered)] != answered:
                return ids, None
            labels[len(question) : len(answered)] = ids[len(question) : len(answered)]
    return ids, labels


def split(chats: Chats) -> tuple[Chats, Chats]:
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
    return hashlib.sha256(json.dumps(file_hashes(folder, *patterns)).encode()).hexdigest()
