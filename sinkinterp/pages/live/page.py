"""The live page: a model that answers its questions, from a prompt and edits to maps, sinks and the next token.

The page asks its own server, and nothing else. Its figures are those of `view`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from plotly.offline import get_plotlyjs

from ...backends.load import subject_of
from ...backends.subject import Subject, text_to_tokens
from ...checks import InputError, whole_number
from ...data.choices import Bos
from ...data.token_sources import ids_in
from ...data.tokens import TokenSet
from ...interventions.edit import description
from ...interventions.positions import RemovePosition
from ...measurement.activation_patching import activation_patching
from ...measurement.patching import RESTORED
from ...metrics.metric import LogitsMetric
from ...metrics.residuals import PEAK_OVER_MEDIAN, TOP_ENTRIES
from ...report.readings import TokenText, short_name
from ...report.report import Report
from ..atlas.build import EPSILON, Reader, Run, maps_of, richest
from ..atlas.encode import FIGURES, encode, packed_plotly
from ..page import Scripts, asset, declared, document, rendered
from ..serve import serve
from .schema import (
    KINDS,
    AnswerData,
    EditData,
    EntryData,
    HeadlineData,
    Kind,
    KindData,
    NextData,
    StartData,
    SuggestionData,
    edit_of,
    question_of,
)

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
            raise InputError(f"{self.subject.name} has keys that are not tokens of the prompt; use view or measure")

    @property
    def most_tokens(self) -> int:
        """The longest prompt, in tokens."""
        return min(MOST_TOKENS, self.subject.shape.n_ctx or MOST_TOKENS)

    @property
    def name(self) -> str:
        """The model, as the page calls it."""
        return short_name(self.subject.name)

    def answer(self, question: Any) -> dict[str, Any]:
        """The answer to a `Question`, as an `AnswerData`, both in JSON. Raises InputError for anything else."""
        asked = question_of(question)
        edits = [edit_of(edit, self.subject.shape) for edit in asked.edits]
        with self._lock:  # tokenizers, too, keep state between calls
            token_set = self._tokens(asked.prompt)
            maps = maps_of(self.subject)
            detail = richest(token_set.tokens.shape[1], 2 * len(maps), LIMIT)
            reader = Reader(self.subject, token_set, maps, detail)
            before = self._before(reader)
            runs = {"before": before, "after": reader.run(edits, INSTRUMENTS)} if edits else {"as it is": before}
            reports = [run.report for run in runs.values()]
            shown = reader.atlas(runs, self.subject.label)  # whose `tables` the page shows below its figures
            view, blocks = encode(shown)
            massive = massive_entries(before.report)
            answer = AnswerData(
                view=view,
                blocks=dict(blocks),
                edits=[description(edit) for edit in edits],
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
            run = reader.run((), INSTRUMENTS)
            self._unedited.clear()
            self._unedited[key] = run
        return self._unedited[key]

    def _tokens(self, prompt: str) -> TokenSet:
        if len(prompt) > MOST_LETTERS:
            raise InputError(f"the prompt has {len(prompt):,} letters; give at most {MOST_LETTERS:,}")
        if self.subject.tokenizer is None:
            token_set = ids_in(prompt, self.subject.shape.vocab, "prompt")
        else:
            to_tokens = text_to_tokens(self.subject, self.bos)
            token_set = to_tokens.one(_encodable(prompt), self.most_tokens + 1, "prompt")
        if token_set.tokens.shape[1] > self.most_tokens:
            raise InputError(f"the prompt has more than {self.most_tokens} tokens; shorten it")
        return token_set

    def _restored(self, clean: TokenSet, other: str) -> list[list[float]]:
        """The share that each block and position restores in another prompt of one length; empty without one."""
        if not other:
            return []
        table = activation_patching(self.subject, clean, self._tokens(other), progress=False)
        return torch.tensor(table.numbers(RESTORED)).unflatten(0, (-1, clean.tokens.shape[1])).tolist()

    def _suggestions(self, massive: Sequence[EntryData]) -> list[SuggestionData]:
        """Three edits that show something: by what the model has, and where its largest entry is."""
        entry, shape = massive[0], self.subject.shape
        layers = [shape.attention_layers[0], shape.attention_layers[-1]]
        return [
            SuggestionData(
                f"Zero dimension {entry.dim}",
                f"At position {entry.position} it is {entry.times:,.0f} times as large as the median number. "
                "Does the sink need it?",
                entry.edit,
            ),
            _SWAP if self._has_learned_positions else _REMOVE,
            SuggestionData(
                "Sigmoid in place of softmax",
                "Softmax forces every query to look somewhere. Sigmoid does not. Does a sink remain?",
                EditData("sigmoid", [float(layer) for layer in layers]),
            ),
        ]

    @cached_property
    def _has_learned_positions(self) -> bool:
        try:
            self.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition()])
        except InputError:
            return False
        return True


_SWAP = SuggestionData(
    "Swap position 0 with position 4",
    "The first token and the fifth exchange their learned positions. Does the sink follow the position?",
    EditData("swap", [4.0]),
)
_REMOVE = SuggestionData(
    "Hide position 0 from every query",
    "The attention that the first token receives goes to the other tokens. Does the next token change?",
    EditData("column", [0.0]),
)


def headline(reports: Sequence[Report], word: TokenText) -> list[HeadlineData]:
    """The numbers to look at first, in every state."""
    first = reports[0]
    chances = [report.extra(NEXT_TOKEN)[0] for report in reports]
    likeliest = int(chances[0].argmax())
    null_rate, null = first.null_sink_rate(0, EPSILON), first.null_alpha().nanmean().item()
    shown = [
        HeadlineData(
            f"heads with a sink on the first token (Sink_1, epsilon {EPSILON:g})",
            "",
            [f"{report.sink_rate(0, EPSILON):.1%}" for report in reports],
            f"{null_rate:.1%} under uniform attention",
        ),
        HeadlineData(
            "attention that the first token receives (alpha_1)",
            "",
            [f"{report.alpha().nanmean().item():.1%}" for report in reports],
            f"{null:.1%} under uniform attention",
        ),
    ]
    slots = [report.slot_importance for report in reports]
    if any(slot is not None for slot in slots):
        values = ["none" if slot is None else f"{slot.mean().item():.1%}" for slot in slots]
        shown.append(HeadlineData("attention that the slot * receives (alpha_*)", "", values, "the slot is no token"))
    note = "the likeliest next token" + (" before the edits" if len(reports) > 1 else "")
    values = [f"{chance[likeliest].item():.1%}" for chance in chances]
    return [*shown, HeadlineData("chance that the next token is", word(likeliest), values, note)]


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
    return [
        EntryData(
            position,
            dim,
            max((value for _, value in of.values()), key=abs),
            max(of.values())[0],
            min(of),
            max(of),
            EditData("zero", [float(dim), 0.0, end]),
        )
        for (position, dim), of in strongest
    ]


def _encodable(prompt: str) -> str:
    """The prompt; half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    return prompt.encode("utf-8", "replace").decode("utf-8")


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
    subject = subject_of(model)
    session = Session(subject, bos)
    with suppress(KeyboardInterrupt):
        serve(live_page(session), on_ready, {ASK: session.answer}, port)


