"""Figure 9: the sink on several kinds of text; add your own with --text FOLDER, a file or subfolder a kind."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go

from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TextToTokens, TokenSet, random_tokens
from sinkinterp.files import cache_folder
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import SHARES, estimate_cells, intervals, mean_cells
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, SINK_1, Cell, Table

from .shared.cases import READING, Case, of_first_model, on_models
from .shared.domains import domains_of
from .shared.figures import beside_published
from .shared.genuine import text_models
from .shared.installed import texts_by_kind
from .shared.papers_models import GPT2_XL, LLAMA2_7B, LLAMA3, MISTRAL
from .shared.rules import of_each

CLAIM = "The kind of text hardly changes the sink rate at epsilon .2 and .3; at .4 it fluctuates a little."
NEGLIGIBLE = 0.05  # difference of Sink_1 between two kinds of text that counts as none; set before the first run
RULE = (
    f"at epsilon .2 and .3 no two kinds of text differ by more than {NEGLIGIBLE} in Sink_1; at .4 they differ by more "
    "than at .3"
)
# Gu et al. 2025, Figure 9: bars only, of 17 domains of the Pile
# for the paper's texts: --text FOLDER of the Pile's 17 domains
MODELS = text_models(GPT2_XL, MISTRAL, LLAMA2_7B, LLAMA3)
KIND = "text"
NULL_KIND = "random tokens"
MOST_SEQUENCES = 100  # of every kind, as in the paper
EPSILONS = (0.2, 0.3, 0.4)
BEGINNING = 16  # tokens; of texts that begin with the same ones, such as headers in one namespace, the first is taken


def measure(case: Case, progress: Progress) -> Table:
    """Returns a row per kind of text, and one of random tokens: Sink_1 at three thresholds, and alpha_1."""
    sequences, length = case.size()
    token_sets = _token_sets(case, min(sequences, MOST_SEQUENCES), length, progress)
    on_row = progress(f"measuring {case.subject.name}")
    rows: list[dict[str, Cell]] = []
    for kind, token_set in token_sets.items():
        on_row(len(rows), len(token_sets))
        report = measure_model(case.subject, token_set, positions=(0,))
        row: dict[str, Cell] = {**case.names, KIND: kind}
        for epsilon in EPSILONS:
            row |= estimate_cells(_rate(epsilon), report.sink_rate(0, epsilon))
        alpha = mean_cells(ALPHA_1, report.alpha().mean((1, 2)), SHARES)
        rows.append(row | alpha | {f"null {ALPHA_1}": report.null_alpha().mean().item(), "n": len(token_set.tokens)})
    on_row(len(rows), len(rows))
    p = report.protocol
    weights = f" ({p.revision})" if p.revision else ""
    drawn = f"no two texts of a kind share their first {BEGINNING} tokens"
    note = (
        f"{p.model}{weights}: T={length}, BOS {case.start}, {p.dtype}; {drawn}; {intervals(p.sequences)}; rule: {RULE}"
    )
    return Table.of(CLAIM, note, tuple(rows))


def _token_sets(case: Case, sequences: int, length: int, progress: Progress) -> dict[str, TokenSet]:
    """Token sets by kind of text, and random tokens."""
    tokenizer = load_tokenizer(case.source)
    drawn = {NULL_KIND: random_tokens(case.subject.shape.vocab, length, sequences)}
    if tokenizer is None:
        return {"its task": case.tokens((sequences, length), progress)} | drawn
    to_tokens = TextToTokens(tokenizer, case.start)
    texts: dict[str, Iterable[str]] = {**texts_by_kind(cache_folder(), progress(READING))}
    if case.text is not None:
        texts |= domains_of(case.text)
    kinds = {
        name: to_tokens.of_length(_of_other_beginnings(of, tokenizer), length, sequences, name)
        for name, of in texts.items()
    }
    return kinds | drawn


def _of_other_beginnings(texts: Iterable[str], tokenizer: Any) -> Iterator[str]:
    """The texts without those that begin as an earlier one does."""
    seen: set[tuple[int, ...]] = set()
    for text in texts:
        beginning = tuple(tokenizer.encode(text[: 40 * BEGINNING])[:BEGINNING])
        if beginning not in seen:
            seen.add(beginning)
            yield text


def draw(table: Table) -> go.Figure:
    """Sink_1 at the middle threshold by kind of text, of the first model."""
    return beside_published(of_first_model(table, "Sink_1 by kind of text"), KIND, _rate(0.3), ())


def _rate(epsilon: float) -> str:
    return f"{SINK_1} at {epsilon:g}"


def _spread(table: Table, epsilon: float) -> tuple[float, Mapping[str, Cell], Mapping[str, Cell]]:
    """The largest difference of Sink_1 between two kinds of text of one model, and their rows."""
    rate = _rate(epsilon)
    rows = [row for row in table.records() if row[KIND] != NULL_KIND and row["model"] == table.records()[0]["model"]]
    low, high = (extreme(rows, key=lambda row: float(row[rate] or 0)) for extreme in (min, max))
    return float(high[rate] or 0) - float(low[rate] or 0), low, high


def _differs_little(table: Table, epsilon: float) -> tuple[bool | None, str]:
    spread, low, high = _spread(table, epsilon)
    rate = _rate(epsilon)
    return None if low is high else spread <= NEGLIGIBLE, f"{low[KIND]} {low[rate]:.1%}, {high[KIND]} {high[rate]:.1%}"


def _differs_more(table: Table) -> tuple[bool | None, str]:
    (small, low, high), (large, *_) = (_spread(table, epsilon) for epsilon in (0.3, 0.4))
    return None if low is high else large > small, f"by up to {small:.1%} at .3, by up to {large:.1%} at .4"


RULES: Sequence[Rule] = (
    *(
        of_each(
            Rule(
                f"at epsilon .{tenths} kinds of text differ by at most 5 points",
                partial(_differs_little, epsilon=tenths / 10),
            )
        )
        for tenths in (2, 3)
    ),
    of_each(Rule("at epsilon .4 kinds of text differ by more than at .3", _differs_more)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
