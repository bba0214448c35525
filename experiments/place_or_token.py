"""Place or token: a token that sees itself alone, or BOS in a later place."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.place_or_token import (
    Answer,
    answer_of,
    depth_figure,
    depth_of,
    place_or_token,
    within_an_interval,
)
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import INPUT, LENGTH, LOSS, MODEL, Cell, Table

from .shared.cases import Case, on_models
from .shared.corpora import absent, corpora, tokens_of
from .shared.genuine import text_models

CLAIM = "A token is a sink because of its place, where it sees no other token, or because it is BOS."
# Gu et al. 2025, section 3.1: the sink is on the first token, whatever it is
MODELS = text_models(has=())
MODELS[Scale.REAL] += ["sinkinterp/text-softmax-48k", "sinkinterp/text-softmax"]  # three layers, rotary positions, BOS
SEQUENCES, FEW = {64: 32, 256: 4}, 8  # by the length; FEW: at most so many of the larger models
DEPTHS_AT = 64  # the length at which depths are tried on the first text, and every text is read
DRAWN = 11  # k of the figure
GROUP, TEXTS, ANSWER, UNSURE = (MODEL, INPUT, LENGTH), "n", "answer", "bound within the interval at k"
EARLY, LATE = "half by layers 0 to", "half by the layers to the last from"
EXPECTED = {"smollm2": Answer.PLACE, "qwen2.5": Answer.PLACE, "gemma3": Answer.TOKEN}  # by a first look


def measure(case: Case, progress: Progress) -> Table:
    """The rows of `si.place_or_token` for each text and length."""
    parts = [part(case, name, length, progress) for name, length in parts_of()]
    notes = [note for table in parts for note in (table.note, absent()) if note]
    return Table.of(CLAIM, "; ".join(notes), tuple(row for table in parts for row in table.records()))


def parts_of() -> list[tuple[str, int]]:
    """The texts and lengths: the first text at every length, the others at one."""
    return [(name, most) for most in SEQUENCES for name in (corpora() if most == DEPTHS_AT else corpora()[:1])]


def part(case: Case, name: str, most: int, progress: Progress) -> Table:
    """The rows of one text, of `most` tokens or what the model can read."""
    n, length = min(SEQUENCES[most], FEW if case.most else SEQUENCES[most]), case.size(length=most)[1]
    tokens = tokens_of(case, name, (n, length), progress)
    attending = case.subject.shape.attention_layers
    depths = depths_of(attending) if (name, most) == parts_of()[0] else attending[-1:]
    table = place_or_token(case.subject, tokens, layers=depths, progress=progress(f"{name}, T={length}"))
    first = {**case.names, INPUT: name, LENGTH: length, TEXTS: n}
    return Table.of(CLAIM, table.note, tuple({**first, **row, **found(table)} for row in table.records()))


def found(table: Table) -> dict[str, Cell]:
    """The answer, the k where an interval holds its bound, and the fewest layers that make half of Sink_k."""
    rows = table.records()
    depths = {row["first layer"] for row in rows} | {row["last layer"] for row in rows}
    early, late = depth_of(table) if len(depths) > 3 else (None, None)  # None, the first and the last: none was tried
    unsure = ", ".join(map(str, within_an_interval(table)))
    return {ANSWER: answer_of(table).value, UNSURE: unsure, EARLY: early, LATE: late}


def depths_of(attending: Sequence[int]) -> list[int]:
    """The depths that are tried: the layers 0, 2 and 3, and then each quarter of those that follow."""
    return sorted({*attending[:1], *attending[2:4], *attending[4 :: max(1, (len(attending) - 4) // 4)]})


def digest(table: Table) -> Table:
    """The rows of whole runs."""
    return table.with_rows(row for row in table.records() if row[LOSS] is not None)


def draw(table: Table) -> go.Figure:
    """Sink_11 by depth in every model, on the first text."""
    first = {name: table.records()[0][name] for name in (INPUT, LENGTH)}
    return depth_figure(table.where(**first, k=DRAWN), by=MODEL)


def _decide(table: Table, model: str) -> Decision:
    groups = {tuple(row[name] for name in GROUP): row for row in table.records() if model in str(row[MODEL])}
    if not groups:
        return Outcome.NOT_ASKED, "no row here can be asked"
    words = [f"{row[INPUT]}, T={row[LENGTH]}: {row[ANSWER]}" for row in groups.values()]
    unsure = [f" (within the interval at k = {row[UNSURE]})" if row[UNSURE] else "" for row in groups.values()]
    return all(row[ANSWER] == EXPECTED[model] for row in groups.values()), "; ".join(
        map("".join, zip(words, unsure, strict=True))
    )


RULES: Sequence[Rule] = tuple(
    Rule(f"the sink of {model} is {answer}, on every text and length", partial(_decide, model=model))
    for model, answer in EXPECTED.items()
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest)
