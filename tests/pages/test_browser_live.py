"""The live page in a real browser, with its server."""

import pytest

HOSTILE = "Return </script><img src=x onerror=window.__pwned=1> the list."
PROMPT = "Return the number of items in the list."


@pytest.fixture(scope="module")
def page(tab, address):
    return tab(address, viewport={"width": 1400, "height": 900})


@pytest.fixture
def opened(page, address):
    """The page with what it opens with; its form, which no answer changes, as it was."""
    if page.url.startswith(address):
        after(page, lambda: page.evaluate("probe.reset()"))
    else:
        page.visit(address)
    return page


def after(page, act):
    """Waits for the answer, or the mistake, that an act leads to."""
    asked = page.evaluate("latest") + 1
    act()
    page.wait_for_function(
        "n => document.body.dataset.answered === String(n) || document.querySelector('#status.error')", arg=asked
    )


def tab_to(page, selector):
    """Presses Tab until an element has the focus."""
    for _ in range(90):
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no Tab leads to {selector}")


def press(page, selector, key="Enter"):
    tab_to(page, selector)
    after(page, lambda: page.keyboard.press(key))


def values(page):
    return page.locator("#headline b").all_inner_texts()


def test_the_three_suggestions_run_by_the_keyboard_alone_and_change_the_numbers(opened):
    plain = values(opened)
    assert len(plain) == 3 and not any("→" in value for value in plain)
    opened.focus("#prompt")
    for i in range(3):
        press(opened, f"[data-key='suggestion {i}']")
        before, changed = zip(*(value.split(" → ") for value in values(opened)), strict=True)
        assert list(before) == plain and changed != before
        assert opened.locator("#edits li").count() == 1
        assert opened.get_attribute(f"[data-key='suggestion {i}']", "aria-pressed") == "true"
    after(opened, lambda: opened.keyboard.press("Enter"))  # the focus is still there; once more, and it is gone
    assert values(opened) == plain and opened.locator("#edits li").count() == 0


def test_enter_runs_and_shift_enter_breaks_the_line(opened):
    asked = opened.evaluate("latest")
    opened.fill("#prompt", "Return the")
    opened.focus("#prompt")
    opened.keyboard.press("End")
    opened.keyboard.press("Shift+Enter")
    opened.keyboard.type("list")
    assert opened.input_value("#prompt") == "Return the\nlist" and opened.evaluate("latest") == asked
    after(opened, lambda: opened.keyboard.press("Enter"))
    assert opened.input_value("#prompt") == "Return the\nlist" and "⏎" in opened.inner_text("#words")


def test_an_edit_runs_when_it_is_added_and_when_it_is_removed(opened):
    opened.click("#more summary")
    opened.select_option("#kind", "sink_logit")
    opened.locator("#numbers input").nth(0).fill("4")
    after(opened, lambda: opened.click("#add"))
    assert "AddSinkLogit(4.0)" in opened.inner_text("#code")
    assert any("slot" in text for text in opened.locator("#headline span").all_inner_texts())
    assert opened.evaluate("document.getElementById('map').data.length") == 6  # three maps, each with the slot's strip
    after(opened, lambda: opened.click("#edits button"))
    assert opened.inner_text("#code") == "" and opened.evaluate("document.getElementById('map').data.length") == 1


def test_after_an_edit_all_maps_and_the_open_one_begin_on_the_first_screen_side_by_side(opened):
    after(opened, lambda: opened.click("[data-key='suggestion 0']"))
    opened.evaluate("scrollTo(0, 0)")
    heads, one, tables = (opened.locator(part).bounding_box() for part in ("#maps", "#map", "#next"))
    assert max(heads["y"], one["y"]) < 900 and heads["y"] + heads["height"] < tables["y"], (heads, one, tables)
    assert heads["x"] + heads["width"] < one["x"]


def test_rows_tokens_and_heads_have_buttons_that_edit(opened):
    press(opened, "#massive button")
    assert "zero dimension" in opened.inner_text("#edits")
    press(opened, "[data-key=ablate]")
    layer, head = opened.input_value("#layer"), opened.input_value("#which")
    assert f"zero output of layer {layer}, head {head}" in opened.inner_text("#edits")
    press(opened, "[data-key=sigmoid]")
    assert f"layer {layer}, head {head}" in opened.inner_text("#edits")
    press(opened, "[data-key=off]")
    tab_to(opened, "#words span")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        opened.keyboard.press(key)
    assert opened.inner_text("[data-key=swap]") == "Swap position 0 with 2"
    after(opened, lambda: opened.click("[data-key=swap]"))
    after(opened, lambda: opened.click("[data-key=column]"))
    assert opened.locator("#edits li").all_inner_texts()[4:] == [
        "swap position 0 with position 2 ×",
        "no query looks at position 2 ×",
    ]


