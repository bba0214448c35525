"""The gallery is drawn from whatever ships, and the demo from twins that it trains."""

import re

import numpy as np
import pytest
from sinkinterp._experiments.book import gallery

from sinkinterp.backends.named_models import SHIPPED, downloads
from sinkinterp.pages import demo
from sinkinterp.pages.demo import demo_page
from sinkinterp.pages.report import measurement_page
from sinkinterp.plots.theme import caption_of
from sinkinterp.runs.workers import Here


@pytest.fixture(scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "SEQUENCES", 11)
        patch.setattr(demo, "DEMO_SEQUENCES", 11)
        patch.setattr(gallery, "LANGUAGE_MODELS", {})  # real weights have a test of their own
        yield patch


@pytest.fixture(scope="module")
def drawn(few):
    return gallery.gallery()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def result(cache, few):
    return demo.demo(cache=cache, workers=Here(), steps=12)


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


def test_every_checkpoint_that_ships_is_shown(drawn):
    html = drawn.html
    for folder in SHIPPED.iterdir():
        if (folder / "recipe.json").is_file():
            assert f"<h2>{folder.name}</h2>" in html
    assert html.count("<span>Is there a sink?</span>") == len([*SHIPPED.glob("*/recipe.json")])
    assert html.count("<figcaption>") > 10 and "<figcaption></figcaption>" not in html


def test_every_preview_is_a_figure_with_title_and_protocol(drawn):
    assert drawn.previews.keys() == set(gallery.PREVIEWS) - {"smollm2"}
    for name, figure in drawn.previews.items():
        assert figure.layout.title.text
        assert all(re.search(part, caption_of(figure)) for part in ("n<?=", "T=", "BOS")), name


@pytest.mark.skipif(
    not (downloads() / "smollm2-135m-instruct").is_dir(), reason="needs local/smollm2-135m-instruct: run make models"
)
def test_a_pretrained_model_that_is_here_is_shown(monkeypatch):
    monkeypatch.setattr(gallery, "FEWER", 2)
    monkeypatch.setattr(gallery, "LANGUAGE_MODELS", {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"})
    named = []
    sections = list(gallery.pretrained_models(named.append))
    assert named == ["SmolLM2-135M-Instruct"] and sections[0].title == gallery.PREVIEWS["smollm2"]
    natural, repeated = (np.array(trace.z) for trace in sections[0].figures[0].data[:2])
    assert natural.shape == repeated.shape == (30, 9) and natural.mean() > 0.4 > 0.1 > repeated.mean()
    for figure in (figure for section in sections for figure in section.figures):
        assert "GGUF Q4_1" in caption_of(figure) and "fine-tuned for chat" in caption_of(figure)


def test_without_pretrained_models_nothing_is_drawn_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))
    assert not list(gallery.pretrained_models())
