"""What to leave out: the outlier tokens and dimensions of every block, and what leaving them out changes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plots.series import sweep_figure
from ..plots.theme import colour, themed
from ..table import Table
from .columns import BLOCK

LEFT_OUT = "left out"
TOKENS_BY_KIND = ("first", "delimiters", "repeats", "other tokens")
FIRST, DELIMITERS, REPEATS, OTHERS = range(len(TOKENS_BY_KIND))
DIMS, LONGEST = "dimensions", "longest / median"
EXPLAINED, EXPLAINED_ALL = "explained variance", "with outliers"
DEAD, SPLICED = "dead features", "added loss, spliced in"
WHAT, ERROR, ADDED = "quantised", "relative error", "added loss"


def outliers_figure(table: Table) -> go.Figure:
    """Outlier tokens of every kind, and how long the longest token is, by block."""
    figure = make_subplots(1, 2, subplot_titles=("outlier tokens, share of the kind", LONGEST))
    for i, kind in enumerate(TOKENS_BY_KIND):
        bar = {"x": table.column(BLOCK), "y": table.numbers(kind), "name": kind, "marker": {"color": colour(i)}}
        figure.add_bar(**bar, row=1, col=1)
    line = {"color": colour(4)}
    figure.add_scatter(x=table.column(BLOCK), y=table.numbers(LONGEST), name=LONGEST, line=line, row=1, col=2)
    figure.update_xaxes(title="block (0: embedding)").update_yaxes(tickformat=".0%", range=[0, 1.03], col=1)
    figure.update_yaxes(type="log", exponentformat="power", col=2)
    return themed(figure, table.title, 440, table.note)


def pca_figure(table: Table) -> go.Figure:
    """Explained variance by what was left out of the fit."""
    return sweep_figure(table, LEFT_OUT, (EXPLAINED,))


def dictionary_figure(table: Table) -> go.Figure:
    """Explained variance, dead features and added loss of dictionaries by what was left out of their training."""
    return sweep_figure(table, LEFT_OUT, (EXPLAINED, DEAD, SPLICED))


def quantisation_figure(table: Table) -> go.Figure:
    """Error and added loss: a colour for what is left out, a line for every way to quantise."""
    figure = sweep_figure(table, WHAT, (ERROR, ADDED), by=LEFT_OUT)
    return figure.update_xaxes(type="log", exponentformat="power", col=1)
