"""The page of heads in a real browser."""

import base64
import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from pages.atlases import NASTY, cells_of, importances, pairs_of, patterns, report_of, small_atlas
from plotly.offline import get_plotlyjs

from sinkinterp.attention.maps import SCORE, WEIGHT
from sinkinterp.pages.atlas import Atlas, Detail, Run
from sinkinterp.pages.atlas_page import atlas_page
from sinkinterp.pages.page import TEMPLATES
from sinkinterp.plots.theme import DARK, LIGHT
from sinkinterp.report.readings import short_name
from sinkinterp.table import Table

MARKUP = ("<b>x</b>", "a<br>b", "&lt;", "<i>", "H<sub>2", "&#60;&amp;", "$x$")  # what Plotly's labels would read
PWN = "<img src=x onerror=window.__pwned=1><svg onload=window.__pwned=1></script><script>window.__pwned=1//"
COARSE = {"length": 23, "side": 2, "slot": True, "bits": 8}
LOCAL = ("file:", "data:", "blob:", "about:")


@pytest.fixture(scope="module")
def opened(tab, tmp_path_factory):
    """Opens a page once per atlas."""
    pages = {}

    def load(name, atlas):
        if name not in pages:
            file = tmp_path_factory.mktemp("atlas") / "page.html"
            file.write_text(atlas_page(atlas), encoding="utf-8")
            pages[name] = tab(file, viewport={"width": 1400, "height": 1000})
        page = pages[name]
        reset(page)
        return page

    yield load
    for page in pages.values():
        page.close()


@pytest.fixture(scope="module")
def alone(tab, tmp_path_factory):
    """Opens a page that no other test sees, once `ready` is there; all of them in one tab."""
    pages, file = [], tmp_path_factory.mktemp("alone") / "page.html"

    def load(html, ready="body[data-ready]"):
        file.write_text(html, encoding="utf-8")
        if pages:
            pages[0].visit(file, ready)
        else:
            pages.append(tab(file, ready))
        return pages[0]

    yield load
    for page in pages:
        page.close()


@cache
def long_atlas(length=1203, side=2):
    """One map of more cells than are drawn, and its weights."""
    one = np.random.default_rng(3).random((length, length))
    one = np.where(np.tril(np.ones_like(one, bool)), one, np.nan)
    channels = {WEIGHT: np.stack([cells_of(one, side, stat) for stat in (0, 1)])[None]}
    run = Run(report_of(np.ones((2, 3, length))), channels, None, {1: pairs_of(length, side)})
    return Atlas([(1, 0)], Detail(side, 16, (WEIGHT,)), {"as it is": run}, "t{}".format, ()), one


def reset(page):
    page.evaluate("Object.assign(view, {place: 0, state: 0, channel: WEIGHT, scale: 'linear', mean: false})")
    page.evaluate(
        "async () => { refreshers.forEach((showView) => showView()); await drawOverview(); await openHead(1, 0); }"
    )
    page.mouse.move(1, 1)


@pytest.fixture
def exact(opened):
    return opened("exact", small_atlas()[0])


@pytest.fixture
def coarse(opened):
    return opened("coarse", small_atlas(**COARSE)[0])


@pytest.fixture
def long(opened):
    return opened("long", long_atlas()[0])


@pytest.fixture
def changed(opened):
    return opened("changed", small_atlas(states=("before", "after"), slot=True, words=MARKUP)[0])


def first_map(**fields):
    """The dense weights of the head that is open at first."""
    return small_atlas(**fields)[1][0][0]


def rows(page, trace=0, figure="map"):
    """What a heat map draws, holes as NaN."""
    script = "([f, i]) => document.getElementById(f).data[i].z.map((row) => Array.from(row, (x) => x === x ? x : null))"
    return np.array(page.evaluate(script, [figure, trace]), dtype=float)


def spot(page, query, key, figure="map", axis="xaxis"):
    """Where on the screen a cell is, by the figure's axes."""
    script = """([f, y, x, axis]) => {
        const g = document.getElementById(f); g.scrollIntoView({block: "center"});
        const { [axis]: across, yaxis } = g._fullLayout, box = g.getBoundingClientRect();
        return [box.left + across._offset + across.l2p(x), box.top + yaxis._offset + yaxis.l2p(y)]; }"""
    return page.evaluate(script, [figure, query, key, axis])


