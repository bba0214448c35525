from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from report.test_tables import REPORT
from sinkinterp._experiments.book.cards import thumbnail
from sinkinterp._experiments.shared.lengths import over_length

from sinkinterp.applications.position_swap import swap_chart
from sinkinterp.plots.theme import (
    COLOURS,
    GREY,
    caption_of,
    colour,
    faded,
    model_numbers,
    positive_axis,
    sweep_figure,
    themed,
)
from sinkinterp.report.heads import score_gaps_by_head, sinks_by_head, sinks_by_position
from sinkinterp.report.maps import HeadMaps, attention_figure
from sinkinterp.report.norms import massive_by_block, norms_by_kind, residual_norms_by_block
from sinkinterp.runs.trained import training
from sinkinterp.table import Table

WEIGHTS = np.array([[[0.6, np.nan, np.nan], [0.4, 0.1, np.nan], [0.2, 0.5, 0.3]], [[1, np.nan, np.nan]] * 3])
HEADS_OF_MAPS = [(0, 1), (4, 2)]
PLAIN = HeadMaps(HEADS_OF_MAPS, {"weight": WEIGHTS, "score": WEIGHTS * 10, "cosine": -WEIGHTS}, 3, alpha=(0.4, 1.0))
SLOTTED = HeadMaps(HEADS_OF_MAPS, PLAIN.values, 3, slot=np.full((2, 3), 0.25), alpha=(0.3, 0.9))


def interval(name, *value_low_high):
    return dict(zip((name, f"{name} low", f"{name} high"), value_low_high, strict=True))


TRAINING = Table.of(
    "training", "",
    tuple({"model": model, "step": step, "valid_loss": 4.0 - step / 10, "sink_1": step / 20,
           "sink_slot": None if model == "a" else 0.5} for model in ("a", "b") for step in (0, 5, 11)),
)  # fmt: skip
SWAPS = Table.of(
    "swaps", "",
    tuple({"input": name, "edit": edit, "t": t, **interval("Sink_1", 0.5, 0.25, 0.875),
           **interval("Sink_t", 0.25, 0.125, 0.75)}
          for name in ("natural", "random") for edit, t in (("none", 1), ("swap", 5), ("swap", 11))),
)  # fmt: skip
FIGURES = {
    "attention maps": lambda: attention_figure(
        {name: replace(maps, words=["a", "<b>", " "]) for name, maps in (("plain", PLAIN), ("slot", SLOTTED))}, "maps"
    ),
    "heads": sinks_by_head(REPORT).plot,
    "residuals": residual_norms_by_block({"a": REPORT, "b": REPORT}).plot,
    "training": lambda: training(TRAINING),
    "swaps": lambda: swap_chart(SWAPS),
    "positions": sinks_by_position(REPORT).plot,
}


def bars(trace):
    return list(trace.error_y.array), list(trace.error_y.arrayminus)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_title_and_names_its_axes(name):
    figure = FIGURES[name]()
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    assert figure.layout.title.text and any(axis.title.text for axis in axes)
    if name not in ("training", "swaps"):  # whose panels share an axis
        assert figure.layout.xaxis.title.text and figure.layout.yaxis.title.text


def test_attention_maps_have_a_row_for_each_query_as_long_as_what_it_sees_and_tell_rank_score_and_word():
    figure = FIGURES["attention maps"]()
    first = figure.data[0]
    assert [list(row) for row in first.z] == [[0.6], [0.4, 0.1], [0.2, 0.5, 0.3]]
    assert [list(cell) for cell in first.customdata[2]] == [[0.2, 2.0, 3], [0.5, 5.0, 1], [0.3, 3.0, 2]]
    assert list(first.x) == list(first.y) == ["0 a", "1 &lt;b&gt;", "2 ·"]


def test_a_menu_of_heads_begins_with_the_strongest_and_shows_one_in_every_panel():
    figure = FIGURES["attention maps"]()
    heads, _ = figure.layout.updatemenus
    assert [button.label for button in heads.buttons] == [
        "layer 0, head 1: alpha_1 0.40 → 0.30",
        "layer 4, head 2: alpha_1 1.00 → 0.90",
    ]
    assert heads.active == 1 and [trace.visible for trace in figure.data] == [False, True] * 3
    assert heads.buttons[0].args[0]["visible"] == [True, False] * 3


