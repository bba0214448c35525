"""Maps of activation patching: the share of a behaviour that every place restores."""

import numpy as np
import plotly.graph_objects as go

from ..plots.series import unique_values
from ..plots.theme import DIVERGING, escaped, themed
from ..table import Table
from .columns import HEAD, KV_HEAD, LAYER, POSITION
from .maps import shown_word

RESTORED, CONTROL, FIRST_ORDER, TOKEN, KEY = "restored", "control", "first order", "token", "key"
DIRECT = "direct"


def restored_figure(table: Table) -> go.Figure:
    """The share restored as a heat map: layers downwards, positions with their words or heads to the right."""
    across = next(name for name in (KEY, POSITION, HEAD, KV_HEAD) if name in table.columns)
    down = [name for name in (LAYER, HEAD, KV_HEAD, POSITION) if name in table.columns and name != across]
    keys = [tuple(row[name] for name in down) for row in table.rows]
    lines = list(dict.fromkeys(keys))
    columns = unique_values(table, across)
    z = np.full((len(lines), len(columns)), np.nan)
    for key, row in zip(keys, table.rows, strict=True):
        z[lines.index(key), columns.index(row[across])] = row[RESTORED]
    has_words = TOKEN in table.columns
    words = dict(zip(table.column(POSITION), table.column(TOKEN), strict=True)) if has_words else {}
    x = [f"{i} {escaped(shown_word(str(words[i])))}" if i in words else f"{across} {i}" for i in columns]
    figure = go.Figure().add_heatmap(
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
    figure.update_xaxes(title=f"{across} (from 0)", type="category", tickangle=-60)
    figure.update_yaxes(title=".".join(down), type="category", autorange="reversed")
    caption = (
        "The share of the clean behaviour that one patched place restores: 1 all of it, 0 none, below 0 the opposite."
    )
    return themed(figure, table.title, 260 + max(240, min(720, 18 * len(lines))), f"{caption} {table.note}")
