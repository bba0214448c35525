"""A slot against a shared prefix: losses of the same tokens, and with the inputs of linear maps in eight bits."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from sinkinterp.applications.outliers import GRAINS, SIDES, fake_quantised, nothing, quantised_weights
from sinkinterp.applications.streaming import Loss, loss_of
from sinkinterp.backends.added_slots import AddedKeyValue, NoAddedSlots, add_slots, remove_slots
from sinkinterp.backends.anatomy.modules import linear_maps
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import intervals, mean_cells
from sinkinterp.plots.theme import sweep_figure, unique_values
from sinkinterp.runs.case import Case
from sinkinterp.runs.experiment import Decision, Outcome, Rule, of_first_model, on_models
from sinkinterp.table import EDIT, INPUT, LENGTH, LOSS, MODEL, Cell, Table

from .shared.corpora import absent, kinds, tokens_of
from .shared.genuine import text_models
from .shared.prefixes import LONGEST, before, best_prefix, outlier_tokens
from .shared.rules import within

CLAIM = "A slot reads text better than a shared prefix token, or costs less in eight bits."
RULE = (
    "in two of three models, on every text and length: the slot's loss is .02 nats below that of the shared token; "
    "W8A8 costs at most half of what it costs with the shared token, per token and per tensor"
)
# CushionCache (2406.12016) and PrefixQuant (2410.05265): a prefix in the cache takes outliers out of activations
MODELS = text_models()
SIZES = {64: (16, 8), 512: (4, 2)}  # texts, and those of the larger models, by the length; the first text alone is long
SEEN, SEEN_LENGTH = 16, 64
PLAIN, SLOT, SHARED, CHOSEN, BOS = "nothing", "a slot", "a shared token", "PrefixQuant's choice", "BOS"
ADDED, OVER_SHARED, WORDS, TEXTS = "loss over that of nothing", "loss over that of a shared token", "prefix", "n"
IN_FRONT, FIRST = "alpha of what stands in front", "alpha of the first token"
WAYS = {f"W{bits}A8 per {grain}": (bits, grain) for bits in (8, 4) for grain in ("token", "tensor")}
HALF = "{}, over half of the shared token's"


@dataclass(frozen=True)
class Front:
    """What stands before every text: a slot in every head, or the tokens of a prefix."""

    name: str
    prefix: tuple[int, ...] = ()

    @contextmanager
    def added(self, subject: HuggingFaceSubject, seen: Tokens) -> Iterator[None]:
        """In the block, the model has the slot, if this is one."""
        slots = AddedKeyValue() if self.name == SLOT else NoAddedSlots()
        without_slots = add_slots(subject.model, slots, seen)
        try:
            yield
        finally:
            remove_slots(subject.model, without_slots)

    def losses(self, subject: HuggingFaceSubject, texts: Tokens) -> dict[str, Loss]:
        """The loss of every text's tokens but the first, exact and by each way of rounding."""
        tokens, targets = before(self.prefix, texts), texts.shape[1] - 1
        found = {LOSS: loss_of(subject, tokens)[:, -targets:]}
        for name, (bits, grain) in WAYS.items():
            with (
                quantised_weights(subject, bits, SIDES["channel"], nothing),
                rounded_inputs(subject, 8, GRAINS[grain], len(self.prefix)),
            ):
                found[name] = loss_of(subject, tokens)[:, -targets:]
        return {name: loss.mean(1) for name, loss in found.items()}

    def attention(self, subject: HuggingFaceSubject, texts: Tokens) -> dict[str, Cell]:
        """What the front receives, all of it together, and what the first token of the text does."""
        report = measure_model(subject, before(self.prefix, texts), progress=False)
        alpha, slot = report.importance.mean((1, 2)), report.slot_importance
        front = alpha[:, : len(self.prefix)].sum(1) if slot is None else slot.mean((1, 2))
        return mean_cells(IN_FRONT, front) | mean_cells(FIRST, alpha[:, len(self.prefix)])


