"""What figures share: one look, light or dark and colour-blind safe, and curves, error bars, bands and axes."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..files import data_of
from ..table import HEAD, LAYER, NULL, Cell, Table, high_of, low_of

Colours = Sequence[str]
LEGEND_Y = 1.08  # where a legend stands above the panels, in heights of the panels
# colours of the models that ship; their names begin with the task, as in demo-softmax
FIXED = {"softmax": 0, "sigmoid": 1, "k_bias": 2, "sigmoid_length": 3, "softmax-48k": 4}
TASKS = ("demo-", "text-")


@dataclass(frozen=True)
class Theme:
    """Colours by their role, as #RRGGBB.

    quiet: nulls and captions. faint: lines of the grid. colours: one per series. sequential: a scale from nothing to
    most. diverging: a scale from -1 through 0 to 1.
    """

    background: str
    text: str
    quiet: str
    faint: str
    colours: Colours
    sequential: Colours
    diverging: Colours

    def all_colours(self) -> Colours:
        """All colours in the order of their roles."""
        return [colour for role in vars(self).values() for colour in ([role] if isinstance(role, str) else role)]


LIGHT, DARK = (Theme(**data_of("plots/theme.toml")[name]) for name in ("light", "dark"))
COLOURS, GREY = LIGHT.colours, LIGHT.quiet


def _stops(colours: Colours) -> list[tuple[float, str]]:
    return [(i / (len(colours) - 1), colour) for i, colour in enumerate(colours)]


MAGNITUDE, DIVERGING = _stops(LIGHT.sequential), _stops(LIGHT.diverging)


def themed(figure: go.Figure, title: str, height: int = 420, caption: str = "") -> go.Figure:
    """The figure with the theme's layout, on a light background.

    `caption` says what is plotted, with n, T, epsilon and BOS; `caption_of` gives it back. The legend has each name
    once, where it comes first. Variants of our models are named in words.
    """
    named: set[str] = set()
    for part in (*figure.data, *figure.select_xaxes(), *figure.select_yaxes()):
        part.update({key: in_words(part[key]) for key in _NAMES if key in part and part[key] is not None})
    for note in figure.layout.annotations:
        note.text = in_words(note.text)
    for trace in figure.data:
        if trace.name in named and trace.showlegend is None:
            trace.showlegend = False
        named |= {trace.name} - {None} if trace.showlegend is not False else set()
    at_top_left = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14, "l": 14}}
    figure.update_layout(
        template=_TEMPLATE,
        height=height,
        meta={"caption": _said_once(caption)},
        margin={"l": 70, "r": 30, "t": 110, "b": 60},
        title={"text": escaped(title), **at_top_left},
        legend={"orientation": "h", "yanchor": "bottom", "y": LEGEND_Y, "x": 0},
    )
    return figure


_VARIANTS = "|".join(map(re.escape, sorted(data_of("lm/changes.toml"), key=len, reverse=True)))
_VARIANT = re.compile(rf"(?:(\w+)-)?(k_bias_\d+d|{_VARIANTS})(-\d+k)?(, .*)?")  # text-softmax-48k; k_bias, seed 0
_NAMES = ("name", "x", "y", "text", "ticktext", "tickvals", "categoryarray")  # of traces and axes


def in_words(value: Any) -> Any:
    """The name of a variant of our models in words, also in a list; any other value as it is.

    "kv_bias" is "KV biases", "text-k_bias" is "K biases (text)", and "k_bias, seed 0" is "K biases, seed 0".
    """
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind in "OU"):
        return [in_words(part) for part in value]
    if not isinstance(value, str) or not (named := _VARIANT.fullmatch(value)):
        return value
    task, variant, steps, rest = (part or "" for part in named.groups())
    words = re.sub("^(k|v|kv)_bias", lambda found: f"{found[1].upper()} biases", variant).replace("_", " ")
    return f"{words}{steps}{task and f' ({task})'}{rest}"


def _said_once(caption: str) -> str:
    """The caption. A part that the notes of all models share is said once."""
    parts = caption.split("; ")
    times = Counter(parts)
    of_all = {part for part in parts if times[part] == max(times.values())}
    return "; ".join(part for i, part in enumerate(parts) if part not in of_all or part not in parts[:i])


def caption_of(figure: go.Figure) -> str:
    """The caption that the figure was given by `themed`; empty for a figure that was not."""
    return (figure.layout.meta or {}).get("caption", "") if isinstance(figure.layout.meta, dict) else ""


def translation(theme: Theme) -> Mapping[str, str]:
    """Every colour of the light theme, and the colour with the same role in `theme`."""
    return dict(zip(LIGHT.all_colours(), theme.all_colours(), strict=True))


def escaped(value: object) -> str:
    """A value from data as text for a name or a title. Plotly reads a few HTML tags in those, so they are escaped."""
    return escape(str(value), quote=False)


def colour(index: int) -> str:
    """The colour of series number `index`; the palette repeats."""
    return COLOURS[index % len(COLOURS)]


def faded(colour: str, share: float = 0.18) -> str:
    """A colour that is transparent but for `share` of it: for bands."""
    return f"{colour}{round(255 * share):02X}"


def _template() -> go.layout.Template:
    """Plotly's template in the light theme."""
    layout = data_of("plots/theme.toml", **vars(LIGHT))["template"]
    axis, scene_axis = layout.pop("axis"), layout.pop("scene_axis")
    layout |= {"xaxis": axis, "yaxis": axis, "scene": dict.fromkeys(("xaxis", "yaxis", "zaxis"), scene_axis)}
    layout |= {"colorway": COLOURS, "colorscale": {"sequential": MAGNITUDE, "diverging": DIVERGING}}
    return go.layout.Template(layout=layout)


