"""The page in a real browser: as light or dark as the viewer, light on paper, with no word to anyone."""

import shutil

import plotly.graph_objects as go
import pytest

from sinkinterp.pages.page import Section, page
from sinkinterp.plots.theme import DARK, LIGHT, MAGNITUDE, colour, themed

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
ASK = """() => {
  const [plot] = document.querySelectorAll(".js-plotly-plot"), rgb = (node) => getComputedStyle(node);
  return {page: rgb(document.body).backgroundColor, words: rgb(document.querySelector("h1")).color,
          caption: rgb(document.querySelector("figcaption")).color, line: plot._fullData[0].line.color,
          scale: plot._fullData[1].colorscale[0][1], paper: plot._fullLayout.paper_bgcolor,
          name: plot._fullData[0].name};
}"""
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
def opened(tmp_path_factory):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 5], name=LIGHT.text, line={"color": colour(1)}))
    figure.add_heatmap(z=[[1, 2]], colorscale=MAGNITUDE)
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(page("t", "l", [Section("h", "", [themed(figure, "f", caption="words")])]), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        found = browser.new_page(color_scheme="light")
        found.complaints, found.requests = [], []
        found.on("console", lambda said: found.complaints.append(said.text))
        found.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.on("request", lambda request: found.requests.append(request.url))
        found.goto(file.as_uri())
        found.wait_for_selector(".js-plotly-plot .main-svg")
        yield found
        browser.close()


def test_the_page_follows_the_viewer_back_and_forth(opened):
    assert opened.evaluate(ASK) == look(LIGHT)
    for scheme, theme in (("dark", DARK), ("light", LIGHT), ("dark", DARK)):
        opened.emulate_media(color_scheme=scheme)
        opened.wait_for_function(IS_ON, arg=theme.background)
        assert opened.evaluate(ASK) == look(theme)


def test_figures_are_light_on_paper(opened):
    opened.emulate_media(color_scheme="dark")
    for event, theme in (("beforeprint", LIGHT), ("afterprint", DARK)):
        opened.evaluate(f"dispatchEvent(new Event('{event}'))")
        opened.wait_for_function(IS_ON, arg=theme.background)
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(LIGHT.background)
    opened.emulate_media(media="screen", color_scheme="light")


def test_the_page_asks_and_complains_of_nothing(opened):
    assert opened.complaints == []
    assert {url.split(":")[0] for url in opened.requests} <= {"file", "data", "blob"}


def test_no_button_offers_to_send_the_data_away(opened):
    buttons = opened.eval_on_selector_all(".modebar-btn", "all => all.map(one => one.dataset.title)")
    assert buttons and not [words for words in buttons if "hare" in words or "loud" in words]
