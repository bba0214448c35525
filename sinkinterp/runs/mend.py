"""Mending the sink of a genuine model: a slot beside its keys, and a short training that takes attention off a key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..applications.streaming import loss_of
from ..applications.without_outliers import GRAINS, Quantise, nothing
from ..attention.sites import RESIDUAL
from ..backends.added_slots import AddedLogit, AddedSlots, add_slots, watched
from ..backends.files.model_files import load_model, load_tokenizer
from ..backends.files.named_models import located
from ..backends.huggingface import HuggingFaceSubject
from ..backends.mended import AllWeights, Trained, fingerprint, write_adapter
from ..checks import finite_number, whole_number
from ..data.draws import HELD_OUT
from ..data.packing import PackedText
from ..data.progress import OnProgress, no_progress
from ..data.sources import Embedded, Source
from ..data.tokenisers import Pretrained
from ..data.tokens import Tokens
from ..errors import InputError
from ..files import cache_folder, check_writable, replacing
from ..interventions.columns import Evict
from ..measurement.inputs import run_note
from ..measurement.measure import measure
from ..measurement.watching import sinks_of
from ..metrics.bootstrap import estimate_cells, intervals, mean_cells
from ..metrics.metric import Metric
from ..metrics.residuals import peak_over_median
from ..report.columns import MODEL
from ..report.report import Report
from ..table import Cell, Table
from ..train import checkpoint, loop
from ..train.distributed import Batch, World
from ..train.job import Job, prepared
from ..train.job import loss_of as loss_of_batch
from ..train.recipe import Fit
from ..train.recipe_parts import ConstantRate, Decay, Everything, Rate

HELD = 32  # held-out sequences that evaluations read
LOSS, EVICTED, ROUNDED = "loss", "added by forgetting the first token", "added by int8 per tensor"
OVER_MEDIAN = Metric("peak_over_median", RESIDUAL, peak_over_median)
RATE = 0.01  # Sink_1 below which a model counts as mended, where alpha_1 is at its null too


@dataclass(frozen=True)
class MendRecipe(Fit):
    """A model, what is added to its attention, which weights follow, and the text that they are trained on.

    penalty: what the loss gains for each unit of mean attention that later queries give to the token at `position`.
    """

    model: str = ""
    data: PackedText = PackedText()
    slots: AddedSlots = AddedLogit()
    trained: Trained = AllWeights()
    penalty: float = 1.0
    position: int = 0
    steps: int = 600
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
        if finite_number(self.penalty, "penalty") < 0:
            raise InputError(f"a penalty is 0 or above; got {self.penalty}")


def mend_recipe(model: str, text: Source = Embedded(), length: int = 96, **settings: Any) -> MendRecipe:
    """The recipe that mends a model by name or folder, trained on chunks of a text of `length` tokens.

    Chunks begin with BOS where the model's tokenizer begins texts with it. Raises InputError without a tokenizer.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise InputError(f"{model} holds no tokenizer; save the one that it was trained with beside it")
    symbols = max(tokenizer.get_vocab().values()) + 1
    bos = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    data = PackedText(text, Pretrained(symbols, source=str(located(model))), length, bos)
    return MendRecipe(model=model, data=data, **settings)


