"""Mending the sink of a genuine model: slots beside its keys that take the sink over, with or without a training."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..backends import adapters
from ..backends.adapters import AddedSlots, SlotsAlone, Trained
from ..backends.huggingface import HuggingFaceSubject
from ..backends.model_files import check_named, checked_config, context_of, load_model, tokenizer_of
from ..backends.named_models import located
from ..checks import InputError, check_context, choice, nearest, whole_number
from ..data.choices import Remedy, Weights
from ..data.draws import HELD_OUT
from ..data.packing import PackedText, PreparedText
from ..data.progress import OnProgress, Progress, counting, no_progress, silent
from ..data.texts import Texts
from ..data.tokenizers import Pretrained
from ..data.tokens import Tokens
from ..files import Of, cache_folder, check_writable, owner, path_of, sole_writer, write_sealed
from ..interventions import Edit
from ..interventions.attention_layers import Evict
from ..measurement.measure import measure, run_note
from ..measurement.quantities import TokenLosses, token_losses
from ..measurement.watching import sinks_of
from ..metrics.estimates import SHARES, SIZES, estimate_cells, intervals, mean_cells
from ..metrics.residuals import PEAK_OVER_MEDIAN
from ..report.report import Report
from ..spec import Limits, added_later
from ..table import QUANTITY, Cell, Table, high_of, low_of
from ..train import checkpoint, loop
from ..train.checkpoint import card, push
from ..train.distributed import Batch, World
from ..train.loop import Job, loss_of
from ..train.recipe import ConstantRate, Decay, Everything, Fit, Rate, source_named
from .quantising import GRAINS, Quantise, nothing

SLOTS: Mapping[str, AddedSlots] = {
    Remedy.KV_BIAS: adapters.AddedKeyValue(),
    Remedy.SINK_LOGIT: adapters.AddedLogit(),
    Remedy.K_BIAS: adapters.AddedKey(),
    Remedy.NONE: adapters.NoAddedSlots(),
}
WEIGHTS: Mapping[str, Trained] = {
    Weights.ALL: adapters.AllWeights(),
    Weights.LORA: adapters.Lora(),
    Weights.NONE: SlotsAlone(),
}
HELD = 32  # held-out sequences that evaluations read
LENGTH = 96  # tokens of a chunk, where the model knows as many
SEEN = 16  # sequences whose keys and values slots begin with
LOSS, EVICTED, OVER_SECOND = "loss", "added by forgetting the first token", "forgetting it over the second token"
ROUNDED_BY = {grain: f"added by int8 per {grain}" for grain in GRAINS}
ROUNDED = ROUNDED_BY["tensor"]
UNIFORM, ENTRY = "uniform alpha_1", "largest entry / median"
WITHOUT_STEPS = ("model", "data", "slots", "trained", "seed", "position", "threads")  # what these say holds untrained
RATE = 0.01  # Sink_1 below which a model counts as mended, where alpha_1 is at its null too


class MendRecipe(Fit):
    """A model, what is added to its attention, which weights follow, and the text that they are trained on.

    steps: of the training; with 0 the slots stay as they begin.
    penalty: what the loss gains for each unit of mean attention that later queries give to the token at `position`.
    until: the training ends where Sink_1 falls below it and alpha_1 is at most that of uniform attention; 0: never.
    """

    limits: ClassVar[Limits] = {**Fit.limits, "steps": 0, "penalty": 0, "until": 0}

    model: str = ""
    data: PackedText = PackedText()
    slots: AddedSlots = adapters.AddedKeyValue()
    trained: Trained = SlotsAlone()
    penalty: float = 1.0
    position: int = 0
    until: float = added_later(RATE)
    steps: int = 0
    batch: int = 4
    micro_batch: int = 4
    lr: float = 3e-5
    schedule: Rate = ConstantRate()
    warmup: int = 10
    weight_decay: float = 0.0
    decay: Decay = Everything()
    watch_every: int = 25
    save_every: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.position, "position", 0, self.data.length - 2)
        if not self.steps and self.trained != SlotsAlone():
            raise InputError("no step trains any weights; add steps=100, or more")

    @property
    def skips(self) -> int:
        """How many tokens texts lose once the slots are there: the BOS, where they stand in its place."""
        return int(self.data.bos and self.slots.replaces_bos)


@dataclass(frozen=True)
class Mended:
    """A mended model: its recipe, the folder of its adapter, its text, and the evaluations of its training."""

    recipe: MendRecipe
    folder: Path
    text: PreparedText
    history: checkpoint.History
    device: torch.device = torch.device("cpu")

    @cached_property
    def table(self) -> Table:
        """What `worth` says of held-out text, before and after. The model is read again for that."""
        return self.before_and_after()

    def before_and_after(self, progress: Progress = silent) -> Table:
        """The table, made anew."""
        held_out, skips = _held_out(self.text), self.recipe.skips
        subject = HuggingFaceSubject(load_model(self.recipe.model).to(self.device), self.recipe.model)
        before = worth(subject, held_out, held_out.shape[1] - 1 - skips, on_pass=progress("measuring before"))
        adapters.with_adapter(subject.model, self.folder)
        note = f"{run_note(subject, held_out)}; epsilon=0.3; losses in nats; {intervals(len(held_out))}"
        note += "; after: the same texts without BOS; losses of the same tokens" if skips else ""
        both = {"before": before, "after": worth(subject, held_out[:, skips:], on_pass=progress("measuring after"))}

        def row(name: str) -> dict[str, Cell]:
            ends = ((end(when), cells.get(end(name))) for when, cells in both.items() for end in (str, low_of, high_of))
            return {QUANTITY: name, **dict(ends)}

        names = [name for name in before if not name.endswith((low_of(""), high_of("")))]
        return Table.of("What is the mended model worth?", note, map(row, names))

    def push_to_hub(self, repo: str, private: bool = True) -> str:
        """Uploads the adapter with a model card to the Hub, as "me/name", and returns the address.

        `si.load("me/name")` reads it where its base is known by the same name. Raises InputError where the Hub refuses.
        """
        answer = self.answer().partition("\n")[0]
        title = f"Slots for {self.recipe.model}, in place of its first token"
        return push(self.folder, repo, card(repo, title, answer, self.recipe, self.recipe.model), private)

    def answer(self) -> str:
        """Says in a line or two if the first token is still a sink, and the next step."""
        last = self.history[-1]
        state = "no sink any more" if is_mended(last) else "still a sink"
        numbers = f"alpha_1 {last['alpha_1']:.3f} (uniform {last['alpha_1_uniform']:.3f}), Sink_1 {last['sink_1']:.1%}"
        bos = " The slots stand in the place of BOS: texts are read without it." if self.recipe.skips else ""
        return f"The first token is {state}: {numbers} after {last['step']} steps.{bos}\nThe adapter: {self.folder}"


def mend(
    model: str,
    out: Path | str,
    *,
    text: str | Path | Texts = "embedded",
    length: int | None = None,
    remedy: str = Remedy.KV_BIAS,
    weights: str = Weights.NONE,
    on_step: loop.OnStep | None = None,
    **settings: Any,
) -> Mended:
    """Moves the sink of a model by name or folder into slots of its heads; the model is measured before and after::

        si.mend("smollm2", "mended")
        subject = si.load("mended/adapter")
        model = si.with_adapter(AutoModelForCausalLM.from_pretrained(...), "mended/adapter")

    `remedy`: "kv_bias" gives every head the mean key and value of the first token, which takes the sink over without
    training; "sink_logit" (GPT-OSS), "k_bias" and "none" need one. With `steps`, slots and `weights` ("all", "lora"
    or "none") are trained. The loss is that of the next token, plus `penalty` times the mean attention that later
    queries give to the first token. `text` is the `Path` of a file or folder, `si.texts(...)`, or
    "embedded". It is cut into chunks of `length` tokens, by default 96 or as many as the model knows. Other settings
    are those of `MendRecipe`. Training goes on from the newest checkpoint in `out`. Raises InputError as `mended` does.
    """
    made = ("model", "data", "slots", "trained")  # of what has names of its own
    known = ["text", "length", "remedy", "weights", *(f.name for f in fields(MendRecipe) if f.name not in made)]
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"si.mend got an unexpected keyword argument {unknown[0]!r}{nearest(unknown[0], known)}")
    recipe = mend_recipe(str(path_of(model, "a model that is mended")), text, length, remedy, weights, **settings)
    check_trained(recipe)
    return mended(recipe, path_of(out, "out"), on_step=on_step or (lambda step, latest: None))


def check_trained(recipe: MendRecipe) -> None:
    """Raises InputError for a setting of a training that has no steps."""
    if recipe.steps:
        return
    unused = [f.name for f in fields(recipe) if f.name not in WITHOUT_STEPS and getattr(recipe, f.name) != f.default]
    if unused:
        raise InputError(f"{unused[0]}=... has no effect without steps=...")


def mend_recipe(
    model: str,
    text: str | Path | Texts = "embedded",
    length: int | None = None,
    remedy: str = Remedy.KV_BIAS,
    weights: str = Weights.NONE,
    **settings: Any,
) -> MendRecipe:
    """The recipe of `mend`. Raises InputError for a model without a tokenizer, and for chunks longer than its context.

    Chunks begin with BOS where the tokenizer begins texts with it.
    """
    check_named(model)
    most = context_of(config) if (config := checked_config(located(model))) else None
    check_context(length or 0, most, model, f"use length={most}")
    tokenizer = tokenizer_of(model)
    bos = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    vocabulary = Pretrained(max(tokenizer.get_vocab().values()) + 1, source=str(located(model)))
    data = PackedText(source_named(text), vocabulary, length or min(LENGTH, most or LENGTH), bos)
    kinds: dict[str, Any] = {
        "slots": choice(remedy, SLOTS, "remedy"),
        "trained": choice(weights, WEIGHTS, "choice of weights"),
    }
    return MendRecipe(model=model, data=data, **kinds, **settings)


def mended(
    recipe: MendRecipe,
    out: Path,
    cache: Path | None = None,
    on_step: loop.OnStep = lambda step, latest: None,
    progress: Progress = silent,
    world: World = World(),
) -> Mended:
    """The recipe's model, mended: its adapter is written to `out`/adapter.

    Training goes on from the newest checkpoint in `out`, without dropout. It ends where alpha_1 of held-out text is at
    most that of uniform attention and Sink_1 is below 1%, at the latest after the recipe's steps. Raises InputError as
    `loop.train` does, where `out` holds what another run wrote, and for a model that slots cannot be added to.
    """
    if world.size > 1:
        raise InputError("one process mends a model")
    check_writable(out / "lock")
    if recipe.steps:
        checkpoint.check_made(out / "adapter")
    text = recipe.data.prepare(cache or cache_folder(), progress("data"))
    if not recipe.steps:
        checkpoint.check_own([out / "adapter", *out.glob("step-*")], replace(recipe, data=text.recipe))
    on_slots, parts = progress("adding slots"), 2 if recipe.steps else 3  # the last is an evaluation
    on_slots(0, parts)
    model = load_model(recipe.model).to(world.device)
    adapters.without_dropout(model)
    base = adapters.fingerprint(model)
    on_slots(1, parts)
    adapters.add_slots(model, recipe.slots, text.sample(SEEN, recipe.seed, 1), recipe.position)
    recipe.trained.prepare(model)
    on_slots(2, parts)
    of, history = _trained(_job(recipe, model, text, base, world), out, on_step)
    on_slots(parts, parts)
    with sole_writer(out):
        about = model, recipe.slots, recipe.trained, recipe.model, of
        write_sealed(out / "adapter", of, lambda folder: adapters.write_adapter(folder, *about))
    return Mended(recipe, out / "adapter", text, history, world.device)


def _held_out(text: PreparedText) -> Tokens:
    return text.sample(min(HELD, len(text.split.held_out)), *HELD_OUT)


def _job(recipe: MendRecipe, model: PreTrainedModel, text: PreparedText, base: str, world: World) -> Job[MendRecipe]:
    """The training of a model with slots."""

    def batch(step: int) -> Batch:
        tokens = text.sample(recipe.batch, recipe.seed, step)[:, recipe.skips :]
        return {"input_ids": tokens, "labels": tokens}

    watch = partial(_watch, held_out=_held_out(text)[:, recipe.skips :])
    loss = partial(penalised, penalty=recipe.penalty, position=recipe.position)
    about: dict[str, Any] = {"base": base, "loss": loss, "is_done": partial(is_mended, rate=recipe.until)}
    return Job(replace(recipe, data=text.recipe), lambda: model, batch, watch, world, **about)


def _trained(job: Job[MendRecipe], out: Path, on_step: loop.OnStep) -> tuple[Of, checkpoint.History]:
    """Trains the job's model, if it has steps. Returns what the result is of, and its evaluations."""
    model = job.start()
    if not job.fit.steps:
        return checkpoint.identity(job.fit, 0, job.base), [{"step": 0, **job.evaluate(model)}]
    last = loop.train(job, out, on_step)
    checkpoint.fill(last, model)
    return owner(last), checkpoint.history_of(last)