_TEMPLATE = _template()


def model_numbers(models: Sequence[Cell]) -> dict[Cell, int]:
    """The number of each model's colour. A model has the same number in every figure.

    Models that ship have fixed numbers, others a number that follows from the name. If two models of a figure would
    have the same number, the later one takes the next that is free.
    """
    numbers: dict[Cell, int] = {}
    in_order = sorted(dict.fromkeys(models), key=lambda model: _bare(model) not in FIXED)
    for model in in_order:
        name, taken = _bare(model), {number % len(COLOURS) for number in numbers.values()}
        wanted = FIXED.get(name, zlib.crc32(name.encode()) % len(COLOURS))
        free = [i for i in range(len(COLOURS)) if (wanted + i) % len(COLOURS) not in taken]
        numbers[model] = (wanted + (free[0] if free else 0)) % len(COLOURS)
    return numbers


def _bare(model: Cell) -> str:
    """The name of a model without owner, folder and task."""
    name = str(model).rstrip("/").split("/")[-1]
    return next((name.removeprefix(task) for task in TASKS if name.startswith(task)), name)


MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
LOG_FROM = 30.0  # largest over smallest value from which an axis is logarithmic
SHARE: dict[str, object] = {"range": [-0.03, 1.03]}  # of an axis from 0 to 1
PERCENT = SHARE | {"tickformat": ".0%"}
BAR_ERROR = {"color": LIGHT.text, "width": 3}
MEASURED = "measured"
PANEL_FONT = {"size": 12}  # of the titles of panels side by side
LETTERS = 100  # of this size that fit side by side below a figure


