"""Attention maps in the sizes of papers, as a browser draws them: no text touches another one or the edge."""

import json
from itertools import combinations

import numpy as np
import pytest
from sinkinterp._experiments.book.cards import json_ready

from sinkinterp.checks import InputError
from sinkinterp.plots.paper import SMALLEST, for_paper
from sinkinterp.report.maps import HeadMaps, attention_figure

WORDS = ["<|begin_of_text|>", " return", "f", " internationalisation", "\n", " W", "<&>", "mmmmmm"]
BOXES = """() => [...document.querySelectorAll('text')].filter(t => t.textContent.trim()).map(t => {
    const box = t.getBoundingClientRect();
    return [t.textContent, box.left, box.top, box.right, box.bottom, parseFloat(getComputedStyle(t).fontSize)];
})"""


def maps_of(length, heads=1, has_slot=False, words=True, shift=0):
    """Maps of a text of so many tokens."""
    values = np.where(np.tri(length, dtype=bool), np.linspace(0, 1, length), np.nan)[None].repeat(heads, 0)
    texts = [WORDS[(i + shift) % len(WORDS)] for i in range(length)] if words else None
    slot = np.full((heads, length), 0.5) if has_slot else None
    return HeadMaps([(18, i) for i in range(heads)], {"weight": values}, length, slot, words=texts)


CASES = {
    "one short text": {"smollm2": maps_of(8)},
    "one long text": {"smollm2": maps_of(40)},
    "positions": {"a-model-with-a-long-name": maps_of(29, words=False)},
    "a slot": {"before": maps_of(23, has_slot=True), "after": maps_of(23, has_slot=True)},
    "three models": {f"team/a-long-name-{i}": maps_of(40, has_slot=i == 1) for i in range(3)},
    "three texts": {"first text": maps_of(13), "second text": maps_of(17, shift=3), "third text": maps_of(11)},
    "heads of a layer": {"smollm2": maps_of(11, heads=9)},
}


@pytest.fixture(scope="module")
def drawn(browser):
    """Draws a figure; gives its texts, their boxes and their sizes, all in pixels, and the box of the colour bar."""
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    with (
        sync_playwright() as player,
        player.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium,
    ):
        page = chromium.new_page(viewport={"width": 1400, "height": 1400})
        page.set_content("<body style='margin:0'><div id='x'></div></body>")
        page.add_script_tag(content=get_plotlyjs())

        def draw(figure):
            page.evaluate(f"() => Plotly.newPlot('x', {json.dumps(json_ready(figure))})")
            box = page.locator(".cbfills").bounding_box()
            return page.evaluate(BOXES), [box["y"], box["y"] + box["height"]]

        yield draw


@pytest.mark.parametrize("width", [3.25, 5.5, 6.75])
@pytest.mark.parametrize("case", CASES)
def test_labels_do_not_touch_and_the_colour_bar_is_as_tall_as_the_maps(drawn, case, width):
    panels = CASES[case]
    figure = for_paper(attention_figure(panels, "a title", every=True), width)
    texts, bar = drawn(figure)
    for text, left, top, right, bottom, size in texts:
        assert left > -1 and right < width * 96 + 1 and top > -1 and bottom < figure.layout.height + 1, text
        assert size >= SMALLEST - 1e-6
    for (a, *one, _), (b, *other, _) in combinations(texts, 2):
        across = min(one[2], other[2]) - max(one[0], other[0])
        down = min(one[3], other[3]) - max(one[1], other[1])
        assert across < 1 or down < 1, (a, b)
    axes = [axis.domain for axis in figure.select_yaxes()]
    ends = [(1 - end) * figure.layout.height for end in (max(map(max, axes)), min(map(min, axes)))]
    assert bar == pytest.approx(ends, abs=3)
    shown = [text for text, *_ in texts]
    assert sum("18." in text for text in shown) == len(figure.layout.annotations) - 2 == len(axes)


def test_a_picture_shows_every_head_that_was_asked_for_and_else_the_strongest():
    maps = {"a": maps_of(7, heads=5)}
    assert len(for_paper(attention_figure(maps, "", every=True), 5.5).data) == 5
    assert len(for_paper(attention_figure(maps, ""), 5.5).data) == 1


def test_maps_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="width"):
        for_paper(attention_figure({str(i): maps_of(30) for i in range(6)}, ""), 1.5)
