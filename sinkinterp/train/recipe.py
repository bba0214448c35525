"""Recipes: the settings that determine a training run, and named ones. Schedule, decay and objective are values."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from .._experiments import load_package
from ..attention import Mask
from ..attention.slots import NoSlots
from ..checks import InputError, instance_of, refusal
from ..data import packing  # noqa: F401  registers its kinds of data, which recipe files name
from ..data.backcopy import BigramBackcopy
from ..data.packing import PackedText
from ..data.sources import Embedded, PythonCode, Source
from ..data.texts import Texts, source_of
from ..data.tokenizers import ByteBPE
from ..data.tokens import Tokens, sequences_that_fit
from ..files import check_is_file, data_of, verify
from ..lm.model import IGNORED, LMSpec
from ..lm.variants import VARIANTS, attn, variants
from ..spec import ABOVE_ZERO, INSIDE, Limits, Spec, added_later, changed


class Rate(Spec):
    """The learning rate after the linear warm-up: the peak rate, unless a schedule lowers it."""

    def factor(self, step: int, steps: int, warmup: int) -> float:
        """The rate at `step` (from 1) divided by the peak rate, in a run of `steps` of which `warmup` warm up."""
        return 1.0


class ConstantRate(Rate):
    """The peak rate until the end, as in the released configurations of Gu et al. (2025)."""


class CosineRate(Rate):
    """Half a cosine, from the peak at the end of the warm-up down to `floor` at the last step."""

    limits: ClassVar[Limits] = {"floor": (0, 1)}

    floor: float = 0.1

    def factor(self, step: int, steps: int, warmup: int) -> float:
        done = max(0, step - warmup) / max(1, steps - warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


class CooldownRate(Rate):
    """The peak rate, then a straight line down to `floor` over the last fraction `last` of the steps.

    The cool-down removes the noise of the constant rate from the final losses.
    """

    limits: ClassVar[Limits] = {"floor": (0, 1), "last": INSIDE}

    last: float = 0.2
    floor: float = 0.1

    def factor(self, step: int, steps: int, warmup: int) -> float:
        left = (steps - step) / (self.last * steps)
        return min(1.0, self.floor + (1 - self.floor) * left)


class Decay(Spec):
    """Which parameters weight decay applies to."""

    def decayed(self, model: nn.Module) -> set[str]:
        """The names of the parameters that it applies to."""
        raise NotImplementedError


class MapsAndTokens(Decay):
    """Linear maps and token embeddings, but not gains, slots and position tables.

    With decay on the position table, p1 stays too small to make a sink of whichever token comes first.
    """

    def decayed(self, model: nn.Module) -> set[str]:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        owners = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) or m is embedding]
        chosen = {id(p) for owner in owners for p in owner.parameters()}
        return {name for name, p in model.named_parameters() if id(p) in chosen}


class Everything(Decay):
    """Every parameter, as the released training of Gu et al. (2025) does."""

    def decayed(self, model: nn.Module) -> set[str]:
        return {name for name, _ in model.named_parameters()}


def parameter_groups(model: nn.Module, decay: Decay, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups, with and without weight decay. Every trained parameter is in exactly one of them."""
    names = decay.decayed(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decayed = [p for name, p in trained.items() if name in names]
    free = [p for name, p in trained.items() if name not in names]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


class Objective(Spec):
    """Predicts every token from position `first` on, each from the tokens before it."""

    @property
    def first(self) -> int:
        """Position, from 0, of the first token that is predicted: the second token, since none is before the first."""
        return 1

    def labels(self, tokens: Tokens) -> Tokens:
        """The tokens to predict, and -100 in place of tokens that are not predicted."""
        if self.first <= 1:  # losses leave out position 0, which has no token before it
            return tokens
        labels = tokens.clone()
        labels[:, : self.first] = IGNORED
        return labels


class NextToken(Objective):
    """Predicts every token but the first."""


class PrefixLM(Objective):
    """Predicts the tokens after the first `prefix`, which a prefix mask shows to all (Gu et al. 2025, Fig. 5)."""

    limits: ClassVar[Limits] = {"prefix": 1}

    prefix: int = 5

    @property
    def first(self) -> int:
        return self.prefix


CHECKED = 128  # positions, from the first on, that are checked for tokens shown to the queries that predict them
MOST_THREADS = 1024  # of one process
_COUNTS = ("steps", "batch", "micro_batch", "watch_every", "save_every")


class Fit(Spec):
    """How AdamW (betas 0.9 and 0.95) fits any model to batches.

    batch: sequences per step, over all processes.
    micro_batch: the most sequences in one forward pass.
    clip: the largest gradient norm.
    bf16: whether autocast computes in bfloat16. Weights, moments and evaluations stay in fp32.
    threads: how many threads of the CPU compute. Tiny matrices are fastest on one.
    watch_every, save_every: optimiser steps between evaluations, and between checkpoints.
    recompute: whether the backward pass computes every block again (gradient checkpointing): less memory, more time.
    compiled: whether `torch.compile` joins the model's operations. It pays on a GPU from some 60 million parameters on.
        Losses agree to rounding, and the first step takes up to a minute.

    On one machine, a run is a pure function of its recipe.
    """

    limits: ClassVar[Limits] = {
        **dict.fromkeys(_COUNTS, 1), "threads": (1, MOST_THREADS), "seed": 0, "warmup": 0, "weight_decay": 0,
        "lr": ABOVE_ZERO, "clip": ABOVE_ZERO,
    }  # fmt: skip

    seed: int = 0
    steps: int = 1500
    batch: int = 128
    micro_batch: int = 1024
    lr: float = 2e-2
    schedule: Rate = CooldownRate()
    warmup: int = 100
    weight_decay: float = 1.0
    decay: Decay = MapsAndTokens()
    clip: float = 1.0
    bf16: bool = False
    threads: int = 1
    watch_every: int = 125
    save_every: int = 250
    recompute: bool = added_later(False, kw_only=True)
    compiled: bool = added_later(False, kw_only=True)

    def check_batch(self, length: int) -> None:
        """Raises InputError where the sequences of one step, of so many tokens, exceed the machine's memory."""
        sequences_that_fit(self.batch, length, "lower batch")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1: a linear warm-up, then the schedule."""
        return self.lr * min(1.0, step / max(1, self.warmup), self.schedule.factor(step, self.steps, self.warmup))


class Recipe(Fit):
    """A language model of ours, fitted to data from a random start.

    `data` is a spec with `vocab` and `length`. It is a `Task`, or `task.prepared` makes a `Task` of it.
    """

    model: LMSpec = LMSpec()
    data: Any = BigramBackcopy()
    objective: Objective = NextToken()

    def __post_init__(self) -> None:
        super().__post_init__()
        vocab, length = (getattr(self.data, name, 0) for name in ("vocab", "length"))
        if not vocab or not length or isinstance(self.data, type):
            raise InputError(f"{self.data!r:.40} is not a task, which has a vocab and a length")
        if self.model.vocab != vocab or self.model.n_ctx < length:
            has = f"{self.model.vocab} symbols and {self.model.n_ctx} positions, the task {vocab} and {length}"
            raise InputError(f"the model holds {has}; use model.vocab={vocab} model.n_ctx={length}")
        last = shown_ahead(self.model.attention.mask, length)
        if last >= self.objective.first:
            fix = f"use objective=PrefixLM, prefix={last + 1}"
            raise InputError(f"the mask shows position {last} to those that predict it; {fix}")
        if self.objective.first >= length:
            raise InputError(f"no token comes after the first {self.objective.first} of {length}")

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.data.length


def shown_ahead(mask: Mask, length: int) -> int:
    """The last position, of the first `CHECKED`, that a mask shows to an earlier query, or 0 if it shows none."""
    index = torch.arange(min(length, CHECKED))
    shown = mask.allows(index[:, None], index[None, :]) & (index[None, :] > index[:, None])
    return int(index[shown.any(0)].max()) if shown.any() else 0


class YourText(Source):
    """Placeholder for the user's own text. `check` raises InputError until another source stands in its place."""

    def check(self) -> None:
        raise InputError("this recipe trains on a text of your own; name a file or a folder: Texts(FILE)")


RECIPES = {name: Recipe.from_dict({"kind": "Recipe", **given}) for name, given in data_of("train/recipes.toml").items()}


NAMED: dict[str, Source] = {"embedded": Embedded(), "code": PythonCode()}


def source_named(given: str | Path | Texts) -> Source:
    """The source of "embedded", of "code" (Python's standard library), of a file or folder, or of `si.texts(...)`."""
    if isinstance(given, str):
        if given not in NAMED:
            raise InputError(
                f"there is no text {given!r:.40}; write Path({given!r}) for a file, or {' or '.join(NAMED)}"
            )
        return NAMED[given]
    return source_of(given)


def on_text(recipe: Recipe, source: str | Path | Texts) -> Recipe:
    """The recipe with a text as its data, packed to the model's context, in byte-level BPE.

    `source` is what `source_named` takes. The tokenizer has the symbols of the recipe's vocabulary, and at least
    1,024. To use another one, set `data.tokenizer=Pretrained` and `data.tokenizer.source=NAME`.
    """
    vocab = max(recipe.model.vocab, ByteBPE().vocab)
    text, bos = source_named(source), getattr(recipe.data, "bos", PackedText.bos)
    data = PackedText(source=text, tokenizer=ByteBPE(vocab), length=recipe.model.n_ctx, bos=bos)
    return replace(recipe, model=replace(recipe.model, vocab=vocab), data=data)


def with_variant(recipe: Recipe, name: str) -> Recipe:
    """The recipe with the architecture of that name in place of its own, at the recipe's sizes.

    "softmax" leaves the architecture as it is. With a prefix mask the loss begins after the prefix. Raises InputError
    for a name that no architecture has.
    """
    slots = recipe.model.attention.slots  # which stay, though most variants are written for a model without them
    model = variants(attn(recipe.model, slots=NoSlots()))[name]
    if model.attention.slots == NoSlots() and not model.before.count:
        model = attn(model, slots=slots)
    last = shown_ahead(model.attention.mask, recipe.data.length)
    return replace(recipe, model=model, objective=PrefixLM(last + 1) if last else recipe.objective)


def recipe_in(folder: Path) -> Recipe:
    """The recipe that a checkpoint of ours was trained with. Raises InputError if the folder holds none."""
    load_package()  # experiments have kinds of data of their own
    verify(folder, "recipe.json")
    file = folder / "recipe.json"
    check_is_file(file, "without it and without a tokenizer, give token ids: tokens=FILE.json")
    fix = "copy the folder again, or train the model again"
    with refusal(f"{file} is not a recipe", fix, (OSError, ValueError, TypeError, AttributeError)):
        return Recipe.from_dict(json.loads(file.read_text(encoding="utf-8")))


def described(recipe: Recipe | str, settings: Mapping[str, Any]) -> Recipe:
    """A recipe, or that of the demo for a variant, with settings of it or of its model, such as steps=100, n_layers=2.

    Raises InputError as `with_variant` and `changed` do, and TypeError for a name that is not a setting.
    """
    made = with_variant(RECIPES["demo"], recipe) if isinstance(recipe, str) else recipe
    instance_of(made, Recipe, "a training has a recipe, or the name of a variant")
    of_model = {field.name: f"model.{field.name}" for field in fields(made.model)}
    paths = of_model | {field.name: field.name for field in fields(made)} | {"length": "data.length"}
    if unknown := [word for word in settings if word not in paths and "." not in word]:
        raise TypeError(
            f"got an unexpected keyword argument {unknown[0]!r}, which is not a setting of a recipe or a model"
        )
    values = {paths.get(word, word): value for word, value in settings.items()}
    if "data.length" in values:
        values.setdefault("model.n_ctx", values["data.length"])
    made = replace(made, seed=values.pop("seed", made.seed))
    return changed(made, [f"{path}={value}" for path, value in values.items()])


DEMO_TWINS = ("softmax", "sigmoid", "k_bias")  # the variants that the demo trains on one task
DEMO_EPSILON = 0.3


def demo_recipe(variant: str, seed: int = 0, steps: int = Recipe.steps) -> Recipe:
    """How the demo trains one of its twins."""
    return Recipe(model=VARIANTS[variant], seed=seed, steps=steps)
