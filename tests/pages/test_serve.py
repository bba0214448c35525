import threading
from http.client import HTTPConnection

import pytest

from sinkinterp.pages import serve


@pytest.fixture
def server():
    with serve.server_of("<p>häuser".encode()) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def answer(server, path="/", host=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request("GET", path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    found = response.status, response.read().decode(), response.getheader("Content-Type")
    connection.close()
    return found


def test_the_page_is_served_on_the_loopback_address_alone(server):
    assert server.server_address == ("127.0.0.1", server.server_port)
    assert serve.address(server) == f"http://127.0.0.1:{server.server_port}/"
    assert answer(server) == (200, "<p>häuser", "text/html; charset=utf-8")


def test_nothing_else_is_served(server):
    assert answer(server, "/etc/passwd")[0] == 404
    assert answer(server, "/../")[0] == 404


def test_a_page_of_another_host_cannot_read_it(server):
    assert answer(server, host=f"evil.example:{server.server_port}")[0] == 403
    assert answer(server, host=f"localhost:{server.server_port}")[0] == 200


def test_two_pages_have_two_ports(server):
    with serve.server_of(b"") as other:
        assert other.server_port != server.server_port


def test_serving_ends_with_an_interrupt():
    def interrupt(address):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve.serve("", interrupt)
