"""A slot against a shared prefix: losses of the same tokens, and with weights and inputs of linear maps rounded."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from torch import Tensor, nn

from sinkinterp.applications.mend import SEEN, mend_recipe
from sinkinterp.applications.quantising import GRAINS, SIDES, fake_quantised, nothing, quantised_weights
from sinkinterp.backends.adapters import AddedKeyValue, NoAddedSlots, add_slots, remove_slots
from sinkinterp.backends.anatomy import linear_maps
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress, counting
from sinkinterp.data.tokens import TextToTokens, Tokens
from sinkinterp.files import cache_folder
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.quantities import TokenLosses, token_losses
from sinkinterp.metrics.estimates import intervals, mean_cells
from sinkinterp.plots.theme import sweep_figure, unique_values
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import EDIT, INPUT, LENGTH, LOSS, MODEL, Cell, Table, no_estimate

from .shared.cases import Case, of_first_model, on_models
from .shared.corpora import BOOKS, absent, corpora, passages, tokens_of
from .shared.genuine import text_models
from .shared.installed import texts_by_kind
from .shared.prefixes import (
    LONGEST,
    TRIED,
    before,
    best_token,
    kept_in_cache,
    largest_over_median,
    loss_behind,
    outlier_tokens,
)
from .shared.rules import MARGIN, checked, within

CLAIM = "A slot in place of the sink reads text better than a shared prefix token, or costs less in eight bits."
RULE = (
    "in two of three models, on every text and length: the slot's loss is .02 nats below that of the shared token; or "
    "W8A8 costs at most half of what it costs with the shared token, per token and per tensor; checks: slot and "
    "shared token draw .05 more than uniform attention gives them, a loss with the prefix in the cache is that with "
    "its tokens in the text to .001 nats, and 16 bits change the loss by at most .002 nats"
)
# CushionCache (2406.12016) and PrefixQuant (2410.05265): a prefix in the cache takes outliers out of activations
MODELS = text_models()
PLAIN, SLOT, SHARED, CHOSEN, BOS = "nothing", "mend's slot", "a shared token", "PrefixQuant's choice", "BOS"
OTHER_SLOT, ANY = "control: slot of the sixth token", "control: a random token"
OTHER = 5  # the position of the control, as in `moved_sink`
JUDGED = (PLAIN, SLOT, SHARED)
C4, CODE, LENGTH_SEEN = "C4", "Python code", 64
TOKENS_FOR_CHECKS, TEXTS_FOR_OUTLIERS, TEXTS_FOR_A_TOKEN = 256, 8, 4
IN_FRONT, IN_FRONT_EXCESS = "alpha of what stands in front", "alpha of what stands in front over uniform"
FIRST, FIRST_EXCESS = "alpha of the text's first token", "alpha of the text's first token over uniform"
ADDED, OVER_SHARED, WORDS, TEXTS = "loss over that of nothing", "loss over that of a shared token", "prefix", "n"
LARGEST, CACHE_GAP = "largest input over the median token's", "cache against tokens, largest difference of a loss"
HALF = "{}, over half of the shared token's"
Way = tuple[int, int, str]  # bits of weights, bits of inputs, and what has a scale
NULL = "W16A16 per tensor"  # 16 bits cost nothing, so what remains is the error of the protocol
WAYS: dict[str, Way] = {f"W{w}A8 per {grain}": (w, 8, grain) for w in (8, 4) for grain in ("token", "tensor")}
WAYS[NULL] = (16, 16, "tensor")
W8 = tuple(way for way in WAYS if way.startswith("W8"))
Losses = dict[str, TokenLosses]


@dataclass(frozen=True)
class Part:
    """A kind of text of `most` tokens; sizes: how many texts the smaller and the larger models read."""

    text: str
    most: int
    sizes: tuple[int, int]
    fronts: tuple[str, ...] = JUDGED
    ways: tuple[str, ...] = W8


PARTS = (
    Part(C4, 64, (16, 8), (*JUDGED, CHOSEN, BOS, OTHER_SLOT, ANY), (*W8, "W4A8 per token", "W4A8 per tensor", NULL)),
    Part(BOOKS, 64, (16, 8)),
    Part(CODE, 64, (16, 8)),
    Part(C4, 512, (4, 4)),
)


@dataclass(frozen=True)
class Front:
    """What stands before every text: a slot in every head (of the token at a position), or the tokens of a prefix."""

    name: str
    prefix: tuple[int, ...] = ()
    position: int | None = None

    def ways(self, part: Part) -> list[str]:
        """How numbers are rounded behind it; controls have eight bits alone, and nothing in front the null."""
        is_control = self.name in (OTHER_SLOT, ANY)
        return [way for way in part.ways if (way != NULL or self.name == PLAIN) and (way in W8 or not is_control)]

    @contextmanager
    def added(self, subject: HuggingFaceSubject, seen: Tokens) -> Iterator[None]:
        """In the block, the model has the slot, if this is one."""
        slots = NoAddedSlots() if self.position is None else AddedKeyValue()
        without_slots = add_slots(subject.model, slots, seen, self.position or 0)
        try:
            yield
        finally:
            remove_slots(subject.model, without_slots)

    def attention(self, subject: HuggingFaceSubject, texts: Tokens) -> dict[str, Cell]:
        """What the front receives, all of it together, and what the first token of the text does."""
        report = measure_model(subject, before(self.prefix, texts), progress=False)
        after, excess = len(self.prefix), report.importance - report.null
        front, front_excess = (x[..., :after].sum(-1) for x in (report.importance, excess))
        if report.slot_importance is not None and report.slot_null is not None:
            front, front_excess = report.slot_importance, report.slot_importance - report.slot_null
        named = {IN_FRONT: front, IN_FRONT_EXCESS: front_excess}
        named |= {FIRST: report.importance[..., after], FIRST_EXCESS: excess[..., after]}
        return {name: cell for of, x in named.items() for name, cell in mean_cells(of, x.mean((1, 2))).items()}


@contextmanager
def rounded_inputs(subject: HuggingFaceSubject, bits: int, over: tuple[int, ...]) -> Iterator[None]:
    """In the block, the linear maps of all blocks read rounded inputs."""

    def rounded(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        return (fake_quantised(x, bits, over), *rest)

    with ExitStack() as stack:
        for module in [one.module for block in subject.modules.blocks for one in linear_maps(block)]:
            stack.callback(module.register_forward_pre_hook(rounded).remove)
        yield


@dataclass(frozen=True)
class Reading:
    """The losses of a part's texts behind a front, by the way of rounding, and the cells of its checks."""

    losses: Losses
    checks: dict[str, Cell]


