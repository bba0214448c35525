"""Serves one page to the browsers of this machine."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

LOOPBACK = "127.0.0.1"


def serve(html: str, on_ready: Callable[[str], object]) -> None:
    """Answers requests for the page until it is interrupted; `on_ready` receives the address.

    The server listens on the loopback address only, on a free port. It refuses a request that names another host, so
    that no page of the web can read this one through a host name of its own.
    """
    with server_of(html.encode()) as server:
        on_ready(address(server))
        server.serve_forever()


def address(server: HTTPServer) -> str:
    """The address of the page."""
    return f"http://{LOOPBACK}:{server.server_port}/"


def server_of(page: bytes) -> HTTPServer:
    """A server of one page, not yet running."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Sends the page. It has one path, "/"."""
            hosts = {f"{name}:{server.server_port}" for name in (LOOPBACK, "localhost")}
            if self.headers.get("Host") not in hosts:
                self.send_error(403)
            elif self.path.split("?")[0] != "/":
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing: the terminal belongs to the user."""

    server = HTTPServer((LOOPBACK, 0), Handler)
    return server
