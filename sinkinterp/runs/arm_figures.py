"""Models that were trained with several seeds, side by side."""

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..lm.variants import families
from ..plots.series import PERCENT, SHARE, error_bars, unique_values
from ..plots.theme import GREY, colour, escaped, themed
from ..report.columns import ALPHA_1, ALPHA_SLOT, LOSS, MODEL, SEED, SINK_1
from ..table import NULL, Cell, Table, published

_NULLS = {ALPHA_1: NULL}  # the null of a quantity, where the runs have one
_SHARES = (ALPHA_1, SINK_1)  # they lie between 0 and 1, and are drawn on that axis
_PANEL = 210  # pixels of height
_PAPER = {"mode": "markers", "marker": {"color": colour(1), "symbol": "diamond-open", "size": 11, "line": {"width": 2}}}


def by_model(table: Table, quantities: tuple[str, ...] = (ALPHA_1, SINK_1, LOSS)) -> go.Figure:
    """A panel per quantity, with a mark per seed and a line at the mean of each model.

    Grey: the null. Hollow: the value of the paper, where the table has it. A model whose training failed has no mark.
    """
    shown = [name for name in quantities if any(math.isfinite(value) for value in table.numbers(name))]
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.24 / max(1, len(shown)))
    is_paper_named = False
    names = unique_values(table, MODEL)
    models = [escaped(name) for name in names]
    for i, quantity in enumerate(shown):
        panel = {"row": i + 1, "col": 1, "showlegend": i == 0}
        figure.add_scatter(
            x=[escaped(name) for name in table.column(MODEL)],
            y=table.numbers(quantity),
            error_y=error_bars(table, quantity),
            text=[f"seed {seed}" for seed in table.column(SEED)],
            name="a seed",
            mode="markers",
            marker={"color": colour(0), "size": 8, "opacity": 0.6},
            **panel,
        )
        means = [_mean(table.where(**{MODEL: name}).numbers(quantity)) for name in names]
        dash = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": colour(0)}}
        figure.add_scatter(x=models, y=means, name="mean of the seeds", mode="markers", marker=dash, **panel)
        if quantity in _NULLS:
            nulls = [_mean(table.where(**{MODEL: name}).numbers(NULL)) for name in names]
            grey = {"symbol": "line-ew", "size": 26, "line": {"width": 2, "color": GREY}}
            figure.add_scatter(x=models, y=nulls, name="null", mode="markers", marker=grey, **panel)
        if published(quantity) in table.columns:
            papers = [table.where(**{MODEL: name}).numbers(published(quantity))[0] for name in names]
            figure.add_scatter(
                x=models, y=papers, name="the paper's model", **_PAPER, **panel | {"showlegend": not is_paper_named}
            )
            is_paper_named = True
        figure.update_yaxes(title=escaped(quantity), row=i + 1, col=1, **_axis(quantity))
    figure.update_xaxes(range=[-0.5, len(models) - 0.5])
    caption = "One mark for each seed with its interval over sequences; the line is the mean of the seeds."
    return themed(figure, table.title, 130 + _PANEL * max(1, len(shown)), f"{caption} {table.note}")


def sink_against_loss(table: Table) -> go.Figure:
    """Importance of the first token and of the slot, a row per model, and beside it the loss.

    The models stand by family, and in a family by the attention to their first token.
    """
    by_family = _by_family(table)
    names = [name for family in by_family.values() for name in family]
    places = [place for title, family in by_family.items() for place in (title, *family)]  # a row for each heading
    figure = make_subplots(
        1, 2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.03,
        subplot_titles=("importance, mean over heads", "validation loss, nats per token"),
    )  # fmt: skip
    _add_importances(figure, table, names, row=1, col=1)
    losses = _means(table, names, LOSS)
    figure.add_scatter(x=losses, y=names, name=LOSS, **_dots(2, "square"), row=1, col=2)
    figure.update_xaxes(**SHARE, row=1, col=1)
    words = [f"<b>{place}</b>" if place in by_family else escaped(place) for place in places]
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=places, range=[len(places) - 0.5, -0.5],
        tickmode="array", tickvals=places, ticktext=words, tickfont={"size": 11},
    )  # fmt: skip
    caption = (
        "Each row is a model, mean over its seeds: how much attention its first token, or its slot, receives; grey: "
        "the null of the first token. Models stand by what they change of the first one."
    )
    return themed(figure, table.title, 170 + 17 * len(places), f"{caption} {table.note}")


def importances(table: Table) -> go.Figure:
    """Importance of the first token and of the slot, a row per model, beside the null of the first token."""
    figure = go.Figure()
    names = unique_values(table, MODEL)
    _add_importances(figure, table, names)
    figure.update_xaxes(title="share of the attention", **PERCENT)
    figure.update_yaxes(type="category", autorange="reversed")
    caption = "Mean over the heads and seeds of each model; grey: the null of the first token."
    return themed(figure, table.title, 150 + 30 * len(names), f"{caption} {table.note}")


def _by_family(table: Table) -> dict[str, list[Cell]]:
    """The names of the models of each family, those with the strongest sink first; the baseline comes first."""
    present = unique_values(table, MODEL)
    alphas = dict(zip(present, _means(table, present, ALPHA_1), strict=True))
    known = {name for names in families().values() for name in names}
    groups = {"baseline": [name for name in present if name not in known]} | {
        title: sorted((name for name in present if name in names), key=lambda name: -_or_zero(alphas[name]))
        for title, names in families().items()
    }
    return {title: names for title, names in groups.items() if names}


def _or_zero(value: float) -> float:
    """The value, or 0 where there is none."""
    return value if math.isfinite(value) else 0.0


def _add_importances(figure: go.Figure, table: Table, names: list[Cell], **panel: int) -> None:
    """Marks of the null, the slot and the first token of each model."""
    grey = {
        "mode": "markers",
        "marker": {"color": GREY, "symbol": "line-ns", "size": 12, "line": {"width": 2, "color": GREY}},
    }
    null = NULL if NULL in table.columns else f"null {ALPHA_1}"
    figure.add_scatter(x=_means(table, names, null), y=names, name="null", **grey, **panel)
    if ALPHA_SLOT in table.columns and any(map(math.isfinite, table.numbers(ALPHA_SLOT))):
        figure.add_scatter(x=_means(table, names, ALPHA_SLOT), y=names, name="slot", **_dots(1, "diamond"), **panel)
    figure.add_scatter(x=_means(table, names, ALPHA_1), y=names, name="first token", **_dots(0, "circle"), **panel)


def _dots(index: int, symbol: str) -> dict[str, object]:
    return {"mode": "markers", "marker": {"color": colour(index), "symbol": symbol, "size": 9}}


def _means(table: Table, names: list[Cell], quantity: str) -> list[float]:
    return [_mean(table.where(**{MODEL: name}).numbers(quantity)) for name in names]


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _axis(quantity: str) -> dict[str, object]:
    return SHARE if quantity in _SHARES else {}
