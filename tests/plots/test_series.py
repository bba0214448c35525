"""Curves hold what their tables hold."""

import plotly.graph_objects as go
import pytest
from plots.test_figures import SWAPS, TRAINING, bars, interval
from sinkinterp._experiments.shared.lengths import over_length

from sinkinterp.applications.position_swap import swap_chart
from sinkinterp.plots.theme import GREY, caption_of, faded, positive_axis, sweep_figure, themed
from sinkinterp.report.norms import by_kind
from sinkinterp.runs.trained import training
from sinkinterp.table import Table

KINDS = Table.of(
    "norms", "n=7",
    tuple({"quantity": quantity, "block": block, "tokens": kind, **interval("norm", size + block, size, 9.0 + size)}
          for quantity, size in (("residual", 100.0), ("key", 10.0), ("value", 1.0))
          for kind in ("first <b>", "others") for block in range(3)),
)  # fmt: skip
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


def test_norms_have_a_panel_per_quantity_and_a_line_per_kind():
    figure = by_kind(KINDS)
    assert [(trace.name, trace.xaxis) for trace in figure.data] == [
        (name, axis) for name in ("first &lt;b&gt;", "others") for axis in ("x", "x2", "x3")
    ]
    assert [list(trace.y) for trace in figure.data[:3]] == [[100, 101, 102], [10, 11, 12], [1, 2, 3]]
    assert bars(figure.data[1]) == ([9.0, 8.0, 7.0], [0.0, 1.0, 2.0])
    assert (figure.layout.xaxis.title.text, figure.layout.xaxis2.title.text) == ("block (0: embedding)", "layer")


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
    for figure in (by_kind(KINDS), over_length(LENGTHS), sweep_figure(SWEEP, "edit", ["rate"])):
        assert caption_of(figure).endswith("n=7") and len(caption_of(figure)) > 20
