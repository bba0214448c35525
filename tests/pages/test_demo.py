import numpy as np
import pytest

from sinkinterp.backends.load import load
from sinkinterp.pages import gallery
from sinkinterp.pages.gallery import demo_page
from sinkinterp.pages.report import measurement_page
from sinkinterp.runs.case import Inputs


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def result(cache, few):
    return gallery.demo(cache=cache, steps=40)


@pytest.fixture(scope="module")
def few():
    """67 sequences in place of 512."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "DEMO_SEQUENCES", 67)
        yield


def test_the_demo_measures_every_twin_with_intervals_and_nulls(result):
    assert list(result.reports) == ["softmax", "sigmoid", "k_bias"]
    for variant, report in result.reports.items():
        rows = {row["quantity"]: row for row in result.twins.where(model=variant).rows}
        sink, alpha = rows["Sink_1 at epsilon 0.3 (position 0)"], rows["alpha_1, mean over heads"]
        assert sink["value"] == report.sink_rate() and sink["value low"] <= sink["value"] <= sink["value high"]
        assert alpha["null"] == pytest.approx(0.2113 if variant != "k_bias" else 0.1525, abs=1e-4)
        assert ("Sink_* at epsilon 0.3 (slot)" in rows) == (variant == "k_bias")
        assert ("alpha_1 of raw weights" in rows) == (variant == "sigmoid")


def test_the_swap_table_has_every_input_edit_and_target(result):
    assert len(result.swaps.rows) == 3 * (1 + 3 * len(gallery.TARGETS))
    assert {row["input"] for row in result.swaps.rows} == {"natural", "random", "repeated"}


def test_maps_are_means_of_rows_that_sum_to_one(result):
    for variant, maps in result.maps.items():
        weights = maps.values["weight"]
        assert weights.shape == (1, 16, 16) and (maps.slot is not None) == (variant == "k_bias")
        np.testing.assert_allclose(np.nansum(weights, -1) + (0 if maps.slot is None else maps.slot), 1, atol=1e-5)


def test_a_second_demo_trains_nothing(result, cache):
    steps = []
    again = gallery.demo(cache=cache, steps=40, on_step=lambda *news: steps.append(news))
    assert steps == [] and again.twins == result.twins and again.swaps == result.swaps


def test_a_checkpoint_of_ours_is_measured_on_its_own_task(result, cache):
    folder = next((cache / "runs").glob("*/step-*40"))
    token_set = Inputs(13, 11).token_set(load(folder), str(folder))
    assert token_set.tokens.shape == (11, 13) and "Bigram-Backcopy" in token_set.source


def test_pages_are_whole(result):
    for html in (demo_page(result), measurement_page(result.reports["k_bias"], 0.3)):
        assert html.startswith("<!doctype html>") and html.rstrip().endswith("</html>")
        assert "n=67" in html and "T=16" in html and "epsilon" in html
