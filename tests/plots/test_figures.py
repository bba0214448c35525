import numpy as np
import pytest

from sinkinterp.plots import curves, heatmaps, norms, swaps, training
from sinkinterp.plots.models import model_numbers
from sinkinterp.plots.theme import COLOURS, colour
from sinkinterp.table import Table

MAP = np.arange(1.0, 10).reshape(3, 3) / 10
SLOTTED = np.arange(1.0, 13).reshape(3, 4) / 20


def interval(name, *value_low_high):
    return dict(zip((name, f"{name} low", f"{name} high"), value_low_high, strict=True))


HEADS = Table(
    "heads", "",
    tuple(
        {"layer": layer, "head": head, **interval("alpha_1", (7 * layer + head) / 100, 0.0, 1.0),
         "null": 0.1, "sink rate": 0.2, "value ratio": layer + 0.5, "key ratio": head + 0.25}
        for layer in (1, 4) for head in range(3)
    ),
)  # fmt: skip
RESIDUALS = Table(
    "residuals", "",
    tuple({"model": model, "block": b, "first token": 10.0 + b, "other tokens": 3.0 + b,
           **interval("ratio", 4.0 + b, 3.5, 7.0)} for model in ("a", "b") for b in range(3)),
)  # fmt: skip
TRAINING = Table(
    "training", "",
    tuple({"model": model, "step": step, "valid_loss": 4.0 - step / 10, "sink_1": step / 20,
           "sink_slot": None if model == "a" else 0.5} for model in ("a", "b") for step in (0, 5, 11)),
)  # fmt: skip
SWAPS = Table(
    "swaps", "",
    tuple({"input": name, "edit": edit, "t": t, **interval("Sink_1", 0.5, 0.25, 0.875),
           **interval("Sink_t", 0.25, 0.125, 0.75)}
          for name in ("natural", "random") for edit, t in (("none", 1), ("swap", 5), ("swap", 11))),
)  # fmt: skip
POSITIONS = Table(
    "positions", "",
    tuple({"position": p, **interval("sink rate", 0.5 - p / 10, 0.25 - p / 10, 0.875), "alpha": 0.3 - p / 50,
           "null alpha": 0.1} for p in range(5)),
)  # fmt: skip
SEEDS = Table(
    "seeds", "",
    tuple({"model": model, "seed": s, **interval("Sink_1", s / 10, 0.0, 0.5), "reported": 0.75}
          for model in ("a", "b") for s in range(3)),
)  # fmt: skip
FIGURES = {
    "attention maps": lambda: heatmaps.attention_maps({"plain": MAP, "slot": SLOTTED}, "maps"),
    "heads": lambda: heatmaps.heads_overview(HEADS),
    "residuals": lambda: norms.residual_norms(RESIDUALS),
    "training": lambda: training.training(TRAINING),
    "swaps": lambda: swaps.swap_chart(SWAPS),
    "positions": lambda: curves.by_position(POSITIONS),
    "seeds": lambda: curves.seeds(SEEDS, "Sink_1", "reported"),
}


def bars(trace):
    return list(trace.error_y.array), list(trace.error_y.arrayminus)


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_every_figure_has_a_title_and_names_an_axis(draw):
    figure = draw()
    assert figure.layout.title.text
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    assert any(axis.title.text for axis in axes)


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {"training", "swaps", "seeds"}))
def test_both_axes_of_the_first_panel_are_named(name):
    layout = FIGURES[name]().layout
    assert layout.xaxis.title.text
    assert layout.yaxis.title.text


def test_attention_maps_hold_the_patterns_and_nothing_above_the_diagonal():
    plain, slot = FIGURES["attention maps"]().data
    nan = np.nan
    np.testing.assert_array_equal(plain.z, [[0.1, nan, nan], [0.4, 0.5, nan], [0.7, 0.8, 0.9]])
    np.testing.assert_array_equal(slot.z, np.array([[1, 2, nan, nan], [5, 6, 7, nan], [9, 10, 11, 12]]) / 20)


def test_the_slots_column_is_labelled_with_a_star():
    plain, slot = FIGURES["attention maps"]().data
    layout = FIGURES["attention maps"]().layout
    assert list(plain.x) == list(plain.y) == list(slot.y) == [0, 1, 2]
    assert list(slot.x) == [-1, 0, 1, 2]
    assert (list(layout.xaxis.ticktext), list(layout.xaxis.tickvals)) == (["0", "1", "2"], [0, 1, 2])
    assert (list(layout.xaxis2.ticktext), list(layout.xaxis2.tickvals)) == (["*", "0", "1", "2"], [-1, 0, 1, 2])


def test_attention_maps_of_one_row_have_the_same_size_and_scale_of_positions():
    layout = FIGURES["attention maps"]().layout
    assert list(layout.xaxis.range) == list(layout.xaxis2.range) == [-1.5, 2.5]
    assert list(layout.yaxis.range) == list(layout.yaxis2.range) == [2.5, -0.5]
    widths = [axis.domain[1] - axis.domain[0] for axis in (layout.xaxis, layout.xaxis2)]
    assert widths[0] == pytest.approx(widths[1])