def tip_at(page, *where, **how):
    page.mouse.move(1, 1)
    page.wait_for_selector("#tip", state="hidden")
    page.mouse.move(*spot(page, *where, **how))
    page.wait_for_selector("#tip:not([hidden])")
    return page.inner_text("#tip")


def press(page, group, value):
    page.click(f"#{group} [data-value={value}]")


def shares(row):
    """For each number of a row, the share of the row's numbers that are no larger."""
    return [np.nan if np.isnan(x) else np.nanmean(np.where(np.isnan(row), np.nan, row <= x)) for x in row]


def test_links_lead_to_parts_of_the_page(exact, changed):
    for page in (exact, changed):
        links = page.eval_on_selector_all("a[href]", "all => all.map((link) => link.getAttribute('href'))")
        assert links and all(page.locator(link).count() == 1 for link in links if link.startswith("#"))
        assert not [link for link in links if not link.startswith("#")]


def test_a_click_in_the_overview_or_on_a_small_map_opens_that_head(exact):
    _, dense = small_atlas()
    for place, head in ((lambda: spot(exact, 1, 2, figure="overview"), 2), (lambda: small_spot(exact, 6, 2), 1)):
        exact.mouse.click(*place())
        exact.wait_for_selector(f"body[data-head='4-{head}']")
        assert exact.inner_text("#head-title") == f"Layer 4, head {head}"
        np.testing.assert_allclose(rows(exact), dense[0][3 + head], rtol=2e-4)


def test_the_last_head_asked_for_is_shown(exact):
    _, dense = small_atlas()
    exact.evaluate("""async () => {
        const quick = cellsOf, slow = (...asked) => new Promise((done) => setTimeout(() => done(quick(...asked)), 100));
        cellsOf = (channel, state, map, mean) => (map === 1 ? slow : quick)(channel, state, map, mean);
        await Promise.all([openHead(1, 1), openHead(4, 2)]);
        cellsOf = quick; }""")
    assert (exact.input_value("#layer"), exact.input_value("#which")) == ("4", "2")
    np.testing.assert_allclose(rows(exact), dense[0][5], rtol=2e-4)


def test_hover_says_query_key_weight_score_and_rank(exact):
    atlas, dense = small_atlas()
    row, scores = dense[0][0][5], atlas.runs["as it is"].channels[SCORE][0, 0]
    place = 1 + int((row > row[2]).sum())
    assert tip_at(exact, 5, 2).split("\n") == [
        f"query 5 ‘{NASTY[5]}’", f"key 2 ‘{NASTY[2]}’", f"weight: {row[2]:#.3g}", f"score: {scores[5, 2]:.3f}",
        f"rank: {place} of 6 keys in its row",
    ]  # fmt: skip


def test_a_pair_that_the_mask_hides_has_no_tip(exact):
    tip_at(exact, 5, 2)
    exact.mouse.move(*spot(exact, 1, 4))
    exact.wait_for_selector("#tip", state="hidden")


