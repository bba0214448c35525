"""Fine-tuning on chats: any causal language model of transformers, by the same loop as our own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ..backends.huggingface import HuggingFaceSubject
from ..backends.load import load_model, load_tokenizer
from ..errors import InputError
from ..files import replacing
from ..measurement.measure import measure
from ..train import checkpoint, loop
from ..train.chats import Chats, padded, read_chats, tokenised
from ..train.distributed import World
from ..train.job import Job
from ..train.recipe import Fit
from ..train.schedules import CosineRate, Rate
from ..train.weight_decay import Decay, Everything

HELD_OUT, SINK_LENGTH = 32, 64  # chats that are not trained on; tokens of them that sinks are read in


@dataclass(frozen=True)
class ChatRecipe(Fit):
    """A model and the chats that it is fine-tuned on, cut at `length` tokens.

    The loss is on the assistants' tokens wherever the chat template tells them apart. Rate and schedule are those of
    full fine-tuning as commonly done at 7B parameters (2e-5, cosine to zero). `sha256` is filled in from the chats.
    """

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


def finetuned(
    recipe: ChatRecipe,
    run: Path,
    on_step: loop.OnStep = lambda step, latest: None,
    world: World = World(),
    on_words: Callable[[str], None] = lambda words: None,
) -> Path:
    """The folder of the fine-tuned model and its tokenizer, `run`/model, trained from the newest checkpoint in `run`.

    The history of the last checkpoint holds losses, gradient norms and Sink_1. `on_words` is told, in a line, what the
    loss is on. Raises InputError as `loop.train` does, and for models without a tokenizer.
    """
    tokenizer = load_tokenizer(recipe.model)
    if tokenizer is None:
        raise InputError(f"{recipe.model} holds no tokenizer; save the one that it was trained with beside it")
    texts, sha256 = read_chats(recipe.data)
    recipe = replace(recipe, sha256=sha256)
    trained_on, held_out = _split(tokenised(texts, tokenizer, recipe.length))
    on_words(f"{len(trained_on.rows)} chats, loss on {trained_on.rule}; {trained_on.left_out} chats had none")
    job = Job(
        recipe,
        lambda: load_model(recipe.model),
        lambda step: trained_on.batch(recipe.batch, recipe.seed, step),
        _watch_on(held_out),
        world,
    )
    last = loop.train(job, run, on_step)
    target = run / "model"
    if world.is_first and not target.exists():
        model = load_model(recipe.model)
        checkpoint.fill(last, model)
        _write(target, model, tokenizer)
    return target


def _split(chats: Chats) -> tuple[Chats, Chats]:
    """Chats to train on and the last tenth of them, 32 at most, to watch."""
    n = min(HELD_OUT, len(chats.rows) // 10)
    return (replace(chats, rows=chats.rows[: len(chats.rows) - n]), replace(chats, rows=chats.rows[-n:] if n else []))


def _watch_on(held_out: Chats) -> Callable[[PreTrainedModel], dict[str, float]]:
    shortest = min([SINK_LENGTH, *(len(ids) for ids, _ in held_out.rows)])
    beginnings = [ids[:shortest] for ids, _ in held_out.rows]

    def watch(model: PreTrainedModel) -> dict[str, float]:
        if shortest < 2 or not beginnings:
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
    """Mean over chats of the loss on what is predicted, in nats."""
    batches = [{name: part.to(model.device) for name, part in padded([row]).items()} for row in chats.rows]
    return sum(model(**batch, use_cache=False).loss.item() for batch in batches) / len(batches)


def _write(target: Path, model: PreTrainedModel, tokenizer: object) -> None:
    with replacing(target, "make room, then run the same command") as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)  # type: ignore[attr-defined]
