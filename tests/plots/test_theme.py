"""Contrast, colour blindness and lightness by computation (WCAG 2; Machado, Oliveira and Fernandes 2009; CIE 1976)."""

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings, strategies as st

from sinkinterp.plots.theme import COLOURS, DARK, LIGHT, caption_of, model_numbers, themed, translation

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
SIGHTS = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # what is left of linear RGB


def linear(hexed):
    channels = np.array([int(hexed[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (to_xyz @ rgb) / [0.9505, 1.0, 1.089]
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@THEMES
def test_words_stand_out_from_the_background_and_lines_do(theme):
    assert contrast(theme.text, theme.background) >= 7
    assert contrast(theme.quiet, theme.background) >= 4.5
    assert all(contrast(c, theme.background) >= 3 for c in theme.colours)


@THEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_series_differ_for_every_sight(theme, sight):
    seen = [lab(np.clip(np.array(SIGHTS[sight]) @ linear(c), 0, 1)) for c in theme.colours]
    nearest = min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i])
    assert nearest >= 30


@THEMES
def test_scales_are_even_in_lightness_so_that_a_grey_printer_keeps_their_order(theme):
    rise = np.array([lab(linear(c))[0] for c in theme.sequential])
    steps = np.diff(rise) * np.sign(rise[-1] - rise[0])
    assert (steps > 5).all() and abs(rise[-1] - rise[0]) > 75
    arms = np.array([lab(linear(c))[0] for c in theme.diverging])
    middle = len(arms) // 2
    inward = np.concatenate((np.diff(arms[: middle + 1]), -np.diff(arms[middle:])))
    assert (inward > 5).all() or (inward < -5).all()


@THEMES
def test_nothing_at_all_fades_into_the_background(theme):
    lightness = [lab(linear(c))[0] for c in (theme.background, theme.sequential[0], theme.sequential[-1])]
    assert abs(lightness[0] - lightness[1]) < abs(lightness[0] - lightness[2])


def test_every_colour_of_a_theme_has_one_role():
    for theme in (LIGHT, DARK):
        assert len(set(theme.all_colours())) == len(theme.all_colours())
    assert len(translation(DARK)) == len(LIGHT.all_colours()) == len(DARK.all_colours())


def test_a_figure_from_elsewhere_has_no_caption():
    assert caption_of(go.Figure()) == "" and caption_of(go.Figure(layout={"meta": "x"})) == ""


SHIPPED = ("softmax", "sigmoid", "k_bias")
NAMES = st.lists(st.text(max_size=8), unique=True, max_size=len(COLOURS))


def test_models_that_ship_have_the_same_colours_on_all_pages():
    assert model_numbers(SHIPPED) == {"softmax": 0, "sigmoid": 1, "k_bias": 2}
    for task in ("demo-", "text-", "sinkinterp/demo-", "/a/folder/text-"):
        assert list(model_numbers([task + name for name in reversed(SHIPPED)]).values()) == [2, 1, 0]


@settings(max_examples=50, deadline=None, database=None)
@given(NAMES)
def test_up_to_as_many_models_as_colours_differ(names):
    numbers = model_numbers(names)
    assert numbers.keys() == set(names) and len(set(numbers.values())) == len(names)
    assert all(0 <= number < len(COLOURS) for number in numbers.values())


@settings(max_examples=50, deadline=None, database=None)
@given(st.text(min_size=1, max_size=8), NAMES)
def test_a_model_that_ships_keeps_its_colour_whatever_stands_beside_it(name, others):
    assert model_numbers([*others, "softmax"])["softmax"] == 0
    assert model_numbers([name]) == model_numbers([name])


def test_more_models_than_colours_share_some():
    numbers = model_numbers([f"m{i}" for i in range(20)])
    assert len(numbers) == 20 and set(numbers.values()) == set(range(len(COLOURS)))


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "kv_bias": "KV biases", "k_bias, seed 0": "K biases, seed 0", "k_bias_16d": "K biases 16d",
        "text-k_bias": "K biases (text)", "text-softmax-48k": "softmax-48k (text)", "sigmoid_length": "sigmoid length",
        "sinkinterp/text-k_bias": "sinkinterp/text-k_bias", "smollm2": "smollm2", "no sink, gated": "no sink, gated",
    }.items(),
)  # fmt: skip
def test_a_figure_names_variants_in_words_and_leaves_other_names(name, words):
    figure = themed(go.Figure(go.Bar(x=[name], y=[1.0], name=name)), "")
    assert figure.data[0].name == words and list(figure.data[0].x) == [words]