SHOWN = {  # which page, what is chosen there, and what a trace of a figure then shows
    "weights": ("exact", lambda page: press(page, "scale", "linear"), 0, lambda: first_map()),
    "powers of weights": ("exact", lambda page: press(page, "scale", "log"), 0, lambda: np.log10(first_map())),
    "ranks": ("exact", lambda page: press(page, "scale", "rank"), 0, lambda: [shares(row) for row in first_map()]),
    "scores": ("exact", lambda page: page.select_option("#channel", "score"), 0,
               lambda: small_atlas()[0].runs["as it is"].channels[SCORE][0, 0]),
    "largest weights of cells": ("coarse", lambda page: press(page, "stat", "largest"), 0,
                                 lambda: cells_of(first_map(**COARSE), 2, 0)),
    "mean weights of cells": ("coarse", lambda page: press(page, "stat", "mean"), 0,
                              lambda: cells_of(first_map(**COARSE), 2, 1)),
    "the slot": ("coarse", lambda page: None, 1, lambda: small_atlas(**COARSE)[0].runs["as it is"].slot[0, 0][:, None]),
    "largest of more cells than pixels": ("long", lambda page: press(page, "stat", "largest"), 0,
                                          lambda: cells_of(long_atlas()[1], 4, 0)),
    "means of more cells than pixels": ("long", lambda page: press(page, "stat", "mean"), 0,
                                        lambda: cells_of(long_atlas()[1], 4, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_a_map_shows_what_is_chosen(request, name):
    fixture, choose, trace, expected = SHOWN[name]
    page = request.getfixturevalue(fixture)
    choose(page)
    np.testing.assert_allclose(rows(page, trace), expected(), rtol=0.03 if fixture == "coarse" else 2e-4, atol=2e-4)


def test_the_overview_shows_and_says_the_importance_of_the_chosen_position(exact):
    (importance,) = importances(small_atlas()[0])
    np.testing.assert_allclose(rows(exact, figure="overview"), importance[..., 0], rtol=2e-4)
    exact.select_option("#place", "3")
    exact.wait_for_selector("#overview[data-shown='0-3']")
    np.testing.assert_allclose(rows(exact, figure="overview"), importance[..., 3], rtol=2e-4)
    words = tip_at(exact, 1, 2, figure="overview")
    assert words == f"layer 4, head 2, position 3 ‘⏎’\nimportance: {importance[1, 2, 3]:#.3g}"


def test_scores_have_colours_around_zero_and_no_scale_of_powers(exact):
    exact.select_option("#channel", "score")
    low, high = exact.evaluate("(({cmin, cmax}) => [cmin, cmax])(document.getElementById('map').layout.coloraxis)")
    assert low == -high < 0
    assert exact.is_disabled("#scale [data-value=log]")


def test_a_drag_zooms_into_the_tile_under_it(coarse):
    atlas, _ = small_atlas(**COARSE)
    cells = atlas.runs["as it is"].channels[WEIGHT][0, 0]
    coarse.mouse.move(*spot(coarse, 8.2, 2.2))
    coarse.mouse.down()
    coarse.mouse.move(*spot(coarse, 15.2, 7.2), steps=4)
    coarse.mouse.up()
    coarse.wait_for_selector("#map[data-tile='4,8,1,4,1']")  # tokens 8 to 15 and 2 to 7, two to a cell
    np.testing.assert_allclose(rows(coarse), cells[4:8, 1:4], rtol=0.03)
    assert tip_at(coarse, 10.5, 4.5).startswith("queries 10 to 11: ‘w3’ to ‘w4’\nkeys 4 to 5: ‘·the’ to ‘</script>’")
    coarse.click("#whole")
    coarse.wait_for_selector("#map[data-tile='0,12,0,12,1']")
    np.testing.assert_allclose(rows(coarse), cells, rtol=0.03)


def test_one_head_alone_is_opened_with_its_own_numbers(long):
    assert long.is_hidden("#heads") and long.inner_text("#head-title") == "Layer 1, head 0"
    assert long.evaluate("Array.from(document.querySelectorAll('#which option'), (o) => o.value)") == ["0"]
    assert long.get_attribute("#map", "data-tile") == "0,602,0,602,2"


def test_cells_say_their_largest_and_mean_weight(coarse):
    words = tip_at(coarse, 20.5, 2.5).split("\n")
    assert words[:2] == ["queries 20 to 21: ‘w13’ to ‘w14’", 'keys 2 to 3: ‘"&<>’ to ‘⏎’']
    largest, mean = (float(part.split()[0]) for part in words[2].removeprefix("weight: ").split(", "))
    square = first_map(**COARSE)[20:22, 2:4]
    assert [largest, mean] == pytest.approx([square.max(), square.mean()], rel=0.06)


def test_the_off_sequence_column_is_named(coarse):
    slot = small_atlas(**COARSE)[0].runs["as it is"].slot
    words = tip_at(coarse, 4.5, 0, axis="xaxis4")
    assert words.split("\n")[1] == "key * (off the sequence)"
    assert float(words.split("weight: ")[1].split()[0]) == pytest.approx(slot[0, 0, 2], rel=0.06)


def test_maps_open_on_the_state_of_the_lead_which_is_after_the_edits(changed):
    changed.reload()
    changed.wait_for_selector("#maps[data-drawn]")
    assert changed.input_value("#state") == "1"


def test_an_intervention_stands_before_after_and_as_a_difference(changed):
    atlas, (before, after) = small_atlas(states=("before", "after"), slot=True)
    for trace, expected in ((0, before[0]), (2, after[0]), (4, after[0] - before[0])):
        np.testing.assert_allclose(rows(changed, trace), expected, atol=3e-4)
    slots = [run.slot[0, 0] for run in atlas.runs.values()]
    np.testing.assert_allclose(rows(changed, 5)[:, 0], slots[1] - slots[0], atol=3e-4)
    assert tip_at(changed, 5, 2, axis="xaxis2").split("\n")[2:4] == [
        f"weight, before: {before[0][5, 2]:#.3g}",
        f"weight, after: {after[0][5, 2]:#.3g}",
    ]
    changed.select_option("#state", "2")
    changed.wait_for_selector("#overview[data-shown='2-0']")
    one, two = (importance[..., 0] for importance in importances(atlas))
    np.testing.assert_allclose(rows(changed, figure="overview"), two - one, atol=3e-4)


def test_zooming_one_map_zooms_them_all(changed):
    changed.mouse.move(*spot(changed, 2.6, 0.6, axis="xaxis2"))
    changed.mouse.down()
    changed.mouse.move(*spot(changed, 5.4, 3.4, axis="xaxis2"), steps=4)
    changed.mouse.up()
    changed.wait_for_selector("#map[data-tile='3,6,1,4,1']")
    ranges = changed.evaluate(
        "['xaxis', 'xaxis2', 'xaxis3'].map((a) => document.getElementById('map')._fullLayout[a].range)"
    )
    assert ranges[0] == ranges[1] == ranges[2]
    _, (before, after) = small_atlas(states=("before", "after"))
    np.testing.assert_allclose(rows(changed, 4), (after - before)[0][3:6, 1:4], atol=3e-4)


def pixel(page, x, y):
    shot = base64.b64encode(page.screenshot(clip={"x": x - 2, "y": y - 2, "width": 5, "height": 5})).decode()
    script = """async (shot) => {
        const image = new Image(); image.src = `data:image/png;base64,${shot}`; await image.decode();
        const canvas = document.createElement("canvas"); canvas.width = canvas.height = 5;
        const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
        return Array.from(context.getImageData(2, 2, 1, 1).data.slice(0, 3)); }"""
    return page.evaluate(script, shot)


def colour_of(share, palette=LIGHT.sequential):
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in palette])
    return [np.interp(share, np.linspace(0, 1, len(stops)), part) for part in stops.T]


def small_spot(page, query, key, map=4):
    """Where a cell of a small map stands in the window."""
    return page.evaluate(
        "([q, k, map]) => { const c = document.getElementById('thumbs'); c.scrollIntoView({block: 'center'}); "
        "const b = c.getBoundingClientRect(), [x, y] = grid.corners[map]; "
        "return [b.left + x + grid.size * (k + 0.5) / 7, b.top + y + grid.size * (q + 0.5) / 7]; }",
        [query, key, map],
    )


@pytest.mark.parametrize(("place", "head"), [(spot, 0), (small_spot, 4)])
def test_cells_of_large_and_small_maps_have_the_colours_of_their_weights(exact, place, head):
    _, dense = small_atlas()
    for query, key in ((0, 0), (5, 2), (6, 6), (3, 1)):
        share = dense[0][head][query, key] / np.nanmax(dense[0])
        assert pixel(exact, *place(exact, query, key)) == pytest.approx(colour_of(share), abs=4)
    assert pixel(exact, *place(exact, 1, 5)) == [255, 255, 255]


def test_small_maps_show_the_state_that_is_chosen_and_the_change_as_after_less_before(changed):
    _, dense = small_atlas(states=("before", "after"), slot=True)
    before, after = (np.asarray(maps) for maps in dense)
    change = after - before
    of_change = 0.5 + change / (2 * np.nanmax(np.abs(change)))
    highest = np.nanmax(np.asarray(dense))
    expected = ((before / highest, LIGHT.sequential), (after / highest, LIGHT.sequential), (of_change, LIGHT.diverging))
    for state, (shares, palette) in enumerate(expected):
        changed.select_option("#state", str(state))
        changed.wait_for_selector(f"#maps[data-drawn='linear-false-{state}']")
        for query, key in ((0, 0), (5, 2), (6, 6)):
            colour = colour_of(shares[4][query, key], palette)
            assert pixel(changed, *small_spot(changed, query, key)) == pytest.approx(colour, abs=6), (state, query, key)


def test_tokens_names_and_tables_are_text(alone, exact):
    labels = exact.evaluate("Array.from(document.querySelectorAll('#map .ytick text'), (t) => t.textContent)")
    assert labels[:3] == ["0: <s>", "1: <script>win…", '2: "&<>'] and labels[6] == "6: <img·src=x·…"
    assert tip_at(exact, 6, 1).split("\n")[1] == f"key 1 ‘{NASTY[1]}’"
    assert exact.evaluate("document.images.length + document.querySelectorAll('body svg image').length") <= 3
    table = Table.of(PWN, PWN, ({PWN: PWN, "other": 1.5},))
    protocol = dict.fromkeys(("model", "source", "divisor"), PWN)
    page = alone(atlas_page(small_atlas(states=(PWN, "b"), slot=True, words=[PWN] * 7, tables=(table,), **protocol)[0]))
    tip_at(page, 6, 0)
    assert page.evaluate("document.getElementById('title').textContent") == f"{short_name(PWN)}: attention maps"
    assert page.evaluate("about.tokens") == [PWN] * 7 and page.complaints == []
    for shown in (exact, page):
        assert shown.evaluate("typeof window.__pwned") == "undefined"


def test_what_looks_like_a_labels_markup_is_text(changed):
    labels = changed.evaluate("Array.from(document.querySelectorAll('#map .ytick text'), (t) => t.textContent)")
    assert labels == [f"{i}: {word}" for i, word in enumerate(MARKUP)]


def test_markup_that_gets_into_the_page_all_the_same_cannot_run_nor_fetch(alone):
    markup = "<img src=https://example.org/x.png onerror=window.__pwned=1><script>window.__pwned=2</script>"
    page = alone(atlas_page(small_atlas()[0]).replace("<header>", f"{markup}<header>"))
    assert page.evaluate("typeof window.__pwned") == "undefined"
    assert not [url for url in page.answered if not url.startswith(LOCAL)]


def test_the_page_begins_with_its_maps_and_tables_come_after(exact):
    exact.evaluate("scrollTo(0, 0)")
    tops = {
        name: exact.locator(f"#{name}").bounding_box()["y"]
        for name in ("thumbs", "map", "text", "overview", "summary", "about-this")
    }
    assert tops["thumbs"] < 250 and tops["map"] < 250
    assert sorted(tops, key=tops.get)[2:] == ["text", "overview", "summary", "about-this"]
    box = exact.locator("#map .main-svg").first.bounding_box()
    assert box["y"] + box["height"] <= 1000  # the height of the screen
    assert exact.evaluate("grid.size") >= 52


def values_of_words(page):
    return page.evaluate("[...document.querySelectorAll('#words span')].map((span) => +span.dataset.value)")


def choose_scope(page, scope, token=-1):
    page.evaluate("token => { chosenToken = token; }", token)
    press(page, "scope", scope)
    page.wait_for_selector(f"#words[data-drawn='{scope}-{token}-0']")


def received(dense):
    return [np.nanmean(dense[..., key:, key]) for key in range(dense.shape[-1])]


def test_the_text_shows_what_every_token_receives(exact):
    _, dense = small_atlas()
    words = exact.locator("#words span").all_inner_texts()
    assert "".join(words).replace("⏎\n", "\n") == "".join(NASTY)
    for scope, maps in {"head": dense[0][:1], "layer": dense[0][:3], "all": dense[0]}.items():
        choose_scope(exact, scope)
        np.testing.assert_allclose(values_of_words(exact), received(maps), rtol=3e-4)
    assert "receives most: 0 ‘<s>’" in exact.inner_text("#partners")
    share = received(dense[0])[0]
    red, green, blue = exact.evaluate(
        "document.querySelector('#words span').style.background.match(/[0-9]+/g).map(Number)"
    )
    assert [red, green, blue] == pytest.approx(colour_of(share), abs=4)


def test_a_click_on_a_token_shows_what_it_looks_at_and_who_looks_at_it(exact):
    _, dense = small_atlas()
    choose_scope(exact, "head")
    exact.locator("#words span").nth(4).click()
    exact.wait_for_selector("#words[data-drawn='head-4-0']")
    one = dense[0][0]
    expected = [*one[4, :5], *one[5:, 4]]
    np.testing.assert_allclose(values_of_words(exact), expected, rtol=3e-4)
    strongest = int(np.argmax(one[4, :5]))
    looks_at, looked_at = exact.locator("#partners div").all_inner_texts()
    assert looks_at.startswith(f"looks at: {strongest} ‘") and looked_at.startswith("is looked at by: ")
    exact.click("#no-token")
    exact.wait_for_selector("#words[data-drawn='head--1-0']")
    assert exact.is_hidden("#no-token")


def test_the_text_shows_the_change_that_edits_make(changed):
    _, (before, after) = small_atlas(states=("before", "after"), slot=True)
    choose_scope(changed, "all")
    changed.select_option("#state", "2")
    changed.wait_for_selector("#words[data-drawn='all--1-2']")
    expected = np.subtract(received(after), received(before))
    np.testing.assert_allclose(values_of_words(changed), expected, atol=3e-4)


def test_what_all_tokens_receive_is_exact_where_cells_cover_several(opened):
    atlas, _ = small_atlas(length=23, side=2, bits=8)
    exact_values = np.linspace(0.5, 0.01, 23)
    report = report_of(np.broadcast_to(exact_values, (2, 3, 23)).copy())
    page = opened("told", replace(atlas, runs={"as it is": replace(atlas.runs["as it is"], report=report)}))
    choose_scope(page, "all")
    np.testing.assert_allclose(values_of_words(page), exact_values, rtol=6e-3)
    assert "share a value" not in page.inner_text("#text-says")
    choose_scope(page, "head")
    assert "2 neighbouring tokens share a value here" in page.inner_text("#text-says")


def test_tokens_of_a_coarse_map_have_the_value_of_their_cell(coarse):
    _, dense = small_atlas(**COARSE)
    choose_scope(coarse, "head")
    seen, one = np.tril(np.ones((23, 23))), np.nan_to_num(dense[0][0])
    totals, counts = one.sum(0), seen.sum(0)
    expected = [(totals[i // 2 * 2 :][:2].sum()) / counts[i // 2 * 2 :][:2].sum() for i in range(23)]
    np.testing.assert_allclose(values_of_words(coarse), expected, rtol=0.03)


def deep_atlas(layers=30, heads=4):
    """Many layers, of which those from 12 on look at the first token."""
    maps = [(layer, head) for layer in range(layers) for head in range(heads)]
    importance = np.full((layers, heads, 7), 0.1)
    importance[12:, :, 0] = 0.6
    channels = {WEIGHT: patterns(7, 0, len(maps))[0][:, None]}
    run = Run(report_of(importance, layers=range(layers)), channels, None, dict.fromkeys(range(layers), pairs_of(7, 1)))
    return Atlas(maps, Detail(1, 16, (WEIGHT,)), {"as it is": run}, str, ())


def test_the_box_of_all_heads_begins_at_the_open_head_and_says_that_there_is_more(opened):
    page = opened("deep", deep_atlas())
    assert page.inner_text("#maps-in-view").startswith("Layers 1 to ")  # head 0 of layer 1 is open
    assert page.inner_text("#maps-in-view").endswith(" of 0 to 29. Scroll the box to see the others.")
    page.evaluate("document.getElementById('maps').scrollTop = 0")
    page.wait_for_selector("#maps-in-view:has-text('Layers 0 to ')")


def test_head_numbers_stay_while_the_maps_scroll(opened):
    page = opened("deep", deep_atlas())
    tops = "[...document.querySelectorAll('#head-numbers span')].map((number) => number.getBoundingClientRect().top)"
    before = page.evaluate(tops)
    page.evaluate("document.getElementById('maps').scrollTop += 300")
    page.wait_for_timeout(100)
    assert len(before) == 4 and page.evaluate(tops) == before


def test_the_tip_goes_when_its_map_scrolls_away(opened):
    page = opened("deep", deep_atlas())
    page.evaluate("document.getElementById('thumbs').scrollIntoView({block: 'nearest'})")
    box = page.locator("#maps").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.wait_for_selector("#tip:not([hidden])")
    page.evaluate("document.getElementById('maps').scrollTop += 2 * (grid.size + GAP) - 20")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_selector("#tip", state="hidden")


def test_heads_and_maps_answer_to_the_keyboard(exact):
    exact.focus("#maps")
    exact.keyboard.press("ArrowRight")
    exact.wait_for_selector("body[data-head='1-1']")
    exact.keyboard.press("ArrowDown")
    exact.wait_for_selector("body[data-head='4-1']")
    exact.focus("#map")
    exact.keyboard.press("+")
    exact.wait_for_function("zoom[1] - zoom[0] === 3.5")
    exact.keyboard.press("ArrowDown")
    exact.wait_for_function("zoom[0] === 2.125")
    exact.keyboard.press("0")
    exact.wait_for_selector("#map[data-tile='0,7,0,7,1']")


def test_a_token_is_chosen_by_the_keyboard(exact):
    exact.locator("#words span").first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        exact.keyboard.press(key)
    exact.wait_for_function("chosenToken === 2")
    exact.click("#no-token")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_nothing_overlaps_or_scrolls_sideways(settled, exact, coarse, changed, width, scheme):
    for page in (exact, coarse, changed):
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("probe.overlapsOfParts()") == [], (width, scheme)
    widths = changed.evaluate(
        "['xaxis', 'xaxis2', 'xaxis3'].map((a) => document.getElementById('map')._fullLayout[a]._length)"
    )
    assert max(widths) - min(widths) < 1  # maps of one row, or below each other, are equal in size
    for page in (exact, coarse, changed):
        page.set_viewport_size({"width": 1400, "height": 1000})
        page.emulate_media(color_scheme="light")


CHANGES = {
    "data.captions is missing": lambda data: data.update(legends=data.pop("captions")),
    "data.channels[0].scale.bits is not a number": lambda data: data["channels"][0]["scale"].update(bits="16"),
    "data.maps[2] has 3 parts, not 2": lambda data: data["maps"][2].append(7),
    "data.states is not a list": lambda data: data.update(states="as it is"),
    "data.importance.extra is not known to the script": lambda data: data["importance"].update(extra=1),
}


@pytest.mark.parametrize(("reason", "change"), CHANGES.items(), ids=CHANGES)
def test_data_that_do_not_match_the_schema_are_refused_by_name(alone, reason, change):
    html = atlas_page(small_atlas()[0])
    old = re.search(r'<script type="application/json" id="about">(.*?)</script>', html, re.S)[1]
    data = json.loads(old)
    change(data)
    new = TEMPLATES.from_string("{{ data|tojson }}").render(data=data)
    page = alone(html.replace(old, new).replace(get_plotlyjs(), ""), "#lead:not(:empty)")  # nothing is drawn
    said = page.inner_text("#lead")
    assert said == f"This page cannot be drawn: {reason}. Make the page again with one version of sinkinterp."
    assert any(said in complaint for complaint in page.complaints) and page.locator("#map canvas").count() == 0


def test_a_script_that_reads_a_field_that_does_not_exist_is_refused(alone):
    page = alone(atlas_page(small_atlas()[0]))
    with pytest.raises(Exception, match="a script reads data\\.captions\\.legend, which does not exist"):
        page.evaluate("about.captions.legend")
    assert "data.captions.legend" in page.inner_text("#lead")


def test_colours_are_the_themes_light_or_dark(exact):
    shown = "theme => document.getElementById('map').layout.coloraxis.colorscale.at(-1)[1] === theme"
    for scheme, theme in (("light", LIGHT), ("dark", DARK), ("light", LIGHT)):
        exact.emulate_media(color_scheme=scheme)
        exact.wait_for_function(shown, arg=theme.sequential[-1])
        background = "rgb({}, {}, {})".format(*(int(theme.background[i : i + 2], 16) for i in (1, 3, 5)))
        assert exact.evaluate("getComputedStyle(document.body).backgroundColor") == background


def test_a_pinned_token_is_framed_in_the_map_until_it_is_let_go(changed):
    frames = "document.getElementById('map').layout.shapes.map(({ xref, x0, y0 }) => [xref, x0, y0])"
    changed.evaluate("chooseToken(3)")
    column_and_row = [["x", 2.5, 0], ["x domain", 0, 2.5]]
    assert changed.evaluate(frames)[:2] == column_and_row and len(changed.evaluate(frames)) == 6  # of three panels
    changed.evaluate("drawHead()")
    assert changed.evaluate(frames)[:2] == column_and_row
    changed.evaluate("chooseToken(-1)")
    assert changed.evaluate(frames) == []


def test_heads_below_the_least_importance_are_left_out_of_the_grid(exact):
    importances = exact.evaluate("maps.map(([l, h]) => importance(0, layers.indexOf(l), h))")
    exact.select_option("#least", label="0.5")
    kept = exact.evaluate("maps.map((_, map) => isKept(map))")
    assert kept == [importance >= 0.5 for importance in importances] and 0 < sum(kept) < len(kept)
    assert exact.inner_text("#kept") == f"{sum(kept)} of {len(kept)} heads"
    exact.select_option("#least", label="any")
    assert exact.evaluate("maps.every((_, map) => isKept(map))") and exact.inner_text("#kept") == ""
