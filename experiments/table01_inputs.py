"""Table 1: the sink on natural, random and repeated tokens; base against chat with `--model BASE --model CHAT`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import SHARES, estimate_cells, intervals, mean_cells
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import ALPHA_1, INPUT, MODEL, SINK_1, Cell, Table, high_of, low_of, published

from .shared.cases import Case, check_positions, on_models
from .shared.figures import beside_published
from .shared.genuine import text_models
from .shared.papers_models import CHAT_OF, GPT2_XL, LLAMA2_7B, LLAMA2_13B, LLAMA3, MISTRAL
from .shared.rules import above, times, within

CLAIM = (
    "Random tokens have a sink as natural text has. Repeated tokens have none where positions are rotary, and one "
    "where positions are learned. Chat models have the sinks of their base models."
)
RULE = (
    "without BOS, random tokens have at least half of the Sink_1 of natural text, and repeated tokens have less than "
    "5% with rotary positions and at least half with learned ones; a chat model differs from its base by at most 10%"
)
BASES = (MISTRAL, LLAMA2_7B, LLAMA2_13B, LLAMA3)
REPORTED: dict[str, dict[str, float]] = {
    # Gu et al. 2025, Table 1: Sink_1 of 100 sequences, T=64, epsilon=0.3, without BOS; GPT2-XL has learned positions
    "GPT2-XL": {"natural": 0.7700, "random": 0.7029, "repeated": 0.6228},
    "Mistral-7B": {"natural": 0.9749, "random": 0.7521, "repeated": 0.0, "chat": 0.8834},
    "LLaMA2-7B": {"natural": 0.9247, "random": 0.9013, "repeated": 0.0, "chat": 0.9288},
    "LLaMA2-13B": {"natural": 0.9169, "chat": 0.9094},
    "LLaMA3-8B": {"natural": 0.9902, "random": 0.9123, "repeated": 0.0, "chat": 0.9885},
}
MODELS = text_models(GPT2_XL, *(model for base in BASES for model in (base, CHAT_OF[base])), has=())
EPSILON, NO_BOS = 0.3, "none"
POSITIONS, TABLE, NO_TABLE = "positions", "table of learned ones", "no table"  # no table: rotary, ALiBi, none
CHATS = ", chat models on natural text: " + ", ".join(
    f"{model} {values['chat']:.1%} (base {values['natural']:.1%})"
    for model, values in REPORTED.items()
    if "chat" in values
)
BARS = "input and BOS"


def measure(case: Case, progress: Progress) -> Table:
    """A row per input without BOS, as in the paper, and per input with BOS where the tokenizer has one.

    Large models have all 100 sequences too: the interval of a rate of 0 in 16 ends at 21%, and the rule asks for 5%.
    """
    on_row, size = progress(f"measuring {case.subject.name}"), replace(case, most=None).size()
    starts = [Bos.NEVER] if case.bos is Bos.NEVER else [Bos.NEVER, Bos.ALWAYS]
    token_sets = [(name, bos, t) for bos in starts for name, t in case.token_sets(size, bos, progress).items()]
    rows: list[dict[str, Cell]] = []
    positions = TABLE if _has_table(case) else NO_TABLE
    for name, bos, token_set in token_sets:
        on_row(len(rows), len(token_sets))
        report = measure_model(case.subject, token_set, positions=(0,))
        start = NO_BOS if bos is Bos.NEVER else f"id {case.bos_token} first"
        rows.append({**case.names, POSITIONS: positions, INPUT: name, "BOS": start, **_sinks(report)})
        rows[-1] |= {published(model): _reported(model, name, bos) for model in REPORTED}
    on_row(len(rows), len(rows))
    sources = ", ".join(dict.fromkeys(token_set.source for _, _, token_set in token_sets))
    p = report.protocol
    weights = f" ({p.revision})" if p.revision else ""
    note = f"{p.model}{weights}: n={p.sequences} a row, T={p.length}, {p.dtype}, epsilon={EPSILON}"
    note = (
        f"{note}; {intervals(p.sequences)}; null: uniform attention; {sources}; rule: {RULE}; paper: without BOS{CHATS}"
    )
    return Table.of(CLAIM, note, tuple(rows))


def _has_table(case: Case) -> bool:
    """Tells if the model has a table of learned positions, so that copies of a token differ by their places."""
    try:
        check_positions(case)
    except InputError:
        return False
    return True


def draw(table: Table) -> go.Figure:
    """Sink_1 of every row, the paper's values as hollow marks."""
    rows = ({BARS: f"{row[INPUT]}, {'no BOS' if row['BOS'] == NO_BOS else 'BOS'}", **row} for row in table.records())
    named = Table.of("Sink_1 by input", table.note, tuple(rows))
    return beside_published(named, BARS, SINK_1, tuple(map(published, REPORTED)))


def _sinks(report: Report) -> dict[str, Cell]:
    return {
        **estimate_cells(SINK_1, report.sink_rate(0, EPSILON)),
        f"null {SINK_1}": report.null_sink_rate(0, EPSILON),
        **mean_cells(ALPHA_1, report.alpha().mean((1, 2)), SHARES),
        f"null {ALPHA_1}": report.null_alpha().mean().item(),
    }


def _reported(model: str, name: str, bos: Bos) -> float | None:
    return REPORTED[model].get(name) if bos is Bos.NEVER else None


def _are_as_their_base(runs: Table) -> Decision:
    """Tells if a chat model's Sink_1, with its interval, is within 10% of its base model's on text without BOS.

    Of two models that the user names, the second is the chat model.
    """
    rows = {str(row[MODEL]): row for row in runs.where(**{INPUT: "natural", "BOS": NO_BOS}).records()}
    pairs = [(base, chat) for base, chat in CHAT_OF.items() if base in rows and chat in rows]
    if not pairs and len(rows) == 2:
        base, chat = rows
        pairs = [(base, chat)]
    if not pairs:
        return Outcome.NOT_ASKED, "give both: --model BASE --model CHAT"
    compared = tuple({**_ratio(rows[chat], rows[base]), MODEL: chat} for base, chat in pairs)
    outcome, reason = within("", SINK_1, {}, low=0.9, high=1.1).decide(Table.of("", "", compared))
    names = "; ".join(f"{chat} over {base}" for base, chat in pairs)
    return outcome, f"{names}: {reason}"


def _ratio(chat: Mapping[str, Cell], base: Mapping[str, Cell]) -> dict[str, Cell]:
    """Sink_1 of one row over the value of another, with the interval of the first."""
    of = float(base[SINK_1] or 0)
    return {end(SINK_1): float(chat[end(SINK_1)] or 0) / of if of else None for end in (str, low_of, high_of)}


_REPEATED: dict[str, Cell] = {INPUT: "repeated", "BOS": NO_BOS}
_NATURAL: dict[str, Cell] = {INPUT: "natural", "BOS": NO_BOS}
RULES: Sequence[Rule] = (
    above(
        "random tokens have at least half of the sink rate of natural text",
        SINK_1,
        {INPUT: "random", "BOS": NO_BOS},
        _NATURAL,
        bound=times(0.5),
    ),
    within(
        "repeated tokens have no sink without a table of positions",
        SINK_1,
        _REPEATED | {POSITIONS: NO_TABLE},
        high=0.05,
    ),
    above(
        "repeated tokens have at least half of the sink rate of natural text with learned positions",
        SINK_1,
        _REPEATED | {POSITIONS: TABLE},
        _NATURAL,
        bound=times(0.5),
    ),
    Rule("chat models have the sinks of their base models: Sink_1 differs by at most 10%", _are_as_their_base),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
