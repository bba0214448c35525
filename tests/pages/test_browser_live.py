"""The live page in a real browser, with its server."""

import shutil
import threading

import pytest

from sinkinterp.backends.load import load
from sinkinterp.backends.model_files import load_tokenizer, words_of
from sinkinterp.pages import serve
from sinkinterp.pages.live.page import ASK, live_page
from sinkinterp.pages.live.session import Session

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
HOSTILE = "Return </script><img src=x onerror=window.__pwned=1> the list."


@pytest.fixture(scope="module")
def address():
    source = "sinkinterp/text-softmax"
    session = Session(load(source), load_tokenizer(source), words_of(source))
    with serve.server_of(live_page(session).encode(), {ASK: session.answer}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield serve.address(server)
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def opened(address):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.complaints, page.requests = [], []
        page.on("console", lambda said: page.complaints.append(said.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        yield page
        browser.close()


def run(page, prompt):
    """Types a prompt, runs it, and waits for the answer or the mistake."""
    page.fill("#prompt", prompt)
    answered = page.evaluate("latest") + 1
    page.click("#run")
    page.wait_for_function(
        "n => document.body.dataset.answered === String(n) || document.querySelector('#status.error')", arg=answered
    )


def test_a_prompt_and_an_edit_show_before_and_after(opened):
    opened.select_option("#kind", "sink_logit")
    opened.fill("#fields input[name=layer]", "1")
    opened.fill("#fields input[name=logit]", "4")
    opened.click("#add")
    run(opened, "Return the number of items in the list.")
    rows = opened.locator("#sinks tr").all_inner_texts()
    assert rows[0].split("\t") == ["quantity", "before", "after"] and rows[-1].startswith("alpha_*")
    assert opened.locator("#open canvas").count() == 2 and opened.locator(".words").count() == 2
    assert "AddSinkLogit(4.0, layers=[1])" in opened.inner_text("#sinks-caption")
    assert opened.locator("#next tr").count() > 10
    drawn = "() => { const c = document.getElementById('thumbs'); return [c.width, c.height, grid.size]; }"
    width, height, size = opened.evaluate(drawn)
    assert width > 100 and height > 3 * size >= 3 * 52


def test_a_click_on_a_small_map_opens_that_head(opened):
    x, y = opened.evaluate("grid.corner(2, 0)")
    opened.click("#thumbs", position={"x": x + 5, "y": y + 5})
    assert opened.inner_text("#head-title") == "Layer 2, head 0"


def test_a_mistake_is_said_in_one_line_and_what_was_shown_stays(opened):
    opened.select_option("#kind", "sigmoid")
    opened.fill("#fields input[name=layer]", "77")
    opened.click("#add")
    run(opened, "Return the list.")
    assert "there is no layer 77" in opened.inner_text("#status") and opened.locator("#open canvas").count() == 2
    while opened.locator("#edits button").count():
        opened.locator("#edits button").first.click()


def test_a_hostile_prompt_is_text_and_nothing_leaves_the_machine(opened, address):
    run(opened, HOSTILE)
    assert "<img src=x" in opened.inner_text(".words") and opened.evaluate("typeof window.__pwned") == "undefined"
    assert opened.evaluate("document.images.length") == 0
    assert {url for url in opened.requests if not url.startswith(address)} == set()
    # the browser names a refused question, and the page's icon, which it asks for by itself
    assert [said for said in opened.complaints if "400" not in said and "404" not in said] == []


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways(opened, width, scheme):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    opened.wait_for_timeout(300)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    wide = "w => [...document.querySelectorAll('canvas, textarea, table')].filter((e) => e.offsetWidth > w).length"
    assert opened.evaluate(wide, width) == 0
