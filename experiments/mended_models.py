"""The sink of genuine models mended by a short training, beside controls that train as long on the same text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.applications import quantising
from sinkinterp.applications.mend import (
    ENTRY,
    EVICTED,
    HELD,
    LOSS,
    OVER_SECOND,
    ROUNDED,
    UNIFORM,
    MendRecipe,
    mend_recipe,
    mended,
    worth,
)
from sinkinterp.backends.adapters import AddedKeyValue, AllWeights, Lora, NoAddedSlots, with_adapter, without_adapter
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.draws import HELD_OUT
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TextToTokens, Tokens
from sinkinterp.files import cache_folder
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.metrics.estimates import intervals, mean_cells, rate_cells
from sinkinterp.plots.theme import sweep_figure, unique_values
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, EDIT, MODEL, SINK_1, Cell, Table, with_all_columns
from sinkinterp.train.checkpoint import History

from .shared.arms import means_by
from .shared.cases import Case, on_models
from .shared.domains import domains_of
from .shared.downstream import CAPITALS
from .shared.genuine import text_models
from .shared.installed import texts_by_kind
from .shared.remedy import OVER_UNIFORM, over_uniform
from .shared.rules import above, of_each, times, within

CLAIM = "A slot that is trained for minutes ends the sink of a genuine model and costs no loss; controls do not."
RULE = (
    "with the slot and the penalty, in every order of the data: alpha_1 is at most that of uniform attention, the loss "
    "at most .01 nats above that of LoRA alone on the text of the training and at most the original's on the others, "
    "forgetting the first token costs at most .01 nats, and at most .05 more than forgetting the second, int8 per "
    "tensor a tenth, no entry is above 100 medians; controls leave a sink of alpha_1 .05 above uniform "
    "attention, and the slot of the sixth token adds .02 nats"
)
MODELS = text_models()
STEPS, SMOKE_STEPS = 40, 2
WATCH_EVERY = 10  # steps between two points of a curve
ORDERS = 3  # of the data
LENGTH, SEQUENCES = 64, 16
LONG, LONG_SEQUENCES = 512, 6
AS_IS, SLOT, FREE = "as it is", "slot, penalty", "slot, no penalty"
OTHER, LORA, PENALTY = "slot and penalty of the sixth token", "LoRA alone", "LoRA, penalty"
TRAINED = "docstrings"
OTHERS = ("Python code", "package descriptions")
CURVE, TOKENS = "docstrings, while it trains", "tokens trained on"
TEXT, ORDER = "text", "order"
ROUNDED_PART, BY_ROUNDING = "what is rounded", "added by rounding"
BITS = (8, 4)
ADDED, OVER_LORA, RIGHT, WRITES = "added loss", "loss over LoRA alone", "capitals right", "goes on"
ARMS: Mapping[str, Mapping[str, Any]] = {
    LORA: {"slots": NoAddedSlots(), "penalty": 0.0},
    PENALTY: {"slots": NoAddedSlots()},
    SLOT: {"slots": AddedKeyValue()},
    FREE: {"slots": AddedKeyValue(), "penalty": 0.0},
    OTHER: {"slots": AddedKeyValue(), "position": 5},
}
Row = dict[str, Cell]


def recipes(case: Case, progress: Progress) -> Iterator[tuple[str, MendRecipe]]:
    """The trainings of a model: every arm in every order of the data, and the first order alone at scale smoke.

    Models of ours need no peft: all of their weights are trained in place of LoRA.
    """
    steps, orders, weights = (STEPS, ORDERS, Lora()) if case.recipe is None else (SMOKE_STEPS, 1, AllWeights())
    plain = mend_recipe(case.source, length=LENGTH)
    plain = replace(plain, data=plain.data.prepare(cache_folder(), progress("reading texts")).recipe)
    settings: dict[str, Any] = {"lr": 1e-4, "steps": steps, "watch_every": steps, "save_every": 20, "bf16": True}
    often = {"watch_every": min(WATCH_EVERY, steps), "until": 0.0}
    for order in range(orders):
        for name in ARMS:
            trained = weights if name in (LORA, PENALTY) else plain.trained
            watched = often if name == SLOT else {}
            yield name, replace(plain, seed=order, trained=trained, **{**settings, **watched, **ARMS[name]})


@dataclass(frozen=True)
class Read:
    """Texts of one kind, with BOS where the model begins with it, and what the model loses on them as it is."""

    kind: str
    tokens: Tokens
    plain: Tensor

    def row(self, subject: HuggingFaceSubject, skips: int, control: Tensor | None) -> tuple[Row, Tensor]:
        """A row of the model as it is now, and the losses of the tokens that it predicts in every arm."""
        tokens = self.tokens[:, skips:]
        loss = token_losses(subject, tokens)
        cells = worth(subject, tokens, self.plain.shape[1], loss)
        loss = loss[:, -self.plain.shape[1] :]
        row: Row = {TEXT: self.kind, **cells, **over_uniform(cells), **mean_cells(ADDED, (loss - self.plain).mean(1))}
        return row | (mean_cells(OVER_LORA, (loss - control).mean(1)) if control is not None else {}), loss

    def rounded(self, subject: HuggingFaceSubject, skips: int) -> Iterator[Row]:
        """Returns the loss added by rounding residuals, weights and caches, with scales of several kinds."""
        tokens, nothing = self.tokens[:, skips:], quantising.nothing
        full = token_losses(subject, tokens)

        def row(part: str, bits: int, scales: str, loss: Tensor) -> Row:
            added = mean_cells(BY_ROUNDING, (loss - full).mean(1))
            return {TEXT: self.kind, ROUNDED_PART: f"{part}, {bits} bits, a scale per {scales}", **added}

        for bits in BITS:
            for scales, over in quantising.GRAINS.items():
                edit = quantising.Quantise(bits, over, nothing)
                yield row("residuals", bits, scales, token_losses(subject, tokens, [edit]))
            for scales, over in quantising.SIDES.items():
                with quantising.quantised_weights(subject, bits, over, nothing):
                    yield row("weights", bits, scales, token_losses(subject, tokens))
            for scales, of in quantising.CACHE_GRAINS.items():
                yield row("cache", bits, scales, token_losses(subject, tokens, [quantising.RoundedCache(bits, *of)]))


def measure(case: Case, progress: Progress) -> Table:
    """A row for the model as it is, each arm and order, another for what it knows and writes, and curves of the slots.

    The slots and LoRA of the first order are measured on other kinds of text too, and the slots with several kinds of
    rounding.
    """
    subject = case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"a mended model is one of transformers; {subject.name} is run by another library")
    arms = [*recipes(case, progress)]
    on_row, rows, cache = progress(f"mending {subject.name}"), list[Row](), cache_folder()
    texts, begin = _texts(case, arms[0][1], progress), int(arms[0][1].data.bos)
    reads = [Read(kind, tokens, token_losses(subject, tokens)[:, begin:]) for kind, tokens in texts]
    rows += [_named(case, AS_IS, None, read.row(subject, 0, None)[0]) for read in reads]
    rows.append(_named(case, AS_IS, None, _told(case, 0)))
    rows += [_named(case, AS_IS, None, row) for read in reads[:2] for row in read.rounded(subject, 0)]
    controls: dict[tuple[int, str], Tensor] = {}
    for done, (name, recipe) in enumerate(arms):
        on_row(done, len(arms))
        run = cache / "runs" / recipe.key()
        history = mended(recipe, run, cache).history
        rows += [_named(case, name, recipe.seed, row) for row in (curve(recipe, history) if name == SLOT else ())]
        with_adapter(subject.model, run / "adapter")
        try:
            for read in reads:
                is_further = read.kind not in (TRAINED, *OTHERS)
                if (read.kind != TRAINED and recipe.seed) or (is_further and name not in (SLOT, LORA)):
                    continue
                row, loss = read.row(subject, recipe.skips, controls.get((recipe.seed, read.kind)))
                if name == LORA:
                    controls[recipe.seed, read.kind] = loss
                rows.append(_named(case, name, recipe.seed, row))
            rows.append(_named(case, name, recipe.seed, _told(case, recipe.skips)))
            if name == SLOT and not recipe.seed:
                rows += [
                    _named(case, name, 0, row) for read in reads[:2] for row in read.rounded(subject, recipe.skips)
                ]
        finally:
            without_adapter(subject.model)
    on_row(len(arms), len(arms))
    n = len(reads[0].tokens)
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}): n={n}, T={LENGTH} (n={LONG_SEQUENCES} at T={LONG}), BOS "
        f"{case.start}, with a slot never, {intervals(n)}; epsilon=0.3; trained on docstrings, {arms[0][1].steps} "
        f"steps of 4 x {LENGTH} tokens in bf16, rate 1e-4 (slots' keys .1), held-out docstrings measured in fp32; "
        f"losses in nats; curves: n={HELD}, means over orders; capitals: n={len(CAPITALS)}; rule: {RULE}"
    )
    return Table.of(CLAIM, note, with_all_columns(rows))


def curve(recipe: MendRecipe, history: History) -> Iterator[Row]:
    """Rows of a training's evaluations, by the tokens trained on."""
    for now in history:
        tokens = int(now["step"]) * recipe.batch * recipe.data.length
        cells = {LOSS: "valid_loss", SINK_1: "sink_1", ALPHA_1: "alpha_1", "Sink_*": "sink_slot"}
        values = {name: now.get(of) for name, of in cells.items()}
        yield {TEXT: CURVE, TOKENS: tokens, **values, UNIFORM: now["alpha_1_uniform"], ENTRY: now["peak_over_median"]}


