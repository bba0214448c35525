"""The command that serves a live page."""

import json
import threading
from http.client import HTTPConnection

import pytest
from typer.testing import CliRunner

from sinkinterp.cli.main import app
from sinkinterp.pages import serve

MODEL = "sinkinterp/demo-softmax"
FOREVER = serve.ThreadingHTTPServer.serve_forever


@pytest.fixture
def call(monkeypatch):
    """Runs the command; returns exit code, output, the addresses that were opened, and what the server answered."""
    opened, answers = [], []

    def ask_once(server):
        thread = threading.Thread(target=FOREVER, args=(server, 0.01))
        thread.start()
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        body = json.dumps({"prompt": "3 17 5 9", "edits": [{"kind": "swap", "numbers": [2]}]})
        connection.request("POST", "/ask", body, {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read()))
        server.shutdown()
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(serve.ThreadingHTTPServer, "serve_forever", ask_once)

    def run(*words):
        result = CliRunner().invoke(app, ["serve", *words])
        return result.exit_code, " ".join(result.output.split()), opened, answers

    return run


def test_the_page_is_served_until_an_interrupt_and_answers(call):
    code, output, opened, (answer,) = call(MODEL)
    assert code == 0 and f"the live page is at {opened[0]}" in output and opened[0].startswith("http://127.0.0.1:")
    assert answer["view"]["tokens"] == ["3", "17", "5", "9"] and answer["edits"] == ["SwapPositions(0, 2)"]


def test_no_browser_is_opened_where_none_is_wanted(call):
    code, output, opened, _ = call(MODEL, "--no-open")
    assert code == 0 and opened == [] and "the live page is at" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sinkinterp/none",), "no checkpoint sinkinterp/none"),
        ((MODEL, "--backend", "none"), "backends:"),
        ((MODEL, "--port", "99999"), "65535"),
        ((MODEL, "--dtype", "none"), "bfloat16"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(call, words, message):
    code, output, opened, _ = call(*words)
    assert code == 2 and message in output and "Traceback" not in output and opened == []


def test_a_port_that_is_taken_is_one_line(call):
    with serve.server_of(b"") as server:
        code, output, _, _ = call(MODEL, "--port", str(server.server_port))
    assert code == 2 and output.count("error:") == 1 and f"cannot listen on port {server.server_port}" in output
