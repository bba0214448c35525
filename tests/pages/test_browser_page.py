"""The page in a real browser: as light or dark as the viewer, light on paper, with no word to anyone."""

import numpy as np
import plotly.graph_objects as go
import pytest
from pages.test_book import chapter
from plots.test_figures import FIGURES
from sinkinterp._experiments.book.story import write_chapter

from sinkinterp.measurement.maps import attention_map
from sinkinterp.pages.page import Section, page
from sinkinterp.plots.theme import DARK, LIGHT, MAGNITUDE, colour, themed
from sinkinterp.report.explanation import NOTHING, CutMap, graph
from sinkinterp.runs.experiment import Outcome

IS_ON = "paper => document.querySelector('.js-plotly-plot')._fullLayout.paper_bgcolor == paper"


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def look(theme):
    return {
        "page": rgb(theme.background),
        "words": rgb(theme.text),
        "caption": rgb(theme.quiet),
        "line": theme.colours[1],
        "scale": theme.sequential[0],
        "paper": theme.background,
        "name": LIGHT.text,
    }


@pytest.fixture(scope="module")
def show(tab):
    """Opens a file on a wide screen, in light colours."""
    return lambda file: tab(file, color_scheme="light", viewport={"width": 1400, "height": 900})


@pytest.fixture(scope="module")
def show_html(show, tmp_path_factory):
    """Opens a page from its text."""

    def shown(html):
        file = tmp_path_factory.mktemp("page") / "page.html"
        file.write_text(html, encoding="utf-8")
        return show(file)

    return shown


@pytest.fixture(scope="module")
def opened(show_html):
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 5], name=LIGHT.text, line={"color": colour(1)}))
    figure.add_heatmap(z=[[1, 2]], colorscale=MAGNITUDE)
    return show_html(page("t", "l", [Section("h", "", [themed(figure, "f", caption="words")])]))


@pytest.fixture(scope="module")
def everything(show_html):
    """A page with every kind of figure."""
    return show_html(page("t", "l", [Section(name, "", [draw()]) for name, draw in FIGURES.items()]))


def test_the_page_follows_the_viewer_back_and_forth(opened):
    assert opened.evaluate("probe.colours()") == look(LIGHT)
    for scheme, theme in (("dark", DARK), ("light", LIGHT), ("dark", DARK)):
        opened.emulate_media(color_scheme=scheme)
        opened.wait_for_function(IS_ON, arg=theme.background, polling=100)
        assert opened.evaluate("probe.colours()") == look(theme)


def test_figures_are_light_on_paper(opened):
    opened.emulate_media(color_scheme="light")
    opened.wait_for_function(IS_ON, arg=LIGHT.background, polling=100)
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.emulate_media(color_scheme="dark")  # its event may come after that of printing
    opened.evaluate("new Promise((done) => setTimeout(done, 200))")
    opened.wait_for_function(IS_ON, arg=LIGHT.background, polling=100)
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.wait_for_function(IS_ON, arg=DARK.background, polling=100)
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(LIGHT.background)
    opened.emulate_media(media="screen", color_scheme="light")


def test_a_figure_that_was_zoomed_is_shown_whole_again(opened, settled):
    opened.wait_for_function(IS_ON, arg=LIGHT.background, polling=100)
    settled(opened)
    ranged = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range"
    whole = opened.evaluate(ranged)
    opened.evaluate("Plotly.relayout(document.querySelector('.js-plotly-plot'), {'xaxis.range': [1.2, 1.4]})")
    assert opened.evaluate(ranged) == [1.2, 1.4]
    opened.click("button[data-do=whole]")
    assert opened.evaluate(ranged) == pytest.approx(whole)


def test_a_figure_can_be_saved(opened):
    buttons = opened.eval_on_selector_all("button", "all => all.map(one => one.textContent)")
    assert buttons == ["Whole figure", "Save PNG", "Save SVG"]  # and none that sends the data away
    with opened.expect_download() as download:
        opened.click("button[data-do=svg]")
    assert download.value.suggested_filename == "s0f0.svg"