def sweep_figure(table: Table, x: str, quantities: Sequence[str], by: str | None = None) -> go.Figure:
    """A panel per quantity over column `x`: a line per value of `by` with its 95% interval, null and control in grey.

    If `x` holds text, as the edits of `si.sweep` do, it is at the left, and every value has its own grey mark.
    Grey is drawn of the first series, from the columns `control QUANTITY` and `null QUANTITY`, and from `null` for the
    first quantity, with their intervals where the table has them.
    """
    series = {MEASURED: table}
    if by is not None:
        series = {escaped(value): table.where(**{by: value}) for value in unique_values(table, by)}
    draw = _over_text if table.is_text(x) else _over_numbers
    figure = draw(table, series, x, quantities)
    has_grey = any(_greys(table, quantity, i == 0) for i, quantity in enumerate(quantities))
    intervals = ", with 95% intervals" * any(low_of(quantity) in table.frame for quantity in quantities)
    caption = f"{', '.join(quantities)} over {x}{intervals}{'; grey: null or control' * has_grey}."
    height = 210 + 34 * len(unique_values(table, x)) if table.is_text(x) else 420
    return themed(figure, table.title, height, f"{caption} {table.note}")


def _over_numbers(table: Table, series: Mapping[str, Table], x: str, quantities: Sequence[str]) -> go.Figure:
    figure = make_subplots(1, len(quantities), horizontal_spacing=0.3 / max(3, len(quantities)))
    first_series = next(iter(series.values()))
    for i, quantity in enumerate(quantities):
        place = {"row": 1, "col": i + 1}
        for column, (name, dash) in _greys(table, quantity, is_first=i == 0).items():
            add_grey_band(figure, first_series, x, column, name, place, dash)
        for j, (name, rows) in enumerate(series.items()):
            add_curve(figure, rows, x, quantity, j, name=name, legendgroup=name, **place)
        figure.update_yaxes(title={"text": escaped(quantity), "font": PANEL_FONT}, **place)
    figure.update_yaxes(rangemode="tozero")
    return figure.update_xaxes(title=escaped(x))