def _named(case: Case, arm: str, order: int | None, row: Row) -> Row:
    return {**case.names, EDIT: arm, ORDER: order, **row}


def _texts(case: Case, recipe: MendRecipe, progress: Progress) -> Iterator[tuple[str, Tokens]]:
    """Held-out text of the training's kind, others' beginnings, and a few that are long, where the model reads them."""
    cache, on_file = cache_folder(), progress("reading texts")
    n = case.size(SEQUENCES, LENGTH)[0] if case.recipe is None else 4
    yield TRAINED, recipe.data.prepare(cache, on_file).sample(n, *HELD_OUT)
    texts, start = texts_by_kind(cache, on_file), Bos.ALWAYS if recipe.data.bos else Bos.NEVER
    to_tokens = TextToTokens(case.subject.tokenizer, start)
    given = {} if case.text is None else domains_of(case.text)
    for kind, of in {**{kind: texts[kind] for kind in OTHERS}, **given}.items():
        yield kind, to_tokens.of_length(of, LENGTH, n, kind).tokens
    if case.recipe is None:
        kind = f"{OTHERS[0]}, T={LONG}"
        yield kind, to_tokens.of_length(texts[OTHERS[0]], LONG, min(n, LONG_SEQUENCES), kind).tokens


@torch.no_grad()
def _told(case: Case, skips: int) -> Row:
    """How many capitals a model knows, and how it goes on after a beginning, by the likeliest tokens."""
    subject, tokenizer = case.subject, case.subject.tokenizer
    assert tokenizer is not None and isinstance(subject, HuggingFaceSubject)
    start = [] if skips or case.start is not Bos.ALWAYS else [tokenizer.bos_token_id]

    def goes_on(text: str, tokens: int) -> str:
        ids = torch.tensor([start + tokenizer.encode(text, add_special_tokens=False)], device=subject.device)
        given = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        return tokenizer.decode(subject.model.generate(ids, **given)[0, ids.shape[1] :])

    right = [
        goes_on(f"The capital of {name} is the city of", 3).strip().startswith(of) for name, of in CAPITALS.items()
    ]
    cells = rate_cells(RIGHT, torch.tensor(right).double())
    return {TEXT: "prompts", **cells, WRITES: goes_on("The weather in Paris is", 20)}


