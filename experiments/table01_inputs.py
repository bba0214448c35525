"""Table 1: the sink on natural, random and repeated tokens; base against chat with `--model BASE --model CHAT`."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from sinkinterp.data.bos import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.report import Report
from sinkinterp.metrics.bootstrap import BY_SEQUENCE, estimate, estimate_cells
from sinkinterp.plots import bars
from sinkinterp.plots.columns import ALPHA_1, INPUT, MODEL, SINK_1, published
from sinkinterp.runs.case import Case, Model
from sinkinterp.runs.row_rules import Above, NotAsked, Within
from sinkinterp.runs.scale import Scale
from sinkinterp.runs.verdict import Rule
from sinkinterp.table import Cell, Table

CLAIM = (
    "Random tokens have a sink as natural text has. Repeated tokens have none where positions are rotary, and one "
    "where positions are learned. Chat models have the sinks of their base models."
)
RULE = (
    "without BOS, random tokens have at least half of the Sink_1 of natural text, and repeated tokens have less than "
    "5% with rotary positions and at least half with learned ones; a chat model differs from its base by at most 10%"
)
REPORTED: dict[str, dict[str, float]] = {
    # Gu et al. 2025, Table 1: Sink_1 of 100 sequences, T=64, epsilon=0.3, without BOS; GPT2-XL has learned positions
    "GPT2-XL": {"natural": 0.7700, "random": 0.7029, "repeated": 0.6228},
    "Mistral-7B": {"natural": 0.9749, "random": 0.7521, "repeated": 0.0, "chat": 0.8834},
    "LLaMA2-7B": {"natural": 0.9247, "random": 0.9013, "repeated": 0.0, "chat": 0.9288},
    "LLaMA2-13B": {"natural": 0.9169, "chat": 0.9094},
    "LLaMA3-8B": {"natural": 0.9902, "random": 0.9123, "repeated": 0.0, "chat": 0.9885},
}
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/text-softmax-48k"],
    Scale.REAL: ["local/smollm2-135m-instruct"],
    Scale.PAPER: ["openai-community/gpt2-xl", "mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"],
}
EPSILON, NO_BOS = 0.3, "none"
CHATS = ", chat models on natural text: " + ", ".join(
    f"{model} {values['chat']:.1%} (base {values['natural']:.1%})"
    for model, values in REPORTED.items()
    if "chat" in values
)
BARS = "input and BOS"


def measure(case: Case, progress: Progress) -> Table:
    """A row per input without BOS, as in the paper, and per input with BOS where the tokenizer has one."""
    on_row, size = progress(f"measuring {case.subject.name}"), case.size()
    starts = [Bos.NEVER] if case.bos is Bos.NEVER else [Bos.NEVER, Bos.ALWAYS]
    token_sets = [(name, bos, t) for bos in starts for name, t in case.token_sets(size, bos, progress).items()]
    rows: list[dict[str, Cell]] = []
    for name, bos, token_set in token_sets:
        on_row(len(rows), len(token_sets))
        report = measure_model(case.subject, token_set, positions=(0,))
        start = NO_BOS if bos is Bos.NEVER else f"id {case.bos_token} first"
        rows.append({**case.names, INPUT: name, "BOS": start, **_sinks(report)})
        rows[-1] |= {published(model): _reported(model, name, bos) for model in REPORTED}
    on_row(len(rows), len(rows))
    sources = ", ".join(dict.fromkeys(token_set.source for _, _, token_set in token_sets))
    p = report.protocol
    weights = f" ({p.revision})" if p.revision else ""
    note = f"{p.model}{weights}: n={p.sequences} a row, T={p.length}, {p.dtype}, epsilon={EPSILON}; {BY_SEQUENCE}"
    note = f"{note}; null: uniform attention; {sources}; rule: {RULE}; paper: without BOS{CHATS}"
    return Table(CLAIM, note, tuple(rows))


def draw(table: Table) -> go.Figure:
    """Sink_1 of every row, the paper's values as hollow marks."""
    models = {row[MODEL] for row in table.rows}
    rows = ({BARS: _label(row, with_model=len(models) > 1), **row} for row in table.rows)
    named = Table("Sink_1 by input", table.note, tuple(rows))
    return bars.beside_published(named, BARS, SINK_1, tuple(map(published, REPORTED)))


def _label(row: Mapping[str, Cell], with_model: bool) -> str:
    start = "no BOS" if row["BOS"] == NO_BOS else "BOS first"
    return f"{row[INPUT]}, {start}" + (f", {row[MODEL]}" if with_model else "")


def _sinks(report: Report) -> dict[str, Cell]:
    return {
        **estimate_cells(SINK_1, report.sink(0, EPSILON)),
        f"null {SINK_1}": report.null_sink_rate(0, EPSILON),
        **estimate_cells(ALPHA_1, estimate(report.alpha().mean((1, 2)))),
        f"null {ALPHA_1}": report.null_alpha().mean().item(),
    }


def _reported(model: str, name: str, bos: Bos) -> float | None:
    return REPORTED[model].get(name) if bos is Bos.NEVER else None


RULES: Sequence[Rule] = (
    Above(
        "random tokens have at least half of the sink rate of natural text",
        SINK_1,
        {INPUT: "random", "BOS": "none"},
        {INPUT: "natural", "BOS": "none"},
        factor=0.5,
    ),
    Within("repeated tokens have no sink (rotary positions)", SINK_1, {INPUT: "repeated", "BOS": "none"}, high=0.05),
    NotAsked("chat models have the sinks of their base models", "give both: --model BASE --model CHAT"),
)