def test_the_address_holds_prompt_edits_and_head(opened, address):
    opened.fill("#prompt", PROMPT)
    after(opened, lambda: opened.click("#run"))
    after(opened, lambda: opened.click("[data-key='suggestion 0']"))
    opened.select_option("#layer", "2")
    for _ in range(100):  # wait_for_function would evaluate text, which the page's policy forbids
        if "head=2.0" in opened.evaluate("() => location.hash"):
            break
        opened.wait_for_timeout(50)
    sent, shown = opened.url, values(opened)
    opened.goto("about:blank")
    opened.goto(sent)
    opened.wait_for_selector("body[data-ready]")
    assert opened.input_value("#prompt") == PROMPT and values(opened) == shown
    assert opened.inner_text("#head-title") == "Layer 2, head 0" and opened.locator("#edits li").count() == 1


def test_back_returns_to_what_was_there(opened):
    plain = values(opened)
    after(opened, lambda: opened.click("[data-key='suggestion 1']"))
    assert values(opened) != plain
    after(opened, opened.go_back)
    assert values(opened) == plain


def test_an_address_with_mistakes_opens_all_the_same(page, address):
    edits = ("x:1", "swap:1:2", "swap:a", "swap:", "__proto__:1", "zero:1e999:0:1", "", ":")
    page.goto("about:blank")
    page.goto(f"{address}#head=a.b&edits={'~'.join(edits)}")
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#edits li").count() == 0 and len(values(page)) == 3


def test_bars_begin_at_one_place(opened):
    after(opened, lambda: opened.click("[data-key='suggestion 2']"))
    lefts = opened.evaluate("[...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().left)")
    assert len(lefts) > 16 and len(set(lefts)) == 1
    assert opened.locator("#next th").all_inner_texts() == ["token", "", "before", "after", "change"]
    for row in opened.locator("#next tr").all()[1:]:
        before, after_edits, change = row.locator("td").all_inner_texts()[2:]
        expected = float(after_edits.rstrip("%")) - float(before.rstrip("%"))
        assert float(change.replace("−", "-")) == pytest.approx(expected, abs=0.11)


def test_another_prompt_draws_the_map_of_patching(opened):
    assert opened.locator("#restored").is_hidden()
    opened.fill("#prompt", PROMPT)
    opened.fill("#other", PROMPT.replace("number", "list"))
    after(opened, lambda: opened.click("#patch"))
    rows, columns = opened.evaluate("(z => [z.length, z[0].length])(document.querySelector('#restored').data[0].z)")
    assert rows > 1 and columns == len(opened.evaluate("tokens")) and not opened.locator("#restored").is_hidden()
    opened.fill("#other", "one")
    opened.click("#patch")
    opened.wait_for_selector("#status.error")
    assert "of one length in tokens" in opened.inner_text("#status")


def test_a_mistake_is_one_line_and_the_page_stays_as_it_was(opened):
    plain = values(opened)
    opened.click("#more summary")
    opened.select_option("#kind", "sigmoid_head")
    opened.locator("#numbers input").nth(0).fill("77")
    after(opened, lambda: opened.click("#add"))
    assert "there is no head 0 of layer 77" in opened.inner_text("#status")
    assert values(opened) == plain and opened.locator("#edits li").count() == 0


def test_a_hostile_prompt_is_text_and_nothing_leaves_the_machine(opened, address):
    opened.fill("#prompt", HOSTILE)
    after(opened, lambda: opened.click("#run"))
    assert "<img src=x" in opened.inner_text("#words") and opened.evaluate("typeof window.__pwned") == "undefined"
    local = (address, "about:", "data:", "blob:")
    assert [url for url in opened.requests if not url.startswith(local)] == []
    # the browser names the question that was refused on purpose
    assert [said for said in opened.complaints if "400" not in said] == []


def test_nothing_scrolls_sideways(opened, settled):
    after(opened, lambda: opened.click("[data-key='suggestion 0']"))
    wide = "w => [...document.querySelectorAll('canvas, textarea, table')].filter((e) => e.offsetWidth > w).length"
    for width, scheme in ((420, "light"), (1400, "dark")):
        opened.set_viewport_size({"width": width, "height": 900})
        opened.emulate_media(color_scheme=scheme)
        settled(opened)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
        assert opened.evaluate(wide, width) == 0, (width, scheme)
