"""A page on a port of this machine alone."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

LOOPBACK = "127.0.0.1"


def serve(html: str, on_ready: Callable[[str], object]) -> None:
    """Answers requests for the page until it is interrupted; `on_ready` is given its address.

    Only the loopback address listens, on a free port. A request that names another host is refused: no page of the
    web can read this one under a name of its own.
    """
    with server_of(html.encode()) as server:
        on_ready(address(server))
        server.serve_forever()


def address(server: HTTPServer) -> str:
    """Where the page is found."""
    return f"http://{LOOPBACK}:{server.server_port}/"


def server_of(page: bytes) -> HTTPServer:
    """A server of one page, not yet running."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The page, at its one address."""
            here = self.headers.get("Host") in {f"{name}:{server.server_port}" for name in (LOOPBACK, "localhost")}
            if not here or self.path.split("?")[0] != "/":
                self.send_error(404 if here else 403)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal belongs to the user."""

    server = HTTPServer((LOOPBACK, 0), Handler)
    return server
