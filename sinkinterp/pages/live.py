"""The live page: a model that answers its questions, from a prompt and edits to maps, sinks and the next token.

The page asks its own server, and nothing else. Its figures are those of `view`. It carries the types of the JSON that
both exchange, and checks every answer by them. `question_of` checks what comes back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from plotly.offline import get_plotlyjs

from ..attention import Edit, ModelShape, Sigmoid
from ..backends.load import subject_of
from ..backends.subject import Subject, text_to_tokens
from ..checks import InputError, choice, finite_number, refusing, whole_number
from ..data.choices import Bos
from ..data.tokens import TokenSet, ids_in
from ..files import data_of
from ..interventions.attention_layers import AddSinkLogit, PatchNormalization, RemoveColumn
from ..interventions.changes import ChangeOutputs, ChangeResidual, RemovePosition, SwapPositions, Zero
from ..measurement.activation_patching import RESTORED, activation_patching
from ..metrics.metric import LogitsMetric
from ..metrics.residuals import PEAK_OVER_MEDIAN, TOP_ENTRIES
from ..report.readings import TokenText, short_name
from ..report.report import Report
from .atlas import Reader, Run, reader_of
from .atlas_page import EPSILON, FIGURES, PageData, encode, packed_plotly
from .page import Scripts, asset, declared, document, rendered
from .serve import serve

MOST_EDITS = 20
LARGEST = 10**6  # of any number in an edit


@dataclass(frozen=True)
class EditData:
    """An edit: one of `KINDS`, and its numbers in their order."""

    kind: str
    numbers: list[float]


@dataclass(frozen=True)
class Question:
    """A question of the page: a prompt, and edits of the model that reads it.

    other: a prompt into whose run the activations of the first are patched; empty for no such map.
    """

    prompt: str
    edits: list[EditData]
    other: str


@dataclass(frozen=True)
class NumberData:
    """A number that an edit takes: its words, whether may be any, and its value at first."""

    words: str
    is_real: bool
    start: float


@dataclass(frozen=True)
class KindData:
    """A kind of edit: its title, with {0}, {1}, ... for its numbers."""

    title: str
    numbers: list[NumberData]


@dataclass(frozen=True)
class StartData:
    """What the page holds before it asks. example: the prompt that it begins with. ask: the path of questions."""

    model: str
    intro: str
    example: str
    ask: str
    kinds: dict[str, KindData]


@dataclass(frozen=True)
class SuggestionData:
    """An edit to try, and what it asks."""

    title: str
    says: str
    edit: EditData


@dataclass(frozen=True)
class HeadlineData:
    """A number in every state, as text. token: the one that it is about, or nothing. note: what to compare it with."""

    label: str
    token: str
    values: list[str]
    note: str


@dataclass(frozen=True)
class NextData:
    """A likely next token, with its probability in every state."""

    token: str
    chances: list[float]


@dataclass(frozen=True)
class EntryData:
    """A residual entry among the largest, before the edits, and the edit that zeroes its dimension.

    size: its largest value over blocks, and `times` how many medians that is. It is among the largest before layers
    first to last.
    """

    position: int
    dim: int
    size: float
    times: float
    first: int
    last: int
    edit: EditData


@dataclass(frozen=True)
class AnswerData:
    """What the server answers. view, blocks: an atlas, as on the page of `view`. edits: as code would write them.

    restored: by block and position, what patching into the other prompt restores; empty without one.
    """

    view: PageData
    blocks: dict[str, str]
    edits: list[str]
    suggestions: list[SuggestionData]
    headline: list[HeadlineData]
    next: list[NextData]
    massive: list[EntryData]
    restored: list[list[float]]


def question_of(plain: Any) -> Question:
    """The question that JSON asks. Raises InputError for anything else."""
    check_question(plain)
    return Question(plain["prompt"], [EditData(**edit) for edit in plain.get("edits", [])], plain.get("other", ""))


@refusing
def check_question(plain: Any) -> Iterator[str]:
    """Raises InputError for what is no question in JSON."""
    if not isinstance(plain, dict) or not {"prompt"} <= plain.keys() <= {"prompt", "edits", "other"}:
        yield "a question has a prompt and edits"
    if not isinstance(plain["prompt"], str) or not isinstance(plain.get("other", ""), str):
        yield "the prompt is a text"
    edits = plain.get("edits", [])
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        yield f"edits are a list of at most {MOST_EDITS}"
    for edit in edits:
        if not isinstance(edit, dict) or edit.keys() != {"kind", "numbers"} or not isinstance(edit["kind"], str):
            yield "an edit has a kind and numbers"
        if not isinstance(edit["numbers"], list) or not all(type(n) in (int, float) for n in edit["numbers"]):
            yield "the numbers of an edit are a list of numbers"


def _span(layers: Sequence[int], first: int, last: int) -> list[int] | None:
    """Those of the layers that lie from the first to the last one; None for all of them."""
    chosen = [layer for layer in layers if first <= layer <= last]
    if not chosen or max(first, last) > layers[-1]:
        span = f"within {layers[0]} to {layers[-1]}; got {first} to {last}"
        raise InputError(f"layers go from a first to a last one, {span}")
    return None if len(chosen) == len(layers) else chosen


_WORDS = data_of("pages/templates/live/live.toml")
KINDS = _WORDS["kinds"]
REAL = "logit"  # the number of an edit that may be any; the others count
_MAKE: Mapping[str, Callable[..., Edit]] = {  # of the model's shape and the numbers of an edit
    "swap": lambda shape, position: SwapPositions(0, position),
    "column": lambda shape, position: RemoveColumn(positions=[position]),
    "zero": lambda shape, dim, *at: ChangeResidual(Zero(), layers=_span(range(shape.n_layers + 1), *at), dims=[dim]),
    "sigmoid": lambda shape, *at: PatchNormalization(Sigmoid(), layers=_span(shape.attention_layers, *at)),
    "sigmoid_head": lambda shape, layer, head: PatchNormalization(Sigmoid(), heads=[(layer, head)]),
    "sink_logit": lambda shape, logit, *at: AddSinkLogit(logit, layers=_span(shape.attention_layers, *at)),
    "off_by_one_head": lambda shape, layer, head: AddSinkLogit(0.0, heads=[(layer, head)]),
    "ablate_head": lambda shape, layer, head: ChangeOutputs(Zero(), heads=[(layer, head)]),
}


def edit_of(data: EditData, shape: ModelShape) -> Edit:
    """The edit. Raises InputError for a kind that does not exist, and for numbers that do not fit it."""
    names = choice(data.kind, KINDS, "kind of edit")["numbers"]
    if len(data.numbers) != len(names):
        raise InputError(f"the edit {data.kind!r} takes {', '.join(names)}; got {len(data.numbers)} numbers")
    return _MAKE[data.kind](shape, *map(_fitting, names, data.numbers))


def _fitting(name: str, value: float) -> int | float:
    number = finite_number(value, name, above=-LARGEST, below=LARGEST)
    return number if name == REAL else whole_number(int(number) if number.is_integer() else number, name, 0)


MOST_TOKENS = 256
MOST_LETTERS = 20_000  # of a prompt
LIMIT = 4_000_000  # bytes of the maps of an answer, before compression
TOP = 8  # next tokens of each state, and massive entries
NEXT_TOKEN = LogitsMetric("next_token", lambda logits, tokens: logits[:, -1].double().softmax(-1))
INSTRUMENTS = (NEXT_TOKEN, TOP_ENTRIES, PEAK_OVER_MEDIAN)


@dataclass(frozen=True)
class Session:
    """A model that answers questions one after the other. For a model without a tokenizer, a prompt is token ids."""

    subject: Subject
    bos: Bos = Bos.TOKENIZER
    _lock: Lock = field(default_factory=Lock)
    _unedited: dict[tuple[int, ...], Run] = field(default_factory=dict)  # of the latest prompt

    def __post_init__(self) -> None:
        if self.subject.n_keys is not None:
            raise InputError(f"{self.subject.name} has keys that are not tokens of the prompt")

    @property
    def most_tokens(self) -> int:
        """The longest prompt, in tokens."""
        return min(MOST_TOKENS, self.subject.shape.n_ctx or MOST_TOKENS)

    def answer(self, question: Any) -> dict[str, Any]:
        """The answer to a `Question`, as an `AnswerData`, both in JSON. Raises InputError for anything else."""
        asked = question_of(question)
        edits = [edit_of(edit, self.subject.shape) for edit in asked.edits]
        with self._lock:  # tokenizers, too, keep state between calls
            token_set = self._tokens(asked.prompt)
            reader = reader_of(self.subject, token_set, runs=2, limit=LIMIT)
            before = self._before(reader)
            runs = {"before": before, "after": reader.run(edits, INSTRUMENTS)} if edits else {"as it is": before}
            reports = [run.report for run in runs.values()]
            shown = reader.atlas(runs, self.subject.label)  # whose `tables` the page shows below its figures
            view, blocks = encode(shown)
            massive = massive_entries(before.report)
            answer = AnswerData(
                view=view,
                blocks=dict(blocks),
                edits=[repr(edit) for edit in edits],
                suggestions=self._suggestions(massive),
                headline=headline(reports, self.subject.label),
                next=next_tokens(reports, self.subject.label),
                massive=massive,
                restored=self._restored(token_set, asked.other),
            )
        return asdict(answer)

    def _before(self, reader: Reader) -> Run:
        key = tuple(reader.token_set.tokens[0].tolist())
        if key not in self._unedited:
            self._unedited.clear()
            self._unedited[key] = reader.run((), INSTRUMENTS)
        return self._unedited[key]

    def _tokens(self, prompt: str) -> TokenSet:
        if len(prompt) > MOST_LETTERS:
            raise InputError(f"the prompt has {len(prompt):,} letters; give at most {MOST_LETTERS:,}")
        if self.subject.tokenizer is None:
            token_set = ids_in(prompt, self.subject.shape.vocab, "prompt")
        else:
            to_tokens = text_to_tokens(self.subject, self.bos)
            encodable = prompt.encode("utf-8", "replace").decode()  # JSON can hold half of a surrogate pair, UTF-8 not
            token_set = to_tokens.one(encodable, self.most_tokens + 1, "prompt")
        if token_set.tokens.shape[1] > self.most_tokens:
            raise InputError(f"the prompt has more than {self.most_tokens} tokens")
        return token_set

    def _restored(self, clean: TokenSet, other: str) -> list[list[float]]:
        """The share that each block and position restores in another prompt of one length; empty without one."""
        if not other:
            return []
        table = activation_patching(self.subject, clean, self._tokens(other), progress=False)
        return torch.tensor(table.numbers(RESTORED)).unflatten(0, (-1, clean.tokens.shape[1])).tolist()

    def _suggestions(self, massive: Sequence[EntryData]) -> list[SuggestionData]:
        """Three edits that show something: by what the model has, and where its largest entry is."""
        layers = self.subject.shape.attention_layers
        shown = EditData("swap", [4.0]) if self._has_learned_positions else EditData("column", [0.0])
        sigmoid = EditData("sigmoid", [float(layers[0]), float(layers[-1])])
        entry, says = vars(massive[0]), _WORDS["suggestions"]
        return [
            SuggestionData(says[edit.kind]["title"].format(**entry), says[edit.kind]["says"].format(**entry), edit)
            for edit in (massive[0].edit, shown, sigmoid)
        ]

    @cached_property
    def _has_learned_positions(self) -> bool:
        try:
            self.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition()])
        except InputError:
            return False
        return True


def headline(reports: Sequence[Report], word: TokenText) -> list[HeadlineData]:
    """The numbers to look at first, in every state."""
    first = reports[0]
    chances = [report.extra(NEXT_TOKEN)[0] for report in reports]
    likeliest = int(chances[0].argmax())
    slots = [report.slot_importance for report in reports]
    rate, alpha = "heads with a sink on the first token (Sink_1,", "attention that the first token receives (alpha_1)"
    of_slot, uniform = "attention that the slot * receives (alpha_*)", "under uniform attention"
    rates = [report.sink_rate(0, EPSILON).mean for report in reports]
    alphas, null = [report.alpha().nanmean().item() for report in reports], first.null_alpha().nanmean().item()
    note = "the likeliest next token" + (" before the edits" if len(reports) > 1 else "")
    shown: list[tuple[str, str, list[float | None], str]] = [
        (f"{rate} epsilon {EPSILON:g})", "", [*rates], f"{first.null_sink_rate(0, EPSILON):.1%} {uniform}"),
        (alpha, "", [*alphas], f"{null:.1%} {uniform}"),
        (of_slot, "", [None if slot is None else slot.mean().item() for slot in slots], "the slot is no token"),
        ("chance that the next token is", word(likeliest), [chance[likeliest].item() for chance in chances], note),
    ]
    return [
        HeadlineData(label, token, ["none" if value is None else f"{value:.1%}" for value in values], note)
        for label, token, values, note in shown
        if any(value is not None for value in values)
    ]


def next_tokens(reports: Sequence[Report], word: TokenText) -> list[NextData]:
    """The likeliest next tokens of every state, each with its probability in all of them."""
    chances = [report.extra(NEXT_TOKEN)[0] for report in reports]
    likeliest = {int(token) for chance in chances for token in chance.topk(min(TOP, len(chance))).indices}
    rows = [NextData(word(token), [float(chance[token]) for chance in chances]) for token in likeliest]
    return sorted(rows, key=lambda row: -max(row.chances))


def massive_entries(report: Report) -> list[EntryData]:
    """The places (position and dimension) of the largest entries that blocks read, by multiples of the median entry."""
    top, ratios = report.extra(TOP_ENTRIES)[0], report.extra(PEAK_OVER_MEDIAN)[0].tolist()
    end = float(len(ratios) - 1)
    times: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}  # by place, then by block: times and value
    for block, entries in enumerate(top[:-1].tolist()):  # the last output moves no attention
        largest = abs(entries[0][0]) or 1.0
        for value, position, dim in entries:
            times.setdefault((int(position), int(dim)), {})[block] = ratios[block] * abs(value) / largest, value
    strongest = sorted(times.items(), key=lambda item: -max(item[1].values())[0])[:TOP]

    def entry(position: int, dim: int, of: Mapping[int, tuple[float, float]]) -> EntryData:
        size, edit = max((value for _, value in of.values()), key=abs), EditData("zero", [float(dim), 0.0, end])
        return EntryData(position, dim, size, max(of.values())[0], min(of), max(of), edit)

    return [entry(*place, of) for place, of in strongest]


ASK = "/ask"  # the path that questions are sent to
SCRIPTS = (*FIGURES, "live/form.js", "live/results.js", "live/live.js")
EXAMPLE = "The Eiffel Tower stands in Paris, the capital of France. The Colosseum stands in Rome, the capital of"
IDS = "3 17 5 9 11 5 8 2 40 3 17 6 12 9 21 5"


def serve_live(
    model: Any, on_ready: Callable[[str], object] = print, *, bos: Bos = Bos.TOKENIZER, port: int = 0
) -> None:
    """Serves the live page of a model, or of its subject, to this machine only, until Ctrl-C ends it.

    `model` is anything that `si.load` loads; `on_ready` receives the address of the page. `port` 0 takes a free one.
    Raises InputError where the model cannot be loaded or the port is taken.
    """
    port = whole_number(port, "port", 0, 65_535)
    session = Session(subject_of(model), bos)
    with suppress(KeyboardInterrupt):
        serve(live_page(session), on_ready, {ASK: session.answer}, port)


def live_page(session: Session) -> str:
    """The page of a session. Text of prompts and tokens is only ever set as text, never as markup."""
    start, schema = asdict(start_data(session)), {"start": declared(StartData), "answer": declared(AnswerData)}
    body = rendered("live/live.html", start=start, schema=schema, plotly=packed_plotly())
    scripts = Scripts(["".join(map(asset, SCRIPTS))], added=[get_plotlyjs()], ask_server=True)
    return document(f"{start['model']}: live", body, ["atlas/atlas.css", "live/live.css"], scripts)


def start_data(session: Session) -> StartData:
    """What the page holds before it asks."""
    has_text, shape = session.subject.tokenizer is not None, session.subject.shape
    layers = shape.attention_layers
    prompt = "Type a prompt" if has_text else "Type token ids (this model has no tokenizer)"
    at_first = {"position": 4, "layers": layers[0], "to": layers[-1], "layer": layers[0]}
    kinds = {
        name: KindData(kind["title"], [NumberData(n, n == REAL, float(at_first.get(n, 0))) for n in kind["numbers"]])
        for name, kind in KINDS.items()
    }
    return StartData(
        model=short_name(session.subject.name),
        intro=f"{prompt}, change the model while it runs, and see where attention goes and what the model says next. "
        f"{len(layers)} layers that attend, with {shape.n_heads} head{'s' * (shape.n_heads > 1)} each; "
        f"at most {session.most_tokens} tokens.",
        example=EXAMPLE if has_text else " ".join(str(int(token) % shape.vocab) for token in IDS.split()),
        ask=ASK,
        kinds=kinds,
    )
