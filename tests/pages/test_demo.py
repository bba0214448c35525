"""The demo is drawn from twins that it trains, and pictures of models from the checkpoints that ship."""

import re

import numpy as np
import pytest
from sinkinterp._experiments.book import model_pictures

from sinkinterp.backends.named_models import downloaded
from sinkinterp.pages import demo
from sinkinterp.pages.demo import demo_page
from sinkinterp.pages.report import measurement_page
from sinkinterp.plots.theme import caption_of
from sinkinterp.runs.workers import Here


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def result(cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SEQUENCES", 11)
        yield demo.demo(cache=cache, workers=Here(), steps=12)


def test_the_demo_measures_every_twin_with_intervals_and_nulls(result):
    assert list(result.reports) == ["softmax", "sigmoid", "k_bias"]
    for variant, report in result.reports.items():
        rows = {row["quantity"]: row for row in result.twins.where(model=variant).records()}
        sink, alpha = rows["Sink_1 at epsilon 0.3 (position 0)"], rows["alpha_1, mean over heads"]
        assert sink["value"] == report.sink_rate().mean and sink["value low"] <= sink["value"] <= sink["value high"]
        assert alpha["null"] == pytest.approx(0.2113 if variant != "k_bias" else 0.1525, abs=1e-4)
        assert ("Sink_* at epsilon 0.3 (slot)" in rows) == (variant == "k_bias")
        assert ("alpha_1 of raw weights" in rows) == (variant == "sigmoid")


def test_the_swap_table_has_every_input_edit_and_target(result):
    assert len(result.swaps.frame) == 3 * (1 + 3 * len(demo.TARGETS))
    assert {row["input"] for row in result.swaps.records()} == {"natural", "random", "repeated"}


def test_maps_are_means_of_rows_that_sum_to_one(result):
    for variant, maps in result.maps.items():
        weights = maps.values["weight"]
        assert weights.shape == (1, 16, 16) and (maps.slot is not None) == (variant == "k_bias")
        np.testing.assert_allclose(np.nansum(weights, -1) + (0 if maps.slot is None else maps.slot), 1, atol=1e-5)


def test_a_second_demo_trains_nothing(result, cache):
    told = []
    again = demo.demo(cache=cache, steps=12, on_training=lambda *news: told.append(news))
    assert told == [(0, 0)] and again.twins == result.twins and again.swaps == result.swaps


def test_pages_are_whole(result):
    for html in (demo_page(result), measurement_page(result.reports["k_bias"], 0.3)):
        assert html.startswith("<!doctype html>") and html.rstrip().endswith("</html>")
        assert "n=11" in html and "T=16" in html and "epsilon" in html


@pytest.mark.parametrize("name", model_pictures.PICTURES)
def test_pictures_of_models_have_a_title_and_their_protocol(name, monkeypatch):
    if model_pictures.NEEDED.get(name, "demo-softmax") not in {*downloaded(), "demo-softmax"}:
        pytest.skip("needs a pretrained model: run make models")
    monkeypatch.setattr(model_pictures, "SEQUENCES", 11)
    monkeypatch.setattr(model_pictures, "FEWER", 2)
    figure = model_pictures.PICTURES[name]()
    assert figure.layout.title.text
    assert all(re.search(part, caption_of(figure)) for part in ("n<?=", "T=", "BOS")[: 2 if name == "front" else 3])
    if name == "smollm2":
        natural, repeated = (np.array(trace.z) for trace in figure.data[:2])
        assert natural.shape == repeated.shape == (30, 9) and natural.mean() > 0.4 > 0.1 > repeated.mean()
        assert "GGUF Q4_1" in caption_of(figure) and "fine-tuned for chat" in caption_of(figure)
