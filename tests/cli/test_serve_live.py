"""The command that serves a live page."""

import pytest

from sinkinterp.pages import serve

MODEL = "sinkinterp/demo-softmax"


@pytest.fixture
def call(call, answers_of_live_pages, monkeypatch):
    """Runs the command; returns exit code, output, the addresses that were opened, and what the server answered."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    return lambda *words: (*call("serve", *words), opened, answers_of_live_pages)


def test_the_page_is_served_until_an_interrupt_and_answers(call):
    code, output, opened, (answer,) = call(MODEL)
    assert code == 0 and f"the live page is at {opened[0]}" in output and opened[0].startswith("http://127.0.0.1:")
    assert answer["view"]["tokens"] == ["3", "17", "5", "9"] and answer["edits"] == ["SwapPositions(0, 2)"]


def test_no_browser_is_opened_where_none_is_wanted(call):
    code, output, opened, _ = call(MODEL, "--no-open")
    assert code == 0 and opened == [] and "the live page is at" in output


def test_a_port_that_is_taken_is_one_line(call):
    with serve.server_of(b"") as server:
        code, output, _, _ = call(MODEL, "--port", str(server.server_port))
    assert code == 2 and output.count("error:") == 1 and f"cannot listen on port {server.server_port}" in output