def live_page(session: Session) -> str:
    """The page of a session. Text of prompts and tokens is only ever set as text, never as markup."""
    body = rendered(
        "live/live.html",
        start=asdict(start_data(session)),
        schema={"start": declared(StartData), "answer": declared(AnswerData)},
        plotly=packed_plotly(),
    )
    scripts = Scripts(["".join(map(asset, SCRIPTS))], added=[get_plotlyjs()], ask_server=True)
    return document(f"{session.name}: live", body, ["atlas/atlas.css", "live/live.css"], scripts)


def start_data(session: Session) -> StartData:
    """What the page holds before it asks."""
    has_text, shape = session.subject.tokenizer is not None, session.subject.shape
    prompt = "Type a prompt" if has_text else "Type token ids (this model has no tokenizer)"
    return StartData(
        model=session.name,
        intro=f"{prompt}, change the model while it runs, and see where attention goes and what the model says next. "
        f"{len(shape.attention_layers)} layers that attend, with {shape.n_heads} head{'s' * (shape.n_heads > 1)} each; "
        f"at most {session.most_tokens} tokens.",
        example=EXAMPLE if has_text else " ".join(str(int(token) % shape.vocab) for token in IDS.split()),
        ask=ASK,
        kinds={name: _kind_data(kind, session) for name, kind in KINDS.items()},
    )


def _kind_data(kind: Kind, session: Session) -> KindData:
    shape = session.subject.shape
    layers = shape.attention_layers
    start = {"position": 4, "layers": layers[0], "to": layers[-1], "layer": layers[0]}
    numbers = [replace(number, start=float(start.get(number.words, 0))) for number in kind.numbers]
    return KindData(kind.title, numbers)