def penalised(model: nn.Module, batch: Batch, penalty: float, position: int) -> Tensor:
    """The loss of a batch, plus `penalty` times the mean attention of later queries to the token at `position`."""
    with adapters.watched(position) as masses:
        loss = loss_of(model, batch)
    return loss + penalty * torch.stack(masses).mean() if penalty else loss


def is_mended(newest: Mapping[str, float], rate: float = RATE) -> bool:
    """Tells if the first token stopped being a sink by this evaluation."""
    return newest["alpha_1"] <= newest["alpha_1_uniform"] and newest["sink_1"] < rate


def _watch(model: PreTrainedModel, held_out: Tokens) -> dict[str, float]:
    """The evaluation of a model during the training."""
    subject = HuggingFaceSubject(model)
    report = sinks_and_entries(subject, held_out)
    return {
        "valid_loss": token_losses(subject, held_out).mean().item(),
        **sinks_of(report),
        "alpha_1_uniform": report.null_alpha().mean().item(),
        "peak_over_median": report.extra(PEAK_OVER_MEDIAN).max().item(),
    }


def sinks_and_entries(subject: HuggingFaceSubject, tokens: Tokens) -> Report:
    """The sinks of the first two tokens, and the largest entries of the residual."""
    return measure(subject, tokens, positions=(0, 1), instruments=[(PEAK_OVER_MEDIAN,)])