def test_a_menu_of_quantities_changes_maps_and_their_colours_but_not_the_slots_column():
    figure = FIGURES["attention maps"]()
    _, quantities = figure.layout.updatemenus
    values, colours, traces = quantities.buttons[2].args
    assert [button.label for button in quantities.buttons][2] == "cosine of query and key" and traces == (0, 1, 2, 3)
    assert [list(row) for row in values["z"][0]] == [[-0.6], [-0.4, -0.1], [-0.2, -0.5, -0.3]]
    assert (colours["coloraxis.cmin"], colours["coloraxis.cmax"]) == (-1, 1)
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    *_, slot = figure.data
    assert (list(slot.x), slot.zmin, slot.zmax, [list(row) for row in slot.z]) == (["slot *"], 0, 1, [[0.25]] * 3)
    for axis in (figure.layout.xaxis, figure.layout.xaxis2):  # panels have one size, and the slot stands apart
        assert list(axis.categoryarray)[:3] == ["slot *", " ", "0 a"] and list(axis.range) == [-0.5, 4.5]


def test_heads_stand_in_the_row_of_their_layer():
    (trace,) = FIGURES["heads"]().data
    np.testing.assert_allclose(trace.z, [[0.7, 0.1], [0.4, 0.2]], atol=1e-6)
    assert (list(trace.x), list(trace.y)) == (["0", "1"], ["0", "3"])
    np.testing.assert_allclose(trace.customdata[1, 1], [0.1, 0.0, 0.9, 1.0], atol=1e-6)  # null, rate, values, keys