def digest(table: Table) -> Table:
    """A row for each arm of each model: means over orders, on the text of the training."""
    columns = (SINK_1, ALPHA_1, UNIFORM, "Sink_2", "Sink_*", ADDED, OVER_LORA, EVICTED, OVER_SECOND, ENTRY)
    return _means(table.where(**{TEXT: TRAINED, ROUNDED_PART: None}), EDIT, columns)


def draw(table: Table) -> go.Figure:
    """The curves of the trainings of the slots, means over orders of the data."""
    columns = (LOSS, ALPHA_1, "Sink_*", ENTRY)
    means = _means(table.where(**{TEXT: CURVE}), TOKENS, (*columns, UNIFORM))
    rows = tuple({**row, f"null {ALPHA_1}": row[UNIFORM]} for row in means.records())
    return sweep_figure(Table.of("The slots along their training", table.note, rows), TOKENS, columns, by=MODEL)


def _means(rows: Table, column: str, quantities: Sequence[str]) -> Table:
    """The mean of each model's rows over orders, by the values of a column."""
    models = {model: means_by(rows.where(**{MODEL: model}), column, quantities) for model in unique_values(rows, MODEL)}
    return Table.of(
        rows.title, rows.note, tuple({MODEL: name, **row} for name, of in models.items() for row in of.records())
    )


def _of(arm: str, *texts: str) -> Sequence[Mapping[str, Cell]]:
    return [{EDIT: arm, TEXT: text} for text in texts]


def _control(arm: str) -> Rule:
    """A control keeps a sink."""
    claim = f"{arm} leaves a sink: alpha_1 is .05 above uniform attention"
    return within(claim, OVER_UNIFORM, {EDIT: arm, TEXT: TRAINED}, low=0.05)


_SLOT, _AS_IS = ({EDIT: arm, TEXT: TRAINED} for arm in (SLOT, AS_IS))
RULES: Sequence[Rule] = tuple(
    of_each(rule)
    for rule in (
        within("the first token has no more than uniform attention gives", OVER_UNIFORM, _SLOT, high=0.0),
        within("the loss is at most .01 nats above that of LoRA alone", OVER_LORA, _SLOT, high=0.01),
        *(
            within(f"on {text['text']} the loss is at most the original's", ADDED, text, high=0.0)
            for text in _of(SLOT, *OTHERS)
        ),
        within("forgetting the first token costs at most .01 nats", EVICTED, _SLOT, high=0.01),
        within("forgetting the first token costs at most .05 nats more than the second", OVER_SECOND, _SLOT, high=0.05),
        above("int8 with one scale costs a tenth", ROUNDED, _AS_IS, _SLOT, by=(MODEL,), bound=times(10)),
        within("no entry is above 100 medians", ENTRY, _SLOT, high=100.0),
        *map(_control, (LORA, PENALTY, FREE)),
        within("the slot and penalty of the sixth token add .02 nats", ADDED, {EDIT: OTHER, TEXT: TRAINED}, low=0.02),
    )
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest, only_by_name=(Scale.REAL,))