def worth(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    targets: int | None = None,
    loss: TokenLosses | None = None,
    report: Report | None = None,
    on_pass: OnProgress = no_progress,
) -> dict[str, Cell]:
    """What the sink of a model is and costs on some tokens: a row of a table.

    The loss is that of the last `targets` tokens, by default of all but the first.
    The first token is forgotten by the queries from the middle on, which no longer see it. Its null is the second
    token, forgotten in the same way. int8 rounds the residuals between blocks, with one scale for each text, token or
    channel. loss, report: what `token_losses` and `sinks_and_entries` return, where they are known.
    """
    middle = tokens.shape[1] // 2
    edits: list[Edit] = [Evict(middle, 0), Evict(middle, 1), *(Quantise(8, over, nothing) for over in GRAINS.values())]
    on_pass(0, len(edits))
    report = report or sinks_and_entries(subject, tokens)
    full = token_losses(subject, tokens) if loss is None else loss
    evicted, other, *losses = (token_losses(subject, tokens, [edit]) for edit in counting(edits, on_pass))
    rounded = dict(zip(GRAINS, losses, strict=True))
    slot = report.slot_rate(0.3)
    return {
        **mean_cells(LOSS, full[:, full.shape[1] - (targets or full.shape[1]) :].mean(1), SIZES),
        **estimate_cells("Sink_1", report.sink_rate(0, 0.3)),
        **mean_cells("alpha_1", report.alpha().mean((1, 2)), SHARES),
        UNIFORM: report.null_alpha().mean().item(),
        "Sink_2": report.sink_rate(1, 0.3).mean,
        "Sink_*": slot.mean if slot else None,
        ENTRY: report.extra(PEAK_OVER_MEDIAN).max().item(),
        **mean_cells(EVICTED, (evicted - full)[:, middle:].mean(1)),
        **mean_cells(OVER_SECOND, (evicted - other)[:, middle:].mean(1)),
    } | {
        name: cell
        for grain, column in ROUNDED_BY.items()
        for name, cell in mean_cells(column, (rounded[grain] - full).mean(1)).items()
    }
