"""Maps of activation patching: the share of a behaviour that every place restores."""

import numpy as np
import plotly.graph_objects as go

from ..plots.theme import DIVERGING, escaped, themed
from ..plots.traces import unique_values
from ..table import Table
from .columns import HEAD, LAYER, POSITION

RESTORED, CONTROL, TOKEN = "restored", "control", "token"


def restored_figure(table: Table) -> go.Figure:
    """The share restored as a heat map: layers downwards, positions with their words or heads to the right."""
    across = POSITION if POSITION in table.columns else HEAD
    down = [name for name in (LAYER, HEAD) if name in table.columns and name != across]
    keys = [tuple(row[name] for name in down) for row in table.rows]
    lines = list(dict.fromkeys(keys))
    columns = unique_values(table, across)
    z = np.full((len(lines), len(columns)), np.nan)
    for key, row in zip(keys, table.rows, strict=True):
        z[lines.index(key), columns.index(row[across])] = row[RESTORED]
    words = dict(zip(table.column(across), table.column(TOKEN), strict=True)) if TOKEN in table.columns else {}
    x = [f"{i} {escaped(repr(words[i])[1:-1])}" if i in words else f"{across} {i}" for i in columns]
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=x,
            y=[".".join(map(str, key)) for key in lines],
            zmid=0,
            zmin=-1,
            zmax=1,
            colorscale=DIVERGING,
            colorbar={"title": RESTORED},
            hovertemplate=f"{' '.join(down)} %{{y}}, {across} %{{x}}: %{{z:.3f}}<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"{across} (from 0)", type="category", tickangle=-60)
    figure.update_yaxes(title=".".join(down), type="category", autorange="reversed")
    caption = (
        "The share of the clean behaviour that one patched place restores: 1 all of it, 0 none, below 0 the opposite."
    )
    return themed(figure, table.title, 260 + max(240, min(720, 18 * len(lines))), f"{caption} {table.note}")