def read(
    subject: HuggingFaceSubject, front: Front, seen: Tokens, parts: Sequence[tuple[Part, Tokens]]
) -> list[Reading]:
    """The reading of every part. The keys and values in front are those of the exact model, and are not rounded."""
    with front.added(subject, seen):
        cache = kept_in_cache(subject, front.prefix)
        readings = [_exact(subject, front, cache, texts) for _, texts in parts]
        asked = [front.ways(part) for part, _ in parts]
        for bits in dict.fromkeys(WAYS[way][0] for ways in asked for way in ways):
            with quantised_weights(subject, bits, SIDES["channel"], nothing):
                for reading, ways, (_, texts) in zip(readings, asked, parts, strict=True):
                    for way in (way for way in ways if WAYS[way][0] == bits):
                        _, of_inputs, grain = WAYS[way]
                        with rounded_inputs(subject, of_inputs, GRAINS[grain]):
                            reading.losses[way] = loss_behind(subject, cache, texts)
    return readings


def _exact(subject: HuggingFaceSubject, front: Front, cache: Any, texts: Tokens) -> Reading:
    """The reading without rounding; its checks are of the first texts."""
    loss, largest = largest_over_median(subject, cache, texts)
    some = texts[: max(1, TOKENS_FOR_CHECKS // texts.shape[1])]
    checks: dict[str, Cell] = {**front.attention(subject, some), **mean_cells(LARGEST, largest), CACHE_GAP: None}
    if front.prefix:
        of_tokens = token_losses(subject, before(front.prefix, some))[:, -loss.shape[1] :]
        checks[CACHE_GAP] = (of_tokens - loss[: len(some)]).abs().max().item()
    return Reading({LOSS: loss}, checks)


def measure(case: Case, progress: Progress) -> Table:
    """A row for each text, length and front, with the losses of the same tokens."""
    subject = case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"slots are added to transformers models; {subject.name} is run by another library")
    begins, seen = int(case.start is Bos.ALWAYS), seen_texts(case, progress)
    parts = [(part, texts_of(case, part, progress)[:, begins:]) for part in parts_of(case)]
    fronts, readings = fronts_of(case, subject, seen), dict[tuple[Part, Front], Reading]()
    pairs = [(most, front) for most in dict.fromkeys(part.most for part, _ in parts) for front in fronts]
    for most, front in counting(pairs, progress(f"reading behind slots and prefixes with {subject.name}")):
        asked = [(part, texts) for part, texts in parts if part.most == most and front.name in part.fronts]
        found = read(subject, front, seen, asked)
        readings |= {(part, front): reading for (part, _), reading in zip(asked, found, strict=True)}
    rows = list[dict[str, Cell]]()
    for part, texts in parts:
        text = corpora()[0] if part.text == C4 else part.text
        first = {**case.names, INPUT: text, LENGTH: texts.shape[1], TEXTS: len(texts)}
        of_part = {front: readings[part, front] for front in fronts if (part, front) in readings}
        rows += [{**first, **row} for row in rows_of(subject, of_part)]
    return Table.of(CLAIM, "; ".join(filter(None, (_note(case), absent()))), tuple(rows))


def parts_of(case: Case) -> list[Part]:
    """The parts whose texts are here, and of the longer ones those that the model can read."""
    context = case.subject.shape.n_ctx or PARTS[-1].most
    return [
        part
        for part in PARTS
        if part.most in (LENGTH_SEEN, min(part.most, context)) and (part.text != BOOKS or passages())
    ]


def seen_texts(case: Case, progress: Progress) -> Tokens:
    """The texts that `mend` begins its slots with; prefixes are chosen by them too."""
    data = mend_recipe(case.source, length=LENGTH_SEEN).data
    return data.prepare(cache_folder(), progress("reading texts")).sample(SEEN, 0, 1)


def texts_of(case: Case, part: Part, progress: Progress) -> Tokens:
    """The texts of a part, `most` tokens each behind the BOS of models that begin with it."""
    begins, context = int(case.start is Bos.ALWAYS), case.subject.shape.n_ctx or part.most
    size = part.sizes[case.most is not None], min(part.most + begins, context)
    if part.text == C4:
        return tokens_of(case, corpora()[0], size, progress)
    texts = passages() if part.text == BOOKS else texts_by_kind(cache_folder(), progress("reading texts"))[CODE]
    return TextToTokens(case.subject.tokenizer, case.start).of_length(texts, size[1], size[0], part.text).tokens


def fronts_of(case: Case, subject: HuggingFaceSubject, seen: Tokens) -> list[Front]:
    """Every front that the model can have; tokens are chosen by texts that are not measured."""
    inner = seen[:, int(case.start is Bos.ALWAYS) :]
    chosen = outlier_tokens(case, subject, inner[:TEXTS_FOR_OUTLIERS])
    shared = best_token(case, subject, inner[:TEXTS_FOR_A_TOKEN], chosen)
    drawn = int(inner[0, inner.shape[1] // 2])  # a token from the middle of a text
    bos = [] if case.bos_token is None else [Front(BOS, (case.bos_token,))]
    others = [Front(OTHER_SLOT, position=OTHER), Front(ANY, (drawn,))]
    prefixes = [Front(SHARED, (shared,)), *([Front(CHOSEN, tuple(chosen))] if chosen else []), *bos]
    return [Front(PLAIN), Front(SLOT, position=0), *prefixes, *others]


def rows_of(subject: HuggingFaceSubject, readings: dict[Front, Reading]) -> Iterator[dict[str, Cell]]:
    """A row for each front."""
    losses = {front.name: {way: loss.mean(1) for way, loss in of.losses.items()} for front, of in readings.items()}
    for front, reading in readings.items():
        words = " ".join(repr(subject.label(token)) for token in front.prefix)
        yield {EDIT: front.name, WORDS: words, **cells_of(losses, front.name), **reading.checks}


def cells_of(losses: dict[str, dict[str, Tensor]], name: str) -> dict[str, Cell]:
    """The loss behind a front, over those of nothing and of a shared token, and what each rounding adds to it."""
    own, shared = losses[name], losses[SHARED]
    cells = mean_cells(LOSS, own[LOSS]) | mean_cells(ADDED, own[LOSS] - losses[PLAIN][LOSS])
    cells |= mean_cells(OVER_SHARED, own[LOSS] - shared[LOSS])
    for way in WAYS:
        half = HALF.format(way)
        cells |= mean_cells(way, own[way] - own[LOSS]) if way in own else no_estimate(way)
        is_asked = way in own and way in shared
        cost, other = (of[way if is_asked else LOSS] - of[LOSS] for of in (own, shared))
        cells |= mean_cells(half, cost - other / 2) if is_asked else no_estimate(half)
    return cells


def _note(case: Case) -> str:
    subject, (small, large) = case.subject, PARTS[0].sizes
    n = small if case.most is None else large
    tried = ", ".join(map(repr, TRIED))
    parts = (
        f"{subject.name} ({subject.revision or 'as saved'}), slots of `mend`: means over {SEEN} texts of docstrings",
        f"BOS {case.start}, in whose place they are; no text has a BOS unless it is the prefix",
        "prefixes: keys and values in the cache, of the model that is not rounded",
        f"a shared token: the best of {tried}, BOS and PrefixQuant's, on {TEXTS_FOR_A_TOKEN} of these texts",
        f"PrefixQuant's choice: at most {LONGEST} outlier tokens of {TEXTS_FOR_OUTLIERS} of these texts",
        f"{LOSS} in nats, of the same tokens, all but the first of a text",
        "W: weights, a scale per row; A: inputs of linear maps, scales of a text; W8A8, W4A8: nats added",
        f"{NULL}: null, 0; checks: of the first {TOKENS_FOR_CHECKS} tokens",
        "" if passages() else f"{BOOKS} are not read: their file is not in shared/data",
        intervals(n),
        f"rule: {RULE}",
    )
    return "; ".join(filter(None, parts))


def draw(table: Table) -> go.Figure:
    """The losses behind every front in the first model, on the first text, exact and rounded."""
    first = {name: table.records()[0][name] for name in (INPUT, LENGTH)}
    rows = of_first_model(table.where(**first), "A slot, or tokens before the text")
    return sweep_figure(rows, EDIT, (ADDED, *W8, IN_FRONT))


def in_two_models(rule: Rule) -> Rule:
    """The rule for two models of three, by each model's own verdict; a refused model shows neither."""

    def decide(runs: Table) -> Decision:
        verdicts = {str(name): rule.verdict(runs.where(**{MODEL: name})) for name in unique_values(runs, MODEL)}
        counts = [sum(of.outcome is one for of in verdicts.values()) for one in (Outcome.HOLDS, Outcome.FAILS)]
        reason = "; ".join(f"{name}, {of.outcome}: {of.reason}" for name, of in verdicts.items())
        if all(of.outcome is Outcome.REFUSED for of in verdicts.values()):
            return Outcome.REFUSED, reason
        return (True if counts[0] >= 2 else False if counts[1] >= 2 else None), reason

    return Rule(rule.claim, decide)


def _checked(claim: str, column: str, high: float) -> Rule:
    """The rule about the slot's rows, where every edit did what its name says."""
    rule = within(claim, column, {EDIT: SLOT}, high=high)
    for front in (SLOT, SHARED):
        rule = checked(rule, IN_FRONT_EXCESS, {EDIT: front}, low=MARGIN)
    rule = checked(rule, CACHE_GAP, {EDIT: SHARED}, high=1e-3)
    return in_two_models(checked(rule, NULL, {EDIT: PLAIN, INPUT: C4, LENGTH: 64}, low=-2e-3, high=2e-3))


READS_BETTER = _checked("the slot's loss is .02 nats below that of the shared token", OVER_SHARED, -0.02)
COSTS_HALF: Sequence[Rule] = tuple(
    _checked(f"{way} costs the slot at most half of the shared token's", HALF.format(way), 0.0) for way in W8
)


def earns(runs: Table) -> Decision:
    """Whether the slot earns its row: it reads better, or both roundings cost half."""
    reads, *costs = (rule.verdict(runs).outcome for rule in (READS_BETTER, *COSTS_HALF))
    cost = next((one for one in (Outcome.FAILS, Outcome.REFUSED, Outcome.UNDECIDED) if one in costs), Outcome.HOLDS)
    order = (Outcome.HOLDS, Outcome.REFUSED, Outcome.UNDECIDED, Outcome.FAILS)
    return next(one for one in order if one in (reads, cost)), f"reads better: {reads}; costs half: {cost}"


RULES: Sequence[Rule] = (Rule("the slot earns its row", earns), READS_BETTER, *COSTS_HALF)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
