"""Massive activations: their places, sizes and spread, and whether every repeated token has them."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TokenSet, repeated_token
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import estimate, estimate_cells, intervals
from sinkinterp.metrics.metric import Metric
from sinkinterp.metrics.residuals import LEAST, is_massive, lifetime, median_size
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import BLOCK, INPUT, NULL, Cell, Table

from .shared.cases import Case, of_first_model, on_models
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import of_each

CLAIM = (
    "A few dimensions of the first token are massive, each from a block of its own, of nearly the same value whatever "
    "the input; where positions are rotary, every copy of a repeated token has them."
)
RULE = (
    "on natural text, at least one dimension of the first token is massive in most sequences, in some block; the "
    "largest one has a standard deviation below a tenth of its mean, asked where texts begin with different tokens; on "
    "repeated tokens the other tokens' entries there are within 1% of the first token's (rotary positions)"
)
# Sun et al. 2024 (2402.17762): LLaMA2-7B: 2556.8 with a standard deviation of 141.0 over 100 sequences
# Gu et al. 2025, appendix B.1: with rotary positions, all copies of a repeated token have the same hidden states
MODELS = text_models("HuggingFaceTB/SmolLM2-135M-Instruct", "openai-community/gpt2", "HuggingFaceTB/SmolLM2-135M")
TOP = 3  # dimensions with a row each; more where more are massive
ENTRY, LARGE_FROM = "input, dimension", "above 100 from block"
MEDIAN = Metric("median", RESIDUAL, median_size)


def measure(case: Case, progress: Progress) -> Table:
    """A row per input and dimension: the first token's value, the other tokens', and where they are massive."""
    token_sets = case.token_sets(case.size(), case.start, progress)
    sequences, length = case.size()
    token_sets["repeated"] = repeated_token(case.subject.shape.vocab, length, sequences)  # nothing before it
    on_row = progress(f"measuring {case.subject.name}")
    place = massive_dims(case.subject, next(iter(token_sets.values())))
    dims = list(dict.fromkeys((*place.dims, *place.largest)))[: max(TOP, len(place.dims))]

    def values(x: Tensor) -> Float[Tensor, "batch dim pos"]:
        return x[:, :, dims].float().transpose(1, 2)

    def massive(x: Tensor) -> Float[Tensor, "batch dim pos"]:
        return is_massive(x)[:, :, dims].float().transpose(1, 2)

    metrics = (Metric("values", RESIDUAL, values), Metric("massive", RESIDUAL, massive), MEDIAN)
    rows: list[dict[str, Cell]] = []
    for done, (name, token_set) in enumerate(token_sets.items()):
        on_row(done, len(token_sets))
        report = measure_model(case.subject, token_set, positions=(0,), instruments=[metrics])
        x, is_large = (report.extra(metric) for metric in metrics[:2])  # sequence block dim pos
        median = report.extra(MEDIAN)[:, place.tallest].mean().item()
        for i, dim in enumerate(dims):
            cells = _row(x[:, :, i], is_large[:, :, i], place.tallest)
            rows.append({**case.names, INPUT: name, "dimension": dim, BLOCK: place.tallest, **cells, NULL: median})
    on_row(len(token_sets), len(token_sets))
    return Table.of(CLAIM, _note(report, token_sets, case.start), tuple(rows))


def draw(table: Table) -> go.Figure:
    """The first token's value in every dimension and input of the first model."""
    first = of_first_model(table, "Massive activations")
    rows = tuple({ENTRY: f"{row[INPUT]}, {row['dimension']}", **row} for row in first.records())
    return sweep_figure(Table.of(first.title, first.note, rows), ENTRY, ("first token", "others |x|"))


def _row(x: Float[Tensor, "batch block pos"], massive: Float[Tensor, "batch block pos"], block: int) -> dict[str, Cell]:
    first, large = x[:, block, 0], x[:, :, 0].abs().mean(0) > LEAST
    life = lifetime(massive[:, :, 0].mean(0) > 0.5)
    return {
        **estimate_cells("first token", estimate(first)),
        "standard deviation": first.std().item(),
        **estimate_cells("others |x|", estimate(x[:, block, 1:].abs().mean(1))),
        "massive first": massive[:, block, 0].mean().item(),
        "massive others": massive[:, block, 1:].mean().item(),
        LARGE_FROM: int(large.int().argmax()) if large.any() else None,
        "first block": None if life is None else life.first,
        "last block": None if life is None else life.last,
    }


def _note(report: Report, token_sets: dict[str, TokenSet], start: Bos) -> str:
    p, sources = report.protocol, ", ".join(token_set.source for token_set in token_sets.values())
    return (
        f"{p.model} ({p.revision or 'as saved'}): n={p.sequences} an input, T={p.length}, {p.dtype}; "
        f"BOS {start}, before repeated tokens never; {sources}; the massive dimensions, and others in which first "
        f"tokens are largest, {TOP} or more; {LARGE_FROM}: mean size over sequences; "
        "block 0 is the embedding, block b the output of layer b - 1; standard deviation: over sequences; "
        "null: median |x| of the block, over all tokens and dimensions; massive: share of tokens with |x| > 100 and at "
        "least 1,000 x the median of their sequence; first "
        f"and last block: the first token's entry is massive in most sequences; {intervals(p.sequences)}; rule: {RULE}"
    )


def _is_massive(table: Table) -> tuple[bool | None, str]:
    rows = table.where(**{INPUT: "natural"}).records()
    spans = {row["dimension"]: f"blocks {row['first block']} to {row['last block']}" for row in rows if _lasts(row)}
    words = ", ".join(f"dimension {dim} in {span}" for dim, span in spans.items())
    return bool(spans), words or f"none of dimensions {', '.join(str(row['dimension']) for row in rows)}"


def _lasts(row: Mapping[str, Cell]) -> bool:
    """Tells if the first token's entry is massive in most sequences, in any block."""
    return row["first block"] is not None


def _is_constant(table: Table) -> Decision:
    row = table.where(**{INPUT: "natural"}).records()[0]
    mean, deviation = float(row["first token"] or 0), float(row["standard deviation"] or 0)
    if not deviation:
        return Outcome.NOT_ASKED, "all texts begin with the same token"
    return deviation < abs(mean) / 10, f"{mean:.4g} with a standard deviation of {deviation:.3g}"


def _is_in_all_copies(table: Table) -> tuple[bool | None, str]:
    row = table.where(**{INPUT: "repeated"}).records()[0]
    first, others = abs(float(row["first token"] or 0)), float(row["others |x|"] or 0)
    return abs(first - others) < 0.01 * first, f"first copy {first:.4g}, the others {others:.4g}"


RULES: Sequence[Rule] = (
    of_each(
        Rule("a dimension of the first token of natural text is massive in most sequences, in some block", _is_massive)
    ),
    of_each(Rule("its standard deviation over texts is below a tenth of its mean", _is_constant)),
    of_each(Rule("every copy of a repeated token has it, within 1% (rotary positions)", _is_in_all_copies)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