@contextmanager
def rounded_inputs(subject: HuggingFaceSubject, bits: int, over: tuple[int, ...], exact: int) -> Iterator[None]:
    """In the block, the linear maps of all blocks read rounded inputs, but for the first `exact` tokens of a text."""

    def rounded(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        stays = torch.arange(x.shape[-2], device=x.device)[:, None] < exact
        return (fake_quantised(x, bits, over, stays), *rest)

    with ExitStack() as stack:
        for module in [one.module for block in subject.modules.blocks for one in linear_maps(block)]:
            stack.callback(module.register_forward_pre_hook(rounded).remove)
        yield


def measure(case: Case, progress: Progress) -> Table:
    """A row for each text, length and front, with the losses of the same tokens."""
    subject = case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"slots are added to transformers models; {subject.name} is run by another library")
    begins = int(case.start is Bos.ALWAYS)
    seen = case.tokens((SEEN, SEEN_LENGTH), progress, case.start).tokens[:SEEN]
    fronts, rows = fronts_of(case, subject, seen[:, begins:]), list[dict[str, Cell]]()
    parts = [(text, most) for most in SIZES for text in (kinds() if most == SEEN_LENGTH else kinds()[:1])]
    on_row = progress(f"reading behind slots and prefixes with {subject.name}")
    for text, most in parts:
        size = (SIZES[most][case.most is not None], case.size(length=most)[1])
        texts, losses = tokens_of(case, text, size, progress)[:, begins:], dict[str, dict[str, Tensor]]()
        for front in fronts:
            on_row(len(rows), len(parts) * len(fronts))
            with front.added(subject, seen):
                losses[front.name] = front.losses(subject, texts)
                words = " ".join(repr(subject.label(token)) for token in front.prefix)
                first = {**case.names, INPUT: text, LENGTH: size[1], TEXTS: size[0], EDIT: front.name, WORDS: words}
                rows.append({**first, **front.attention(subject, texts)})
        for row in rows[-len(fronts) :]:
            row |= cells_of(losses, str(row[EDIT]))
    on_row(len(rows), len(rows))
    note = (
        f"{subject.name} ({subject.revision or 'as saved'}), slots: means over {SEEN} docstrings, BOS {case.start}, in "
        f"whose place they are; no other front has a BOS unless it is one; a shared token: the best of a few; "
        f"PrefixQuant's choice: at most {LONGEST} outlier tokens of these docstrings; {LOSS} in nats, of the same "
        f"tokens; W: weights, a scale per row; A: inputs of linear maps, scales of a text, what stands in front is not "
        f"rounded; W8A8 and W4A8: nats added; {intervals(SIZES[SEEN_LENGTH][0])}; rule: {RULE}"
    )
    return Table.of(CLAIM, "; ".join(filter(None, (note, absent()))), tuple(rows))


def fronts_of(case: Case, subject: HuggingFaceSubject, seen: Tokens) -> list[Front]:
    """Every front that the model can have; the tokens are chosen by texts that are not measured."""
    bos = [] if case.bos_token is None else [Front(BOS, (case.bos_token,))]
    prefixes = (
        Front(SHARED, (best_prefix(case, subject, seen),)),
        Front(CHOSEN, tuple(outlier_tokens(case, subject, seen))),
    )
    return [Front(PLAIN), Front(SLOT), *(front for front in prefixes if front.prefix), *bos]


def cells_of(losses: dict[str, dict[str, Tensor]], name: str) -> dict[str, Cell]:
    """The loss behind a front, over those of nothing and of a shared token, and what each rounding adds to it."""
    own, shared = losses[name], losses[SHARED]
    cells = mean_cells(LOSS, own[LOSS]) | mean_cells(ADDED, own[LOSS] - losses[PLAIN][LOSS])
    cells |= mean_cells(OVER_SHARED, own[LOSS] - shared[LOSS])
    for way in WAYS:
        cost, other = own[way] - own[LOSS], shared[way] - shared[LOSS]
        cells |= mean_cells(way, cost) | mean_cells(HALF.format(way), cost - other / 2)
    return cells


def draw(table: Table) -> go.Figure:
    """The losses behind every front in the first model, on the first text, exact and rounded."""
    first = {name: table.records()[0][name] for name in (INPUT, LENGTH)}
    rows = of_first_model(table.where(**first), "A slot, or tokens before the text")
    return sweep_figure(rows, EDIT, (ADDED, "W8A8 per tensor", "W4A8 per token", IN_FRONT))


def _in_two_models(rule: Rule) -> Rule:
    """The rule for two models of three, by each model's own verdict."""

    def decide(runs: Table) -> Decision:
        verdicts = {str(name): rule.verdict(runs.where(**{MODEL: name})) for name in unique_values(runs, MODEL)}
        counts = [sum(of.outcome is one for of in verdicts.values()) for one in (Outcome.HOLDS, Outcome.FAILS)]
        reason = "; ".join(f"{name}, {of.outcome}: {of.reason}" for name, of in verdicts.items())
        least = min(2, len(verdicts))
        return (True if counts[0] >= least else False if counts[1] >= least else None), reason

    return Rule(rule.claim, decide)


RULES: Sequence[Rule] = (
    _in_two_models(
        within("the slot's loss is .02 nats below that of the shared token", OVER_SHARED, {EDIT: SLOT}, high=-0.02)
    ),
    *(
        _in_two_models(
            within(f"{way} costs the slot at most half of the shared token's", HALF.format(way), {EDIT: SLOT}, high=0.0)
        )
        for way in WAYS
        if way.startswith("W8")
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
