"""What every page keeps to, in a real browser: words are explained, colours are readable, nothing moves unasked."""

from statistics import fmean

import pytest
from pages.atlases import small_atlas
from pages.shipped import BOOK, by_stem, chapters
from report.test_tables import REPORT
from sinkinterp._experiments.book.chapter import PLOTLY, chapter_page
from sinkinterp._experiments.book.story import front_page, story_page
from sinkinterp._experiments.shared.figures import importances

from sinkinterp.pages.atlas_page import atlas_page
from sinkinterp.pages.report import measurement_page

TABLE04 = "table04_attention_biases"


def rates():
    return importances(by_stem()[TABLE04].table)


PAGES = {
    "book": lambda: front_page(chapters(), PLOTLY, "story.html"),
    "story": lambda: story_page(chapters(), PLOTLY, "index.html"),
    "chapter": lambda: chapter_page(by_stem()[TABLE04], by_stem()[TABLE04].table, rates()),
    "report": lambda: measurement_page(REPORT, 0.3),
    "view": lambda: atlas_page(small_atlas()[0]),
    "live": None,
}


@pytest.fixture(scope="module", params=PAGES)
def opened(request, tab, tmp_path_factory):
    """Each page on a phone."""
    folder = tmp_path_factory.mktemp("pages")
    look = {"reduced_motion": "reduce", "viewport": {"width": 420, "height": 900}, "has_touch": True}
    if PAGES[request.param] is not None:
        (folder / "page.html").write_text(PAGES[request.param](), encoding="utf-8")
        (folder / PLOTLY).symlink_to(BOOK / PLOTLY)
        page = tab(folder / "page.html", **look)
    else:
        page = tab(request.getfixturevalue("address"), "#results:not([hidden])", **look)
    yield page
    page.close()


@pytest.mark.parametrize("opened", ["book", "story", "chapter", "report"], indirect=True)
def test_a_page_keeps_the_room_of_its_figures_before_they_are_drawn(opened):
    opened.mouse.wheel(0, 20_000)
    assert opened.evaluate("probe.growth()") == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_what_is_behind_them(opened, settled, scheme):
    opened.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    settled(opened)
    assert opened.evaluate("probe.faint().slice(0, 5)") == []


def test_a_page_fits_a_phone_asks_for_nothing_and_does_not_move(opened):
    assert opened.evaluate("document.documentElement.scrollWidth") <= 420
    assert opened.complaints == []
    origins = {url.split("/")[-1] for url in opened.requests if not url.startswith(("data:", "blob:"))}
    assert origins <= {"page.html", PLOTLY, "", "ask"} and opened.locator(".modebar-btn").count() == 0
    assert opened.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].every((one) => !one._context.plotlyServerURL)"
    )
    assert opened.evaluate("probe.moving()") == []


def test_the_first_special_word_of_a_page_is_explained_to_pointer_tap_and_key(opened):
    word, box = opened.locator(".term:visible").first, opened.locator("#explanation")
    meaning = opened.evaluate("word => probe.meaning(word)", word.text_content())
    assert meaning and box.is_hidden()
    word.hover()
    assert box.text_content() == meaning
    opened.mouse.move(1, 1)
    box.wait_for(state="hidden")
    word.tap()
    assert box.is_visible()
    at = box.bounding_box()
    assert at["x"] >= 0 and at["x"] + at["width"] <= 420
    opened.keyboard.press("Escape")
    assert box.is_hidden()
    opened.evaluate("document.activeElement.blur()")
    word.focus()
    assert box.is_visible()
    opened.keyboard.press("Escape")
    terms = opened.eval_on_selector_all(".term", "all => all.map((one) => one.textContent.toLowerCase())")
    assert len(terms) == len(set(terms))


@pytest.mark.parametrize("opened", ["story"], indirect=True)
def test_the_slider_of_the_story_counts_heads_by_keyboard(opened):
    table = by_stem()["figure19_heads"].table
    heads = [
        row["alpha_1"] for row in table.records() if row["model"] == table.records()[0]["model"]
    ]  # one map, of the first model
    opened.focus("#epsilon")
    for step in range(6, 10):
        count = sum(a > 0.05 * step for a in heads)
        assert opened.text_content("#count") == f"{0.05 * step:.2f}: {count} of {len(heads)}"
        assert step > 6 or f"{count} of its {len(heads)} heads" in opened.text_content("#sink > p")
        opened.keyboard.press("ArrowRight")
    shown = opened.evaluate("document.getElementById('figure-sink').data[1].z.flat().filter((z) => z !== null).length")
    assert shown == sum(a > 0.5 for a in heads)


@pytest.mark.parametrize("opened", ["story"], indirect=True)
def test_the_map_of_heads_goes_from_before_to_after(opened):
    opened.locator("#figure-moved .heatmaplayer").wait_for(state="attached")
    before, after = (row["alpha_1"] for row in by_stem()["moved_sink"].table.records()[:2])

    def drawn():
        figure = "document.getElementById('figure-moved')"
        return fmean(opened.evaluate(f"[...{figure}._fullData[0].z].flatMap((row) => [...row])"))

    assert drawn() == pytest.approx(before)
    opened.focus("#moved-slider")
    for key, mean in (("End", after), ("Home", before)):
        opened.keyboard.press(key)
        assert drawn() == pytest.approx(mean)
    opened.click("#moved-play")
    opened.locator("#moved-play:not([disabled])").wait_for()
    assert drawn() == pytest.approx(after)
