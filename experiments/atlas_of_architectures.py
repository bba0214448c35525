"""Who makes a sink, who does not, and at what loss: every architecture, in one chart."""

import math
from dataclasses import replace

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkinterp.lm.variants import BASE, distinct, families, variants
from sinkinterp.plots.theme import SHARE, escaped, themed, unique_values
from sinkinterp.table import ALPHA_1, LOSS, MODEL, Cell, Table

from .shared.figures import add_importances, dots
from .shared.rules import sink_or_none
from .shared.study import architecture, means_of, study

ELSEWHERE = ("llama", "heads_8", "gated_elements", "gated_values", "clipped", "differential")  # the last in `remedies`
NAMES = tuple(name for name in distinct(variants(BASE)) if name not in ELSEWHERE)
_STUDY = study(
    claim="Which architectures make a sink? No claim says that one should.",
    arms=tuple(architecture(name) for name in NAMES),
    rules=tuple(sink_or_none(name, baseline="softmax") for name in NAMES),
)


def sink_against_loss(table: Table) -> go.Figure:
    """Importance of the first token and of the slot, a row per model, and beside it the loss.

    The models by family, and in a family by the attention to their first token.
    """
    by_family = _by_family(table)
    names = [name for family in by_family.values() for name in family]
    places = [place for title, family in by_family.items() for place in (title, *family)]  # a row for each heading
    figure = make_subplots(
        1, 2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.03,
        subplot_titles=("importance, mean over heads", "validation loss, nats per token"),
    )  # fmt: skip
    add_importances(figure, table, names, row=1, col=1)
    losses = means_of(table, names, LOSS)
    figure.add_scatter(x=losses, y=names, name=LOSS, **dots(2, "square"), row=1, col=2)
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


def _by_family(table: Table) -> dict[str, list[Cell]]:
    """The names of the models of each family, those with the strongest sink first; the baseline comes first."""
    present = unique_values(table, MODEL)
    alphas = dict(zip(present, means_of(table, present, ALPHA_1), strict=True))
    known = {name for names in families().values() for name in names}
    groups = {"baseline": [name for name in present if name not in known]} | {
        title: sorted((name for name in present if name in names), key=lambda name: -_or_zero(alphas[name]))
        for title, names in families().items()
    }
    return {title: names for title, names in groups.items() if names}


def _or_zero(value: float) -> float:
    """The value, or 0 for a missing one."""
    return value if math.isfinite(value) else 0.0


EXPERIMENT = replace(_STUDY, draw=sink_against_loss)
