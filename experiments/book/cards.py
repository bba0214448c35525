"""Small copies of figures, for cards."""

import json
from collections.abc import Mapping, Sequence
from operator import methodcaller
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

GROUP = 10  # letters of a line of the name of a group of bars
HEIGHT, LETTERS = 190, 10  # pixels and size of letters, of a small figure
MOST_NAMED, LONGEST = 12, 30  # names that fit below each other, and letters of a name
_RIGHT = ("type", "range", "rangemode", "tickformat", "autorange", "exponentformat", "categoryorder", "categoryarray")


def json_ready(figure: go.Figure) -> dict[str, Any]:
    """The figure's data and layout, with arrays as lists; a number that JSON cannot hold (NaN, infinity) is None."""
    parts = {"data": [trace.to_plotly_json() for trace in figure.data], "layout": figure.layout.to_plotly_json()}
    plain: dict[str, Any] = json.loads(json.dumps(parts, default=methodcaller("tolist")), parse_constant=lambda _: None)
    return plain


def thumbnail(figure: go.Figure, height: int = HEIGHT) -> go.Figure:
    """The first panel of a figure at the size of a card, so many pixels high, without legend and scale."""
    plain = json_ready(figure)
    layout, scale = plain["layout"], {"coloraxis": {**plain["layout"].get("coloraxis", {}), "showscale": False}}
    traces = [trace for trace in plain["data"] if trace.get("xaxis", "x") == "x"]
    traces, groups = _numbered(traces)
    if any(trace["type"] == "bar" and isinstance(trace["x"][0], str) for trace in traces):
        traces, layout = _lying(traces, layout)
    for trace in traces:
        trace |= {"showscale": False} if trace["type"] == "heatmap" else {}
        trace |= {"mode": "markers"} if "text" in str(trace.get("mode")) else {}
    axes = {name: _small(layout.get(name, {}), [trace.get(name[0]) for trace in traces]) for name in ("xaxis", "yaxis")}
    axes["xaxis"]["showticklabels"] = "tickvals" not in axes["xaxis"]  # names stand to the left alone
    axes["xaxis"] |= groups
    size = {"height": height, "margin": {"l": 38, "r": 10, "t": 8, "b": 30}, "font": {"size": LETTERS}}
    about = {"template": layout.get("template", {}), "showlegend": False, **size, **scale}
    return go.Figure({"data": traces, "layout": about | axes})


def _numbered(traces: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Traces over names in groups, such as inputs by model, with numbers in their place, and ticks that name groups.

    Other traces stay as they are, without ticks.
    """
    grouped = [trace for trace in traces if trace.get("x") and isinstance(trace["x"][0], list)]
    places = {
        pair: i
        for i, pair in enumerate(dict.fromkeys(pair for each in grouped for pair in zip(*each["x"], strict=True)))
    }
    members: dict[str, list[int]] = {}
    for (group, _), i in places.items():
        members.setdefault(group, []).append(i)
    for trace in grouped:
        trace["x"] = [places[pair] for pair in zip(*trace["x"], strict=True)]
    names = ["<br>".join(wrap(name, GROUP)) for name in members]
    middles = [sum(numbers) / len(numbers) for numbers in members.values()]
    ticks = {"tickvals": middles, "ticktext": names, "tickangle": 0, "showticklabels": True}
    return traces, ticks if grouped else {}


def _lying(traces: Sequence[dict[str, Any]], layout: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Traces and layout with the axes exchanged, so that the names of bars stand to the left."""
    turned = {"x": "y", "y": "x", "error_y": "error_x"}
    lying = [{turned.get(key, key): value for key, value in trace.items()} for trace in traces]
    lying = [trace | ({"orientation": "h"} if trace["type"] == "bar" else {}) for trace in lying]
    names = {**layout.get("xaxis", {}), "autorange": "reversed"}
    return lying, {**layout, "xaxis": layout.get("yaxis", {}), "yaxis": names}


def _small(axis: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    """An axis of a small figure, over the whole room: with few ticks, and with few and short names of its values."""
    words = [value for some in values if some is not None for value in some if isinstance(value, str | list)]
    names = [*dict.fromkeys(map(str, words))] if len(words) <= MOST_NAMED * len(values) else []
    short = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    text = axis.get("title", {}).get("text", "") if not words or "".join(names).isdecimal() or not names else ""
    few = {"dtick": 1} if axis.get("type") == "log" else {"nticks": 5}
    about = {"title": {"text": text, "standoff": 4, "font": {"size": LETTERS}}, "automargin": True, "domain": [0, 1]}
    kept = {name: axis[name] for name in _RIGHT if axis.get(name) is not None}
    return {**kept, **about, **({"tickvals": names, "ticktext": short} if words else few)}