def mended(
    recipe: MendRecipe,
    out: Path,
    cache: Path | None = None,
    on_step: loop.OnStep = lambda step, latest: None,
    on_data: OnProgress = no_progress,
    world: World = World(),
) -> tuple[Path, Table]:
    """The folder `out`/adapter that mends the recipe's model, and what it is worth on held-out text.

    Training goes on from the newest checkpoint in `out`. It ends where alpha_1 of held-out text is at most that of
    uniform attention and Sink_1 is below 1%, at the latest after the recipe's steps. Raises InputError as `loop.train`
    does, and for a model that slots cannot be added to.
    """
    if world.size > 1:
        raise InputError("one process mends a model; start one")
    check_writable(out / "lock")
    text = prepared(recipe.data, cache or cache_folder(), on_data)
    held_out = text.sample(min(HELD, recipe.batch * 8), *HELD_OUT)
    model = load_model(recipe.model)
    base = fingerprint(model)
    before = worth(HuggingFaceSubject(model, recipe.model), held_out)
    add_slots(model, recipe.slots)
    recipe.trained.prepare(model)

    def batch(step: int) -> Batch:
        tokens = text.sample(recipe.batch, recipe.seed, step)
        return {"input_ids": tokens, "labels": tokens}

    job = Job(
        replace(recipe, data=getattr(text, "recipe", recipe.data)),
        lambda: model,
        batch,
        partial(_watch, held_out=held_out),
        world,
        base=base,
        loss=partial(penalised, penalty=recipe.penalty, position=recipe.position),
        is_done=is_mended,
    )
    checkpoint.fill(loop.train(job, out, on_step), model)
    subject = HuggingFaceSubject(model, recipe.model)
    table = worth_table({"before": before, "after": worth(subject, held_out)}, subject, held_out)
    with replacing(out / "adapter", "make room, then run the same command") as draft:
        write_adapter(draft, model, recipe.slots, recipe.trained, f"{recipe.model} {base}")
    return out / "adapter", table


def penalised(model: nn.Module, batch: Batch, penalty: float, position: int) -> Tensor:
    """The loss of a batch, plus `penalty` times the mean attention that later queries give to the token at `position`."""
    with watched(position) as watch:
        loss = loss_of_batch(model, batch)
    return loss + penalty * watch.mean() if penalty else loss


def is_mended(newest: Mapping[str, float]) -> bool:
    """Whether an evaluation says that the first token is no sink any more."""
    return newest["alpha_1"] <= newest["alpha_1_uniform"] and newest["sink_1"] < RATE


def _watch(model: PreTrainedModel, held_out: Tokens) -> dict[str, float]:
    """The evaluation of a model during the training."""
    subject = HuggingFaceSubject(model)
    report = _measured(subject, held_out)
    return {
        "valid_loss": loss_of(subject, held_out).mean().item(),
        **sinks_of(report),
        "alpha_1_uniform": report.null_alpha().mean().item(),
        "peak_over_median": report.extra(OVER_MEDIAN).max().item(),
    }


def _measured(subject: HuggingFaceSubject, tokens: Tokens) -> Report:
    return measure(subject, tokens, positions=(0, 1), instruments=[(OVER_MEDIAN,)])


def worth(subject: HuggingFaceSubject, tokens: Tokens) -> dict[str, Cell]:
    """What the sink of a model is and costs on some tokens: a row of `worth_table`.

    The loss without the first token is that of queries from the middle on, which no longer see it. int8 rounds the
    residuals between blocks, with one scale for each text.
    """
    report = _measured(subject, tokens)
    full, middle = loss_of(subject, tokens), tokens.shape[1] // 2
    evicted = loss_of(subject, tokens, [Evict(middle, 0)])
    rounded = loss_of(subject, tokens, [Quantise(8, GRAINS["tensor"], nothing)])
    slot = report.slot_rate(0.3)
    return {
        **mean_cells(LOSS, full.mean(1)),
        **estimate_cells("Sink_1", report.sink(0, 0.3)),
        **mean_cells("alpha_1", report.alpha().mean((1, 2))),
        "uniform alpha_1": report.null_alpha().mean().item(),
        "Sink_2": report.sink_rate(1, 0.3),
        "Sink_*": slot.mean if slot else None,
        "largest entry / median": report.extra(OVER_MEDIAN).max().item(),
        **mean_cells(EVICTED, (evicted - full)[:, middle:].mean(1)),
        **mean_cells(ROUNDED, (rounded - full).mean(1)),
    }


def worth_table(rows: Mapping[str, Mapping[str, Cell]], subject: HuggingFaceSubject, tokens: Tokens) -> Table:
    """Rows of `worth` by the names of models, of which `subject` is one, on the same tokens."""
    note = f"{run_note(subject, tokens)}; epsilon=0.3; losses in nats; {intervals(len(tokens))}"
    return Table("What is the mended model worth?", note, tuple({MODEL: name, **row} for name, row in rows.items()))
