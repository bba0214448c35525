"""One look for every figure, light or dark: colour-blind safe, readable in print."""

import zlib
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..table import Cell

Colours = tuple[str, ...]
LEGEND_Y = 1.08  # where a legend stands above the panels, in heights of the panels
FAMILY = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FIXED = {
    name: i for i, name in enumerate(("softmax", "sigmoid", "k_bias", "sigmoid_length", "softmax-48k"))
}  # colours of the models that ship; their names begin with the task, as in demo-softmax
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
        single = (self.background, self.text, self.quiet, self.faint)
        return (*single, *self.colours, *self.sequential, *self.diverging)


# Series at least 30 apart (CIE 1976) for full, red-, green- and blue-blind sight, and 3:1 against the background;
# scales rise or fall evenly in lightness, so that they survive a grey printer.
LIGHT = Theme(
    background="#FFFFFF",
    text="#1A1A1A",
    quiet="#5E6064",
    faint="#E1E4E8",
    colours=("#213A7F", "#D17F0F", "#1DA768", "#B57EBE", "#79250E", "#8379F7", "#111111"),
    sequential=("#F6F4DC", "#C4E2BA", "#74BFB8", "#3A8EB9", "#27509C", "#141B52"),
    diverging=("#6E3206", "#C77B2C", "#EBC79A", "#F4F1EC", "#AEB4DC", "#6468B4", "#2B2768"),
)
DARK = Theme(
    background="#15181D",
    text="#E8E6E3",
    quiet="#A9ADB3",
    faint="#30353D",
    colours=("#82AFFF", "#E66032", "#43FF94", "#CB6A98", "#F3C917", "#7650F1", "#F2F2F2"),
    sequential=("#20253B", "#27478A", "#3A83B0", "#6FB9B2", "#BFE0B6", "#FAF6D0"),
    diverging=("#FFCF9E", "#D8863A", "#6E4520", "#24272E", "#36407A", "#6E7FD8", "#C3CCFF"),
)
COLOURS, GREY = LIGHT.colours, LIGHT.quiet


def _stops(colours: Colours) -> list[tuple[float, str]]:
    return [(i / (len(colours) - 1), colour) for i, colour in enumerate(colours)]


MAGNITUDE, DIVERGING = _stops(LIGHT.sequential), _stops(LIGHT.diverging)


def themed(figure: go.Figure, title: str, height: int = 420, caption: str = "") -> go.Figure:
    """The figure with the theme's layout, on a light background.

    `caption` says what is plotted, with n, T, epsilon and BOS; `caption_of` gives it back.
    """
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


_AXIS = {
    "gridcolor": LIGHT.faint,
    "linecolor": LIGHT.faint,
    "zerolinecolor": LIGHT.faint,
    "tickcolor": LIGHT.faint,
    "automargin": True,
    "ticks": "outside",
    "title": {"standoff": 10},
}
_SCENE_AXIS = {"gridcolor": LIGHT.faint, "backgroundcolor": LIGHT.background, "color": LIGHT.text}
_HOVER = {
    "align": "left",
    "bgcolor": LIGHT.background,
    "bordercolor": LIGHT.quiet,
    "font": {"family": FAMILY, "color": LIGHT.text},
}
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FAMILY, "size": 13, "color": LIGHT.text},
        "paper_bgcolor": LIGHT.background,
        "plot_bgcolor": LIGHT.background,
        "colorway": COLOURS,
        "colorscale": {"sequential": MAGNITUDE, "diverging": DIVERGING},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "scene": {"xaxis": _SCENE_AXIS, "yaxis": _SCENE_AXIS, "zaxis": _SCENE_AXIS},
        "hoverlabel": _HOVER,
        "modebar": {"bgcolor": LIGHT.background, "color": LIGHT.quiet, "activecolor": LIGHT.text},
    }
)


def json_ready(figure: go.Figure) -> dict[str, Any]:
    """The figure's data and layout, with arrays as lists; a number that JSON cannot hold (NaN, infinity) is None."""
    converted: dict[str, Any] = _converted(figure.to_dict())
    return converted


def _converted(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() >= {"dtype", "bdata"}:
            return _converted(_unpacked(value))
        return {name: _converted(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _converted(value.tolist())
    if isinstance(value, list | tuple):
        return [_converted(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _unpacked(packed: Mapping[str, Any]) -> np.ndarray:
    """Plotly's packed array: base64 of its bytes, its type, and its shape ("3, 5") where it has more than one axis."""
    flat = np.frombuffer(b64decode(packed["bdata"]), packed["dtype"])
    return flat.reshape([int(n) for n in packed["shape"].split(",")]) if "shape" in packed else flat


def model_numbers(models: Sequence[Cell]) -> dict[Cell, int]:
    """The number of each model's colour. A model has the same number in every figure.

    Models that ship have fixed numbers, others a number that follows from the name. If two models of a figure would
    have the same number, the later one takes the next that is free.
    """
    numbers: dict[Cell, int] = {}
    in_order = sorted(dict.fromkeys(models), key=lambda model: _bare(model) not in FIXED)
    for model in in_order:
        wanted, taken = _wanted(model), {number % len(COLOURS) for number in numbers.values()}
        free = [i for i in range(len(COLOURS)) if (wanted + i) % len(COLOURS) not in taken]
        numbers[model] = (wanted + (free[0] if free else 0)) % len(COLOURS)
    return numbers


def _wanted(model: Cell) -> int:
    name = _bare(model)
    return FIXED[name] if name in FIXED else zlib.crc32(name.encode()) % len(COLOURS)


def _bare(model: Cell) -> str:
    """The name of a model without owner, folder and task."""
    name = str(model).rstrip("/").split("/")[-1]
    return next((name.removeprefix(task) for task in TASKS if name.startswith(task)), name)
