"""What the field measures of sinks: compression, gradients, values, later sinks, and heads above chance."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import nan

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.interventions import ChangeResidual, ChangeValues, SetTo
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.patching import gradients
from sinkinterp.measurement.watching import PEAK, induction_scores, uniform_induction
from sinkinterp.metrics import residuals
from sinkinterp.metrics.estimates import (
    REALS,
    SHARES,
    SIZES,
    Estimate,
    Range,
    estimate_cells,
    intervals,
    mean_cells,
    rate_cells,
)
from sinkinterp.metrics.importance import above_controls, control_positions
from sinkinterp.metrics.instruments import MASSIVE, SPECTRUM
from sinkinterp.metrics.metric import Metric, PerSequence, next_token_loss
from sinkinterp.metrics.residuals import (
    COSINE_TO_FIRST,
    LEAST,
    cosine_to,
    is_broadcast,
    is_nop,
    norm_ratio,
    peak,
    secondary_sinks,
    steps,
)
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.readings import short_name
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import BLOCK, EDIT, MODEL, NULL, QUANTITY, Cell, Table, high_of, low_of

from .shared.cases import Case, on_models
from .shared.effects import LEFT, Effects
from .shared.genuine import text_models
from .shared.massive import MassiveDims, massive_dims
from .shared.rules import above, checked, of_each, times, within

CLAIM = (
    "The first token's massive entries compress the residual, its values take more of the gradient than another "
    "token's, and more heads look at it than at any other place."
)
RULE = (
    "in the block with the largest entry: with the massive entries zero before every block (check: at most 100 is "
    "left) matrix entropy is 1.5 times as large, and as it is below half of that of random directions of the same "
    "norms; the gradient by the first token's values, mean over layers, is twice that by token 11's; the share of "
    "heads above the 99th percentile of other positions is above .05"
)
MODELS = text_models(has=())
SEQUENCES, LENGTH, CONTROL = 16, 64, 10  # CONTROL: token 11, from 0
VALUE, PUBLISHED, TALLEST, NONE, ZERO = "value", "published", "tallest", "none", "massive entries zero"
ENTROPY, ANISOTROPY = "matrix entropy (bits)", "anisotropy"
BY_RESIDUAL, BY_VALUE = "gradient by the residual of token 1, share", "gradient by the value of token 1, share"
NOP, BROADCAST = "no-op heads, share of sink heads", "broadcast heads, share of sink heads"
LATER, LIVES = "secondary sinks of a sequence", "blocks that a secondary sink lives"
FIRST, LARGEST = "mean attention to token 1", "largest entry of any residual"
ABOVE, INDUCTION = "heads above the 99th percentile of other positions", "induction score of the strongest head"
PAPERS = {  # what the papers print, of other models
    ENTROPY: ".02 and .4 to .5 bits with the write ablated: Llama 3 8B (2510.06477)",
    FIRST: ".467: 1.7B parameters (2505.06708)",
    LARGEST: "1,053: 1.7B parameters (2505.06708)",
}
PEAK_OF_OTHERS = Metric("peak_of_others", RESIDUAL, lambda x: peak(x[:, 1:]))
COSINE_TO_CONTROL = Metric("cosine_to_control", RESIDUAL, partial(cosine_to, position=CONTROL))
Rows = list[dict[str, Cell]]


def measure(case: Case, progress: Progress) -> Table:
    """A row per quantity and block, with the start that the model was trained with."""
    subject, token_set = case.subject, case.tokens(case.size(SEQUENCES, LENGTH), progress, case.start)
    tokens = token_set.of_one_length()
    progress(f"measuring {subject.name}")(0, 1)
    place = massive_dims(subject, token_set)
    report = measure_model(
        subject, tokens, instruments=[SPECTRUM, MASSIVE, (PEAK, PEAK_OF_OTHERS, COSINE_TO_CONTROL)], progress=False
    )
    induction = induction_scores(subject, len(tokens), tokens.shape[1])
    rows = [
        *_compression(subject, tokens, report, place),
        *_gradients(subject, tokens, place),
        *_kinds_of_heads(report),
        *_later_sinks(report),
        *_of_the_first(report),
        _row(INDUCTION, induction.amax((1, 2)), SHARES, uniform_induction(tokens.shape[1])),
    ]
    note = (
        f"n={len(tokens)}, T={tokens.shape[1]}, BOS {case.start}, epsilon=0.3; {intervals(len(tokens))}; "
        f"{subject.name}: {place.line()}; null: random directions of the same norms (entropy, anisotropy), token 11 in "
        f"place of token 1 (gradients, kinds of heads, secondary sinks), uniform attention (mean attention), the other "
        f"tokens (largest entry), .01 (heads above); rule: {RULE}"
    )
    named = ({**case.names, **row, PUBLISHED: PAPERS.get(str(row[QUANTITY]), "")} for row in rows)
    return Table.of(CLAIM, note, tuple(named))


def _row(
    quantity: str, values: PerSequence, ends: Range = REALS, null: Tensor | float | None = None, **more: Cell
) -> dict[str, Cell]:
    """A row of a quantity, with its mean over sequences, and that of its null or the null itself."""
    cells_of = rate_cells if ends is SHARES else partial(mean_cells, ends=ends)
    nulls = cells_of(NULL, null) if isinstance(null, Tensor) else estimate_cells(NULL, Estimate(null or nan, nan, nan))
    place: dict[str, Cell] = {QUANTITY: quantity, BLOCK: None, TALLEST: "", EDIT: NONE, LEFT: None}
    return place | cells_of(VALUE, values) | nulls | more


def _compression(subject: Subject, tokens: Tokens, report: Report, place: MassiveDims) -> Rows:
    """Entropy and anisotropy by block, as they are and with the massive entries zero before every block."""
    edits = place.edits(SetTo(0.0), n_layers=subject.shape.n_layers)
    (_, checked_row) = Effects(entries=place.entries(0)).rows(subject, TokenSet.of(tokens), {ZERO: [edits]})
    after = measure_model(subject, tokens, positions=(0,), edits=edits, instruments=[SPECTRUM], progress=False)
    metrics = {
        ENTROPY: (residuals.ENTROPY, residuals.ENTROPY_OF_NORMS, SIZES),
        ANISOTROPY: (residuals.ANISOTROPY, residuals.ANISOTROPY_OF_NORMS, SHARES),
    }
    rows: Rows = []
    for quantity, (metric, null, ends) in metrics.items():
        for edit, read, left in ((NONE, report, None), (ZERO, after, checked_row[LEFT])):
            values, nulls = read.extra(metric), read.extra(null)
            rows += [
                _row(quantity, values[:, i], ends, nulls[:, i], **{EDIT: edit, LEFT: left}, **_at(i, place.tallest))
                for i in range(values.shape[1])
            ]
    return rows


def _at(block: int, tallest: int) -> dict[str, Cell]:
    return {BLOCK: block, TALLEST: TALLEST if block == tallest else ""}


def _gradients(subject: Subject, tokens: Tokens, place: MassiveDims) -> Rows:
    """The share of the loss's gradient by token 1 among all positions, by block; the null is token 11's share."""

    def loss(logits: Tensor, targets: Tokens) -> PerSequence:
        return next_token_loss(logits, targets).mean(1)

    rows: Rows = []
    for quantity, site in ((BY_RESIDUAL, ChangeResidual()), (BY_VALUE, ChangeValues())):
        shares = {layer: _shares(x) for layer, x in gradients(site, subject, tokens, loss).items()}
        rows += [
            _row(quantity, share[:, 0], SHARES, share[:, CONTROL], **_at(layer, place.tallest))
            for layer, share in shares.items()
        ]
        mean = torch.stack([*shares.values()]).mean(0)
        rows.append(_row(quantity, mean[:, 0], SHARES, mean[:, CONTROL]))
    return rows


def _shares(gradient: Tensor) -> Tensor:
    """Each position's share of the sum of norms, `sequence pos`; heads are one vector."""
    vectors = gradient if gradient.ndim == 3 else gradient.transpose(1, 2).flatten(2)
    norms = vectors.float().norm(dim=-1)
    return norms / norms.sum(1, keepdim=True)


