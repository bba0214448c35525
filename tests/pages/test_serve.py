import json
import socket
import threading
from http.client import HTTPConnection

import pytest
from refusals import refused

from sinkinterp.checks import InputError
from sinkinterp.pages import serve


def turned(question):
    """Answers a list with the list in reverse; an empty one is a mistake of ours."""
    if not isinstance(question, list):
        raise InputError("a question is a list,\non one line")
    return [question.pop(), *reversed(question)]


@pytest.fixture
def server():
    with serve.server_of("<p>häuser".encode(), {"/ask": turned}) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def answer(server, path="/", method="GET", body=None, **headers):
    """The status, the content and its kind."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    found = response.status, response.read().decode(), response.getheader("Content-Type")
    connection.close()
    return found


def ask(server, question, path="/ask", **headers):
    """The status and the answer to a question, which is JSON unless it is text already."""
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    return answer(server, path, "POST", body, **{"Content-Type": "application/json", **headers})[:2]


def test_the_page_is_served_on_the_loopback_address_alone(server):
    assert server.server_address == ("127.0.0.1", server.server_port)
    assert serve.address(server) == f"http://127.0.0.1:{server.server_port}/"
    assert answer(server) == (200, "<p>häuser", "text/html; charset=utf-8")


def test_nothing_else_is_served(server):
    assert (
        {answer(server, path)[0] for path in ("/etc/passwd", "/../")} == {ask(server, [1], path="/other")[0]} == {404}
    )


def test_a_page_of_another_host_can_neither_read_it_nor_ask(server):
    evil, port = f"evil.example:{server.server_port}", server.server_port
    assert answer(server, Host=evil)[0] == ask(server, [1], Host=evil)[0] == 403
    assert ask(server, [1], Origin="http://evil.example")[0] == ask(server, [1], Origin="null")[0] == 403
    assert answer(server, Host=f"localhost:{port}")[0] == 200
    assert ask(server, [1], Origin=f"http://localhost:{port}")[0] == 200


def test_serving_ends_with_an_interrupt():
    def interrupt(address):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve.serve("", interrupt)


def test_a_connection_that_says_nothing_blocks_no_other(server):
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(5)]
    assert answer(server)[0] == 200
    half = socket.create_connection(("127.0.0.1", server.server_port))
    half.sendall(b"GET / HT")
    assert answer(server)[0] == 200 and ask(server, [1])[0] == 200
    for connection in (*silent, half):
        connection.close()


def test_a_connection_that_says_nothing_is_closed(server, monkeypatch):
    monkeypatch.setattr(serve._Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as silent:
        assert silent.recv(1) == b""  # the end
    body = b"POST /ask HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n[1"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as slow:
        slow.sendall(body % server.server_port)
        assert slow.recv(100) == b""


def test_a_question_is_answered_in_json(server):
    assert ask(server, [1, 2]) == (200, "[2, 1]")


@pytest.mark.parametrize(
    ("question", "headers", "words"),
    [
        ([1], {"Content-Type": "text/plain"}, "application/json"),
        ([1], {"Content-Type": "application/x-www-form-urlencoded"}, "application/json"),
        (b"{", {}, "no JSON"),
        (b"\xff\xfe", {}, "no JSON"),
        (b"[" * 90_000, {}, "no JSON"),
        (b"1" * 100_001, {}, "100,000"),
        (b"[1]", {"Content-Length": "-3"}, "Content-Length"),
        (b"[1]", {"Content-Length": "x"}, "Content-Length"),
        ("not a list", {}, "list"),
    ],
)
def test_a_bad_question_is_answered_in_one_line(server, question, headers, words):
    status, text = ask(server, question, **headers)
    assert status == 400 and words in json.loads(text)["error"] and "\n" not in json.loads(text)["error"]


def test_a_mistake_of_ours_is_one_line_too_and_the_server_goes_on(server):
    status, text = ask(server, [])
    assert status == 500 and "IndexError" in json.loads(text)["error"]
    assert answer(server)[0] == 200


def test_a_port_that_is_taken_is_named(server):
    refused(lambda: serve.server_of(b"", port=server.server_port), f"port {server.server_port}", "another port=")


def test_two_hundred_clients_at_once_are_all_answered():
    with serve.server_of(b"page") as server:  # which does not run, so that none is let in
        clients = [socket.create_connection(server.server_address, timeout=30) for _ in range(200)]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for client in clients:
            client.sendall(f"GET / HTTP/1.0\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
        for client in clients:
            with client, client.makefile("rb") as answer:
                assert answer.readline().split()[1] == b"200"
        server.shutdown()
