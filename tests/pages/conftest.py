import threading
from pathlib import Path

import pytest

from sinkinterp.backends.load import load
from sinkinterp.pages import serve
from sinkinterp.pages.live import ASK, Session, live_page


@pytest.fixture(scope="module")
def chromium(browser):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def tab(chromium):
    """Opens a file or an address, and notes what it complains about, asks for and gets; `visit` opens another there."""

    def opened(where, ready="body[data-ready]", **look):
        page = chromium.new_page(**look)
        page.add_init_script(path=Path(__file__).with_name("probes.js"))
        page.complaints, page.requests, page.answered = notes = [], [], []

        def visit(where, ready="body[data-ready]"):
            for note in notes:
                note.clear()
            page.goto(where.as_uri() if isinstance(where, Path) else where)
            page.wait_for_selector(ready)

        page.on(
            "console", lambda said: page.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda asked: page.requests.append(asked.url))
        page.on("requestfinished", lambda asked: page.answered.append(asked.url))
        page.set_default_timeout(90_000)
        page.visit = visit
        visit(where, ready)
        return page

    return opened


@pytest.fixture(scope="session")
def settled():
    """Waits until a page has answered a new width or colour: it then changes nothing for .23 s (timers: .2 s)."""
    return lambda page: page.evaluate("probe.quiet()")


@pytest.fixture(scope="module")
def address():
    """That of a live page, while its server runs."""
    session = Session(load("sinkinterp/text-softmax"))
    with serve.server_of(live_page(session).encode(), {ASK: session.answer}) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield serve.address(server)
        server.shutdown()
        thread.join()