def _kinds_of_heads(report: Report, epsilon: float = 0.3) -> Rows:
    """The shares of no-op and of broadcast heads among those with a sink; the null has token 11's values."""
    group = report.importance.shape[2] // report.value_norms.shape[2]
    has_sink = report.alpha() > epsilon
    ratios = [norm_ratio(report.value_norms, at).repeat_interleave(group, -1) for at in (0, CONTROL)]

    def shares(kind: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        first, control = ((kind(ratio) & has_sink).sum((1, 2)) / has_sink.sum((1, 2)) for ratio in ratios)
        return first, control

    kinds = ((NOP, is_nop), (BROADCAST, is_broadcast))
    return [_row(name, values, SHARES, null) for name, kind in kinds for values, null in (shares(kind),)]


def _later_sinks(report: Report) -> Rows:
    """How many secondary sinks a sequence has, by the block that makes them, and in how many blocks each is one."""
    between = steps(report.residual_ratio().mean(0))
    if between is None:
        return [_row(LATER, torch.zeros(len(report.tokens)), SIZES)]
    sinks, lifetime = secondary_sinks(report.extra(COSINE_TO_FIRST), between)
    controls, _ = secondary_sinks(report.extra(COSINE_TO_CONTROL), between, position=CONTROL)

    def count(block: Tensor) -> Tensor:
        return (block >= 0).sum(1).float()

    rows = [_row(LATER, count(sinks), SIZES, count(controls))]
    for block in sinks[sinks >= 0].unique().tolist():
        these = [(of == block).sum(1).float() for of in (sinks, controls)]
        rows.append(_row(LATER, these[0], SIZES, these[1], **{BLOCK: block}))
    lives = lifetime.sum(1) / (lifetime > 0).sum(1)  # NaN where a sequence has none
    return rows if lives.isnan().all() else [*rows, _row(LIVES, lives, SIZES)]


def _of_the_first(report: Report) -> Rows:
    """Gated attention's two numbers, and the heads above other positions."""
    attention = report.alpha().mean((1, 2)), report.null_alpha().mean((1, 2))
    largest = report.extra(PEAK_OF_OTHERS).amax(1), report.extra(PEAK).amax(1)
    above = above_controls((report.importance - report.null)[..., control_positions(report.protocol.length)])
    return [
        _row(FIRST, attention[0], SHARES, attention[1].mean().item()),  # uniform attention is one number
        _row(LARGEST, largest[1], SIZES, largest[0]),
        _row(ABOVE, above, SHARES, 0.01),
    ]


def digest(table: Table) -> Table:
    """One row for each quantity: of the whole model, or of the block with the largest entry."""
    return table.with_rows(row for row in table.records() if row[BLOCK] is None or row[TALLEST])


def draw(table: Table) -> go.Figure:
    """Matrix entropy by block, with the massive entries and with zeros in their place, in the first model."""
    name = table.records()[0][MODEL]
    shown = table.where(**{MODEL: name, QUANTITY: ENTROPY}).frame
    axis = f"{ENTROPY} of {short_name(str(name))}"
    named = shown.rename(columns={of(VALUE): of(axis) for of in (str, low_of, high_of)})
    return sweep_figure(Table("Compression by block", table.note, named), BLOCK, (axis,), by=EDIT)


def _tallest(quantity: str, edit: str = NONE) -> dict[str, Cell]:
    return {QUANTITY: quantity, TALLEST: TALLEST, EDIT: edit}


def _whole(quantity: str) -> dict[str, Cell]:
    return {QUANTITY: quantity, BLOCK: None, EDIT: NONE}


def _above(claim: str, column: str, quantity: dict[str, Cell], other: str, factor: float) -> Rule:
    return above(claim, column, quantity, quantity, other_column=other, bound=times(factor))


_ZERO, _AS_IT_IS = _tallest(ENTROPY, ZERO), _tallest(ENTROPY)
_DECOMPRESSED = above("zero massive entries raise matrix entropy 1.5 times", VALUE, _ZERO, _AS_IT_IS, bound=times(1.5))
RULES: Sequence[Rule] = (
    of_each(checked(_DECOMPRESSED, LEFT, _ZERO, high=LEAST)),
    of_each(_above("random directions of the same norms have twice the entropy", NULL, _AS_IT_IS, VALUE, 2.0)),
    of_each(_above("the value of token 1 takes twice the gradient of token 11's", VALUE, _whole(BY_VALUE), NULL, 2.0)),
    of_each(within("more than .05 of the heads are above other positions", VALUE, _whole(ABOVE), low=0.05)),
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=digest)