RESIDUALS = residual_norms_by_block({"a": REPORT, "b": replace(REPORT, residual_norms=REPORT.residual_norms * 3)})
CURVES = {  # a table, its column across, and the rows and the column of each trace
    "residuals": (
        RESIDUALS, "block",
        [({"model": m}, column) for m in ("a", "b") for column in ("first token", "other tokens", "ratio")],
    ),
    "training": (
        Table.of("t", "", TRAINING.records(), training), "step",
        [({"model": m}, column) for m in ("a", "b") for column in ("valid_loss", "sink_1", "sink_slot")],
    ),
    "positions": (sinks_by_position(REPORT), "position", [({}, c) for c in ("null alpha", "alpha", "sink rate")]),
    "massive": (massive_by_block(REPORT), "block", [({}, c) for c in ("max |x|", "max / median", "kurtosis")]),
    "norms": (
        norms_by_kind(REPORT), "block",
        [({"tokens": kind, "quantity": what}, "norm") for kind in ("first token", "other sinks", "other tokens")
         for what in ("residual", "key", "value")],
    ),
    "angles": (
        score_gaps_by_head(REPORT), "layer",
        [({}, f"{what}, {key}") for key in ("first key", "others") for what in ("cosine", "norm product")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_each_trace_is_a_column_of_its_rows_with_their_intervals(name):
    table, x, columns = CURVES[name]
    for trace, (where, column) in zip(table.plot().data, columns, strict=True):
        rows = table.where(**where)
        assert list(trace.x) == rows.numbers(x)
        np.testing.assert_equal(list(trace.y), rows.numbers(column))
        if trace.type == "scatter" and f"{column} low" in rows.frame:
            value, low, high = (np.array(rows.numbers(f"{column}{end}")) for end in ("", " low", " high"))
            np.testing.assert_equal(bars(trace), ([*high - value], [*value - low]))


def test_the_legend_has_each_model_once_and_a_ratio_of_one_is_marked():
    figure = FIGURES["residuals"]()
    assert [trace.showlegend for trace in figure.data] == [None, False, False] * 2
    assert [(shape.y0, shape.y1) for shape in figure.layout.shapes] == [(1, 1)]


def test_swaps_draw_both_rates_with_their_intervals_in_the_panel_of_their_input():
    figure = FIGURES["swaps"]()
    assert [(trace.name, trace.xaxis) for trace in figure.data] == [
        ("Sink_1", "x"), ("Sink_t", "x"), ("Sink_1", "x2"), ("Sink_t", "x2"),
    ]  # fmt: skip
    assert [note.text for note in figure.layout.annotations] == ["input: natural", "input: random"]
    assert [list(x) for x in figure.data[0].x] == [["none", "swap", "swap"], ["1", "5", "11"]]
    assert bars(figure.data[0]) == ([0.375] * 3, [0.25] * 3)
    assert bars(figure.data[3]) == ([0.5] * 3, [0.125] * 3)


def test_swaps_show_the_papers_values_as_hollow_marks_where_they_are_known():
    known = Table.of("", "", tuple(row | {"paper Sink_1": 0.625} for row in SWAPS.records()))
    marks = [trace for trace in swap_chart(known).data if trace.type == "scatter"]
    assert [(list(mark.y), mark.marker.symbol) for mark in marks] == [([0.625] * 3, "circle-open")] * 2


def test_models_keep_one_colour_and_the_palette_never_ends():
    data = FIGURES["residuals"]().data
    first, second = (model_numbers(["a", "b"])[name] for name in ("a", "b"))
    assert {trace.line.color for trace in data[:3]} == {colour(first)}
    assert {trace.line.color for trace in data[3:]} == {colour(second)} != {colour(first)}
    assert colour(len(COLOURS)) == colour(0)


def test_the_small_copy_of_a_map_keeps_its_slot_on_the_left_and_its_scale():
    small = thumbnail(attention_figure({"slot": SLOTTED}, "maps"), 130)
    cells, slot = small.data[0], small.data[-1]
    shared = small.layout.coloraxis
    assert cells.coloraxis == "coloraxis" and (shared.cmin, shared.cmax, slot.zmin, slot.zmax) == (0, 1, 0, 1)
    assert small.layout.xaxis.categoryarray[0] == slot.x[0] == "slot *"


def test_a_small_figure_of_bars_in_groups_names_the_groups():
    names = [["one", "one", "a-model-with-a-long-name"], ["text", "random", "text"]]
    small = thumbnail(go.Figure([go.Bar(x=names, y=[1, 2, 3]), go.Scatter(x=names, y=[3, 2, 1])]))
    ticks = small.layout.xaxis
    assert [trace.x for trace in small.data] == [(0, 1, 2), (0, 1, 2)]
    assert (ticks.ticktext, ticks.tickvals) == (("one", "a-model-<br>with-a-<br>long-name"), (0.5, 2.0))


LENGTHS = Table.of(
    "lengths", "n=7",
    tuple({"model": model, "T": t, "epsilon": e, **interval("Sink_1", e / 2, e / 4, e), "null": e / 8, "n": 7}
          for model in ("a", "b") for e in (0.2, 0.4) for t in (8, 64)),
)  # fmt: skip
SWEEP = Table.of(
    "sweep", "n=7",
    tuple({"edit": edit, "width": i, "model": model, **interval("rate", 0.5 + i / 10, 0.25, 0.75), "loss": 3.0 + i,
           **interval("control rate", 0.3, 0.2, 0.375), "null": 0.1}
          for model in ("a", "b") for i, edit in enumerate(("none", "clamp", "drop"))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.0, 29.0], "linear"), ([1.0, 31.0], "log"), ([0.0, 5.0], "linear"), ([float("nan")], "linear")],
)
def test_an_axis_is_logarithmic_where_values_differ_widely(values, kind):
    assert positive_axis(values)["type"] == kind


def test_lengths_have_a_line_per_epsilon_beside_its_null_and_a_panel_per_model():
    data = over_length(LENGTHS).data
    assert [(trace.name, trace.xaxis) for trace in data[:4]] == [
        ("epsilon 0.2", "x"), ("uniform, 0.2", "x"), ("epsilon 0.4", "x"), ("uniform, 0.4", "x"),
    ]  # fmt: skip
    assert len(data) == 8 and all(list(trace.x) == [8, 64] for trace in data)
    assert [list(trace.y) for trace in data[4:6]] == [[0.1, 0.1], [0.025, 0.025]]
    assert data[1].line.dash == "dot" and data[0].line.color == data[1].line.color


def test_training_leaves_out_what_nobody_watched():
    rows = tuple({**row, "sink_slot": None, "grad_norm": 0.5, "train_loss": 3.0} for row in TRAINING.records())
    table = Table.of("t", "", rows)
    titles = [note.text for note in training(table).layout.annotations]
    assert titles == ["validation loss (nats)", "Sink_1 (share of heads)"]


def test_a_sweep_draws_its_lines_with_intervals_and_its_control_as_a_band():
    data = sweep_figure(SWEEP, "width", ["rate", "loss"], "model").data
    low, high, control, null, a, b, *losses = data
    assert [list(trace.y) for trace in (low, high, control, null)] == [[0.2] * 3, [0.375] * 3, [0.3] * 3, [0.1] * 3]
    assert (high.fill, high.fillcolor) == ("tonexty", faded(GREY)) and low.line.width == high.line.width == 0
    assert [trace.showlegend for trace in (low, high, control)] == [False, False, None]
    assert (control.name, control.line.dash, null.name, null.line.dash) == ("control", "dash", "null", "dot")
    assert list(a.y) == list(b.y) == [0.5, 0.6, 0.7] and (a.name, b.name) == ("a", "b")
    assert bars(a)[0] == pytest.approx([0.25, 0.15, 0.05])
    assert [list(trace.y) for trace in losses] == [[3, 4, 5]] * 2  # no band: the null is that of the rate
    assert all(list(trace.x) == [0, 1, 2] for trace in data)


def test_words_that_were_swept_over_stand_to_the_left_each_with_its_own_control():
    figure = sweep_figure(SWEEP, "edit", ["rate", "loss"], "model")
    control, null, a, b, *losses = figure.data
    assert all(list(trace.y) == ["none", "clamp", "drop"] and trace.mode == "markers" for trace in figure.data)
    assert (control.name, list(control.x), list(null.x)) == ("control", [0.3] * 3, [0.1] * 3)
    assert list(control.error_x.array) == pytest.approx([0.075] * 3) and control.error_x.thickness > 9
    assert list(a.x) == list(b.x) == [0.5, 0.6, 0.7] and list(a.error_x.arrayminus) == pytest.approx([0.25, 0.35, 0.45])
    assert [list(trace.x) for trace in losses] == [[3, 4, 5]] * 2
    assert figure.layout.yaxis.autorange == "reversed"


def test_every_name_stands_once_in_the_legend_even_of_the_last_panel():
    for x in ("width", "edit"):
        shown = [
            trace.name
            for trace in sweep_figure(SWEEP, x, ["loss", "rate"], "model").data
            if trace.showlegend is not False
        ]
        assert sorted(shown) == ["a", "b", "control", "null"]


def test_no_panel_of_a_sweep_names_its_quantity_twice():
    for x, axis in (("width", "yaxis"), ("edit", "xaxis")):
        layout = sweep_figure(SWEEP, x, ["loss", "rate"], "model").layout
        assert [layout[name].title.text for name in (axis, f"{axis}2")] == ["loss", "rate"] and not layout.annotations


def test_a_caption_has_once_what_the_notes_of_all_models_say():
    notes = "a: n=3; by sequence; T=7; b: n=5; by Student's t; T=7; c: n=2; by Student's t; T=7"
    said = "a: n=3; by sequence; T=7; b: n=5; by Student's t; c: n=2; by Student's t"
    assert caption_of(themed(go.Figure(), "", caption=notes)) == said


def test_a_sweep_without_null_or_series_has_one_line_a_quantity():
    bare = Table.of("s", "", tuple({"x": i, "y": i / 2} for i in range(3)))
    (trace,) = sweep_figure(bare, "x", ["y"]).data
    assert list(trace.y) == [0, 0.5, 1] and trace.error_y.array is None


def test_swaps_draw_the_null_on_every_bar():
    known = Table.of("", "", tuple(row | {"null": 0.125} for row in SWAPS.records()))
    marks = [trace for trace in swap_chart(known).data if trace.type == "scatter"]
    assert [list(mark.y) for mark in marks] == [[0.125] * 3] * 4
    assert [(mark.offsetgroup, mark.showlegend) for mark in marks[:2]] == [("Sink_1", None), ("Sink_t", False)]


def test_captions_end_in_the_protocol():
    for figure in (over_length(LENGTHS), sweep_figure(SWEEP, "edit", ["rate"])):
        assert caption_of(figure).endswith("n=7") and len(caption_of(figure)) > 20