def test_a_saved_map_has_no_menus_and_its_title_says_what_they_chose(show_html):
    figure = attention_map("sinkinterp/text-softmax", "The cat sat on the mat.")
    shown = show_html(page("t", "", [Section("h", "", [figure])]))
    with shown.expect_download() as download:
        shown.click("button[data-do=svg]")
    picture = download.value.path().read_text(encoding="utf-8")
    assert "updatemenu" not in picture and "layer " in picture and "attention weight" in picture
    assert shown.locator(".updatemenu-header").count() == 2  # the page keeps them
    shown.close()


def test_a_chapter_draws_with_the_plotly_of_its_folder_and_without_it_each_figure_names_the_file(show, tmp_path):
    made = chapter("table1", Outcome.HOLDS)
    write_chapter(tmp_path, made, made.table, go.Figure().add_scatter(y=[1, 2]))
    shown = show(tmp_path / "table1.html")
    assert shown.locator(".js-plotly-plot .main-svg").count() > 0 and shown.complaints == []
    assert {url.split("/")[-1] for url in shown.requests if url.startswith("file:")} == {"table1.html", "plotly.min.js"}
    (tmp_path / "plotly.min.js").unlink()
    shown.visit(tmp_path / "table1.html")
    said = shown.eval_on_selector_all(".plot", "all => all.map(one => one.textContent)")
    assert said and set(said) == {"This figure could not be drawn: plotly.min.js was not loaded."}
    shown.close()


def test_a_figure_that_cannot_be_drawn_says_so_and_all_others_are_drawn(show_html):
    made = [Section(f"h{i}", "", [themed(go.Figure().add_scatter(y=[i, 2]), "f", caption="c")]) for i in range(3)]
    start, first, second, third = page("t", "l", made).split('"data":[{')
    shown = show_html(f'{start}"data":[{{{first}"data":[null,{{{second}"data":[{{{third}')
    texts = "all => all.map(one => one.querySelector('.main-svg') ? '' : one.textContent)"
    said = shown.eval_on_selector_all(".plot", texts)
    assert said[1].startswith("This figure could not be drawn: ") and [said[0], said[2]] == ["", ""]
    assert shown.complaints == []
    shown.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_nothing_overlaps_or_scrolls_sideways(everything, settled, width, scheme):
    everything.set_viewport_size({"width": width, "height": 900})
    everything.emulate_media(color_scheme=scheme)
    settled(everything)
    assert everything.evaluate("document.documentElement.scrollWidth") <= width
    assert everything.evaluate("probe.overlapsInFigures()") == []
    assert everything.complaints == []


def test_panels_stand_below_each_other_on_a_phone(everything, settled):
    for width, is_stacked in ((420, True), (1400, False)):
        everything.set_viewport_size({"width": width, "height": 900})
        settled(everything)
        for panels in everything.evaluate("probe.panels()"):
            lefts = {round(left) for left, *_ in panels}
            assert (len(lefts) == 1) == is_stacked, panels


def test_a_click_on_a_part_shows_the_map_where_it_is_cut(show_html):
    weights = np.tril(np.ones((5, 5)) / np.arange(1, 6)[:, None])
    maps = [CutMap(NOTHING, weights, 2.0), CutMap("MLP 1", weights / 2, 2.5)]
    figure = graph([("MLP 1", "head 2.0", 0.8), ("embedding", "head 2.0", 0.1)], "path", "caption", maps)
    tab = show_html(page("circuit", "", [Section("", "", [figure])]))
    box = tab.locator("path.point").nth(5).bounding_box()  # two ends of two arrows and the embedding come first
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.wait_for_timeout(200)  # Plotly looks for the point under the pointer after a while
    tab.mouse.down()
    tab.mouse.up()
    tab.wait_for_timeout(400)
    maps = "document.querySelector('.js-plotly-plot')._fullData.filter(t => t.meta && t.visible === true)"
    assert tab.evaluate(f"() => {maps}.map(t => t.meta.choice)") == ["MLP 1", "MLP 1"] and not tab.complaints
