"""Serves a page to the browsers of this machine, and answers the questions of a live page."""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..checks import InputError, refusal

LOOPBACK = "127.0.0.1"
SILENCE = 10.0  # seconds after which a connection that says nothing is closed
MOST = 100_000  # bytes of a question
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Answer = Callable[[Any], Any]  # from JSON to JSON; raises InputError where the question has a mistake


def serve(html: str, on_ready: Callable[[str], object], answers: Mapping[str, Answer] = {}, port: int = 0) -> None:
    """Answers requests for the page until it is interrupted; `on_ready` receives the address.

    The server listens on the loopback address only, on a free port or on `port`. It refuses a request that names
    another host, so that no page of the web can read this one through a host name of its own. `answers` has what
    answers questions (POST, in JSON), by path.
    """
    with server_of(html.encode(), answers, port) as server:
        on_ready(address(server))
        server.serve_forever()


def address(server: ThreadingHTTPServer) -> str:
    """The address of the page."""
    return f"http://{LOOPBACK}:{server.server_port}/"


class _Server(ThreadingHTTPServer):
    """One thread for each connection; threads end with the program."""

    daemon_threads = True
    request_queue_size = 512  # clients that wait to be let in; the others are reset
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: a browser may close a connection at any time."""


def server_of(page: bytes, answers: Mapping[str, Answer] = {}, port: int = 0) -> ThreadingHTTPServer:
    """A server of one page, not yet running. Raises InputError where the port is taken."""
    handler = type("Handler", (_Handler,), {"page": page, "answers": answers})
    with refusal(f"cannot listen on port {port}", "choose another port=...", (OSError, OverflowError)):
        return _Server((LOOPBACK, port), handler)


class _Handler(BaseHTTPRequestHandler):
    """Answers for a page and its questions, by path."""

    page: bytes
    answers: Mapping[str, Answer]
    timeout = SILENCE

    def do_GET(self) -> None:
        """Sends the page. It has one path, "/"."""
        if self.accepts({"/"}):
            self.send(HTTPStatus.OK, "text/html; charset=utf-8", self.page)

    def do_POST(self) -> None:
        """Answers a question."""
        if self.accepts(self.answers):
            status, content = self.status_and_answer(self.answers[self.path.split("?")[0]])
            self.send(status, "application/json", json.dumps(content, allow_nan=False).encode())

    def accepts(self, paths: Any) -> bool:
        """Tells if the request is for one of the paths, and names this server as its host and, if any, as its origin.

        Any other request is answered with what is wrong.
        """
        hosts = {f"{name}:{self.connection.getsockname()[1]}" for name in (LOOPBACK, "localhost")}
        origin, is_there = self.headers.get("Origin"), self.path.split("?")[0] in paths
        is_allowed = self.headers.get("Host") in hosts and (origin is None or origin.removeprefix("http://") in hosts)
        if not (is_allowed and is_there):
            self.send_error(HTTPStatus.NOT_FOUND if is_allowed else HTTPStatus.FORBIDDEN)
        return is_allowed and is_there

    def status_and_answer(self, answer: Answer) -> tuple[HTTPStatus, Any]:
        """The status and the answer to the question in the body of the request."""
        try:
            return HTTPStatus.OK, answer(self.question())
        except InputError as error:
            return HTTPStatus.BAD_REQUEST, {"error": _one_line(error)}
        except TimeoutError:
            raise  # the connection is closed
        except Exception as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {_one_line(error)}"}

    def question(self) -> Any:
        """The body of the request, from JSON. Raises InputError if it is not JSON, or too long."""
        if self.headers.get_content_type() != "application/json":
            raise InputError("a question is JSON; send it as application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or int(length[:20]) > MOST:
            raise InputError(f"a question has a Content-Length of at most {MOST:,} bytes")
        with refusal("the question is no JSON", of=(ValueError, RecursionError)):
            return json.loads(self.rfile.read(int(length)))

    def send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        """Sends content of a kind."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: the terminal belongs to the user."""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