def _over_text(table: Table, series: Mapping[str, Table], x: str, quantities: Sequence[str]) -> go.Figure:
    figure = make_subplots(1, len(quantities), shared_yaxes=True)
    first_series, wide = next(iter(series.values())), {"color": faded(GREY, 0.4), "thickness": 14, "width": 0}
    grey_mark = {"color": GREY, "symbol": "line-ns-open", "size": 14, "line": {"width": 3}}
    for i, quantity in enumerate(quantities):

        def add(rows: Table, column: str, name: str, marker: dict[str, Any], bars: Any, col: int = i + 1) -> None:
            points = {"x": rows.numbers(column), "y": list(map(escaped, cells_of(rows, x))), "error_x": bars}
            figure.add_scatter(**points, mode="markers", marker=marker, name=name, legendgroup=name, row=1, col=col)

        for column, (name, _) in _greys(table, quantity, is_first=i == 0).items():
            add(first_series, column, name, grey_mark, (error_bars(first_series, column) or {}) | wide)
        for j, (name, rows) in enumerate(series.items()):
            marker = {"color": colour(j), "symbol": MARKERS[j % len(MARKERS)], "size": 9}
            add(rows, quantity, name, marker, error_bars(rows, quantity))
        wrapped = "<br>".join(map(escaped, wrap(quantity, max(14, LETTERS // len(quantities)))))
        figure.update_xaxes(title={"text": wrapped, "font": PANEL_FONT}, row=1, col=i + 1)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure.update_yaxes(title=escaped(x), col=1)


def _greys(table: Table, quantity: str, is_first: bool) -> dict[str, tuple[str, str]]:
    """The columns to draw in grey beside a quantity: the name of each in the legend, and the dash of its line."""
    greys = {f"control {quantity}": ("control", "dash"), f"null {quantity}": ("null", "dot")}
    greys |= {NULL: ("null", "dot")} if is_first else {}
    return {column: how for column, how in greys.items() if column in table.frame}


def unique_values(table: Table, column: str) -> list[Cell]:
    """The values of a column, each once, in the order of the rows."""
    return list(dict.fromkeys(cells_of(table, column)))


def cells_of(table: Table, column: str) -> list[Cell]:
    """The cells of a column, top to bottom; a missing one is None."""
    return [row[column] for row in table.records()]


def add_curve(figure: go.Figure, rows: Table, x: str, y: str, index: int = 0, **more: Any) -> None:
    """Adds column `y` over column `x` as a line with markers and, where the table has them, intervals.

    `index` gives colour and marker; `more` are further attributes of the trace, and its panel.
    """
    style = {"mode": "lines+markers", "line": {"color": colour(index)}, "error_y": error_bars(rows, y)}
    marker = {"symbol": MARKERS[index % len(MARKERS)], "size": 8}
    figure.add_scatter(x=cells_of(rows, x), y=rows.numbers(y), **{**style, "marker": marker, "name": escaped(y)} | more)


def error_bars(table: Table, column: str) -> dict[str, Any] | None:
    """Plotly's asymmetric error bars from the interval of a quantity; None where the table has none."""
    if low_of(column) not in table.frame:
        return None
    values, lows, highs = (table.numbers(name) for name in (column, low_of(column), high_of(column)))
    return {
        "type": "data",
        "array": [high - value for value, high in zip(values, highs, strict=True)],
        "arrayminus": [value - low for value, low in zip(values, lows, strict=True)],
        "thickness": 1.5,
    }


def add_grey_band(
    figure: go.Figure, rows: Table, x: str, column: str, name: str, place: Mapping[str, Any], dash: str = "dot"
) -> None:
    """Adds a null or control in grey: its interval as a filled band, where it has one, and its mean as a broken line.

    `name` is that of the legend, `place` that of the panel.
    """
    add_band(figure, rows, x, column, name, place)
    shared = {"x": cells_of(rows, x), "mode": "lines", "legendgroup": name, **place}
    figure.add_scatter(y=rows.numbers(column), name=name, line={"color": GREY, "dash": dash}, **shared)


def add_band(
    figure: go.Figure, rows: Table, x: str, column: str, name: str, place: Mapping[str, Any], of: str = GREY
) -> None:
    """Adds the interval of a column as a filled band in the colour `of`, where the table has one."""
    if low_of(column) in rows.frame:
        edge = {"x": cells_of(rows, x), "mode": "lines", "legendgroup": name, **place}
        edge |= {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        fill = {"fill": "tonexty", "fillcolor": faded(of)}
        figure.add_scatter(y=rows.numbers(low_of(column)), name=f"{name}, low", **edge)
        figure.add_scatter(y=rows.numbers(high_of(column)), name=f"{name}, high", **fill, **edge)


def grid_of(table: Table, column: str, down: Sequence[str] = (LAYER,), across: str = HEAD) -> Any:
    """The numbers of a column as a pandas frame, `row column`, both in order; NaN where the table has no row."""
    return table.frame.pivot(index=[*down], columns=across, values=column).astype(float)


def heat_map(table: Table, column: str, down: Sequence[str] = (LAYER,), across: str = HEAD, **more: Any) -> go.Figure:
    """A map of `grid_of`, its first row at the top. `more` are further attributes of the trace."""
    grid = grid_of(table, column, down, across)
    rows = [".".join(map(str, place)) for place in grid.index.to_frame().itertuples(index=False)]
    look = {"colorscale": MAGNITUDE, "colorbar": {"title": column}} | more
    figure = go.Figure().add_heatmap(z=grid.to_numpy(), x=[*map(str, grid.columns)], y=rows, **look)
    figure.update_xaxes(title=across, type="category")
    return figure.update_yaxes(title=".".join(down), type="category", autorange="reversed")


def positive_axis(values: Sequence[float]) -> dict[str, Any]:
    """An axis for positive values: logarithmic where they differ by more than `LOG_FROM`, else from zero."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    is_wide = bool(positive) and max(positive) > LOG_FROM * min(positive)
    linear = {"type": "linear", "rangemode": "tozero"}
    return {"type": "log", "exponentformat": "power", "dtick": 1} if is_wide else linear
