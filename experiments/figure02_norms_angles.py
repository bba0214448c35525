"""Figures 2 and 11 to 18: norms of hidden states, keys and values by block, and queries' angles with the first key."""

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go

from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import mean_cells
from sinkinterp.metrics.instruments import GEOMETRY
from sinkinterp.metrics.qk import QK_ANGLES, QK_NORM_PRODUCTS
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.heads import COSINE, NORM_PRODUCT
from sinkinterp.report.norms import FIRST_TOKEN, KIND, OTHER_TOKENS
from sinkinterp.report.readings import protocol_note
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_1, BLOCK, Cell, Table, high_of, low_of

from .shared.cases import Case, of_first_model, on_models
from .shared.genuine import text_models
from .shared.papers_models import GPT2_LARGE, LLAMA2_7B, LLAMA3, MISTRAL
from .shared.rules import of_each

CLAIM = (
    "The first token has a significantly larger norm of hidden states, but much smaller norms of keys and values than "
    "the mean of other tokens; the cosine of queries with its key, not the product of their norms, makes the sink."
)
RULE = (
    "in most blocks whose mean alpha_1 exceeds epsilon, outside each other's intervals: first token's residual longer, "
    "key and value shorter, cosine larger, norm product smaller than those of the other tokens"
)
# Gu et al. 2025, Figures 2 and 11 to 18: long first hidden states, short first keys and values, larger cosines
MODELS = text_models(LLAMA3, LLAMA2_7B, GPT2_LARGE, MISTRAL, "EleutherAI/pythia-1b")  # Figures 2 and 11 to 18
EPSILON = 0.3
QUANTITIES = ("residual norm", "key norm", "value norm", COSINE, NORM_PRODUCT)


def measure(case: Case, progress: Progress) -> Table:
    """A row per block and kind of token: means over sequences, and over the heads of the block."""
    token_set = case.tokens(case.size(), progress, case.start)
    on_batch = progress(f"measuring {case.subject.name}")
    report = measure_model(case.subject, token_set, positions=(0,), instruments=[GEOMETRY], progress=on_batch)
    note = (
        f"{protocol_note(report, EPSILON)}; block 0 is the embedding, block b the output of layer b - 1; keys, values, "
        "cosine, norm product (|q| |k| times the scale) and alpha_1: of the layer that reads the block, mean over "
        "heads; cosine and norm product: of queries with the first key, and with the other keys; null alpha_1: uniform "
        f"attention; rule: {RULE}"
    )
    blocks, kinds = range(report.residual_norms.shape[1]), (FIRST_TOKEN, OTHER_TOKENS)
    rows = ({**case.names, BLOCK: block, KIND: kind, **_row(report, block, kind)} for kind in kinds for block in blocks)
    return Table.of(CLAIM, note, tuple(rows))


def draw(table: Table) -> go.Figure:
    """A panel per quantity, by block, of the first model."""
    first = of_first_model(table, "The first token and the others")
    figure = sweep_figure(first, BLOCK, QUANTITIES, KIND)
    return figure.update_yaxes(type="log", exponentformat="power", dtick=1, row=1, col=1)


def _row(report: Report, block: int, kind: str) -> dict[str, Cell]:
    """Empty but for the residual where the block does not attend."""
    is_first = kind == FIRST_TOKEN
    pos = slice(0, 1) if is_first else slice(1, None)
    values = {"residual norm": report.residual_norms[:, block, pos].mean(1)}
    alpha: dict[str, Cell] = {ALPHA_1: None, f"null {ALPHA_1}": None}
    if block in report.attention_layers:
        i, key = report.attention_layers.index(block), 0 if is_first else 1
        values["key norm"] = report.key_norms[:, i, :, pos].mean((1, 2))
        values["value norm"] = report.value_norms[:, i, :, pos].mean((1, 2))
        values[COSINE] = report.extra(QK_ANGLES)[:, i, :, key].nanmean(1)
        values[NORM_PRODUCT] = report.extra(QK_NORM_PRODUCTS)[:, i, :, key].nanmean(1)
        null = report.null_alpha()[:, i].mean().item()
        alpha = {ALPHA_1: report.alpha()[:, i].mean().item(), f"null {ALPHA_1}": null}
    row: dict[str, Cell] = {}
    for name in QUANTITIES:
        row |= mean_cells(name, values[name]) if name in values else _no_cells(name)
    return row | alpha


def _no_cells(name: str) -> dict[str, Cell]:
    return {name: None, low_of(name): None, high_of(name): None}


def _most_blocks(table: Table, quantity: str, is_larger: bool) -> tuple[bool | None, str]:
    """Tells if the first token's quantity is above (or below) the others', outside each other's intervals."""
    first, others = (table.where(**{KIND: kind}).records() for kind in (FIRST_TOKEN, OTHER_TOKENS))
    pairs = [(a, b) for a, b in zip(first, others, strict=True) if float(a[ALPHA_1] or 0) > EPSILON]
    if not pairs:
        return None, "no block has a sink"
    shows = sum(
        float(high[low_of(quantity)] or 0) > float(low[high_of(quantity)] or 0)
        for high, low in (pair if is_larger else pair[::-1] for pair in pairs)
    )
    return 2 * shows > len(pairs), f"in {shows} of {len(pairs)} blocks"


_CLAIMS = (
    ("the first token's residual is longer", "residual norm", True),
    ("its key is shorter", "key norm", False),
    ("its value is shorter", "value norm", False),
    ("queries have a larger cosine with its key", COSINE, True),
    ("their norm product with it is smaller", NORM_PRODUCT, False),
)


RULES: Sequence[Rule] = (
    *(
        of_each(
            Rule(f"in most blocks with a sink, {words}", partial(_most_blocks, quantity=quantity, is_larger=is_larger))
        )
        for words, quantity, is_larger in _CLAIMS
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