def test_attention_maps_share_one_colour_scale_from_0_to_1_and_carry_their_names():
    figure = FIGURES["attention maps"]()
    assert [(trace.zmin, trace.zmax) for trace in figure.data] == [(0, 1), (0, 1)]
    assert [trace.showscale for trace in figure.data] == [False, True]
    assert [note.text for note in figure.layout.annotations] == ["plain", "slot"]


def test_drawing_does_not_change_the_pattern():
    pattern = MAP.copy()
    heatmaps.attention_maps({"plain": pattern}, "maps")
    np.testing.assert_array_equal(pattern, MAP)


def test_heads_stand_in_the_row_of_their_layer():
    (trace,) = FIGURES["heads"]().data
    np.testing.assert_allclose(trace.z, [[0.07, 0.08, 0.09], [0.28, 0.29, 0.30]])
    assert (list(trace.x), list(trace.y)) == (["0", "1", "2"], ["1", "4"])
    np.testing.assert_allclose(trace.customdata[1, 2], [0.1, 0.2, 4.5, 2.25])


def test_residuals_draw_first_token_others_and_ratio_of_every_model():
    data = FIGURES["residuals"]().data
    assert [trace.name for trace in data] == ["a"] * 3 + ["b"] * 3
    first, others, ratio = data[3:]
    assert [list(trace.y) for trace in (first, others, ratio)] == [[10, 11, 12], [3, 4, 5], [4, 5, 6]]
    assert all(list(trace.x) == [0, 1, 2] for trace in data)
    assert bars(ratio) == ([3.0, 2.0, 1.0], [0.5, 1.5, 2.5])
    assert [trace.showlegend for trace in data] == [None, False, False] * 2


def test_training_draws_every_quantity_of_every_model_over_steps():
    data = FIGURES["training"]().data
    assert len(data) == 2 * 3
    assert [list(trace.y) for trace in data[:3]] == [[4.0, 3.5, 2.9], [0.0, 0.25, 0.55], [None] * 3]
    assert all(list(trace.x) == [0, 5, 11] for trace in data)


def test_swaps_draw_both_rates_with_their_intervals_in_the_panel_of_their_input():
    figure = FIGURES["swaps"]()
    assert [(trace.name, trace.xaxis) for trace in figure.data] == [
        ("Sink_1", "x"), ("Sink_t", "x"), ("Sink_1", "x2"), ("Sink_t", "x2"),
    ]  # fmt: skip
    assert [note.text for note in figure.layout.annotations] == ["natural input", "random input"]
    assert [list(x) for x in figure.data[0].x] == [["none", "swap", "swap"], ["0", "4", "10"]]
    assert bars(figure.data[0]) == ([0.375] * 3, [0.25] * 3)
    assert bars(figure.data[3]) == ([0.5] * 3, [0.125] * 3)


def test_swaps_show_the_papers_values_as_hollow_marks_where_they_are_known():
    known = Table("", "", tuple(row | {"paper Sink_1": 0.625} for row in SWAPS.rows))
    marks = [trace for trace in swaps.swap_chart(known).data if trace.type == "scatter"]
    assert [(list(mark.y), mark.marker.symbol) for mark in marks] == [([0.625] * 3, "circle-open")] * 2


def test_positions_draw_importance_null_and_rate():
    alpha, null, rate = FIGURES["positions"]().data
    assert list(alpha.x) == list(null.x) == list(rate.x) == [0, 1, 2, 3, 4]
    assert list(alpha.y) == POSITIONS.column("alpha")
    assert list(null.y) == [0.1] * 5
    assert bars(rate)[0] == pytest.approx([0.375, 0.475, 0.575, 0.675, 0.775])
    assert bars(rate)[1] == pytest.approx([0.25] * 5)


def test_seeds_draw_ours_with_intervals_and_the_reported_without():
    ours, paper, *others = FIGURES["seeds"]().data
    assert list(ours.x) == list(paper.x) == ["a, seed 0", "a, seed 1", "a, seed 2"]
    assert list(ours.y) == [0.0, 0.1, 0.2]
    assert bars(ours) == ([0.5, 0.4, 0.3], [0.0, 0.1, 0.2])
    assert (list(paper.y), paper.error_y.array) == ([0.75] * 3, None)
    assert [trace.name for trace in others] == ["b, ours", "b, paper"]


def test_models_keep_one_colour_and_the_palette_never_ends():
    data = FIGURES["residuals"]().data
    first, second = (model_numbers(["a", "b"])[name] for name in ("a", "b"))
    assert {trace.line.color for trace in data[:3]} == {colour(first)}
    assert {trace.line.color for trace in data[3:]} == {colour(second)} != {colour(first)}
    assert colour(len(COLOURS)) == colour(0)
