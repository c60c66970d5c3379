"""The gate in front of the frontend: what passes with a key, what is refused, and that nothing passes unseen."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import pytest
from openai import AuthenticationError, OpenAI

from trtkit.deployment.dynamo.gate import Gate
from trtkit.deployment.process import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "s\u00e9cret-key"
LIMIT = 1 << 20


class Frontend(BaseHTTPRequestHandler):
    """Stands for Dynamo's frontend: keeps connections, answers in pieces, and notes each request that reaches it."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, dict[str, str], int]]] = []
    gone = threading.Event()

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers), 0))
        self._answer({"path": self.path})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        if self.path.endswith("/gone"):
            self.close_connection = True  # with all of the body unread, which resets the connection
            return
        body = self.rfile.read(length)
        self.seen.append((self.path, dict(self.headers), len(body)))
        if self.path.endswith("/stream"):
            self._stream()
        else:
            self._answer({"object": "list", "data": [{"id": "m", "object": "model", "size": len(body)}]})

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for number in range(200):
                self.wfile.write(f"data: {number}\n\n".encode())
                time.sleep(0.02)
        except OSError:
            self.gone.set()

    def _answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Frontend.seen.clear()
    Frontend.gone.clear()
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Frontend)
    threading.Thread(target=backend.serve_forever, args=(0.01,), daemon=True).start()
    (port,) = free_ports(1)
    gate = Gate("127.0.0.1", port, backend.server_port, KEY, LIMIT)
    yield port
    gate.close()
    backend.shutdown()
    backend.server_close()


def talk(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that comes back until the gate closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65536):
                answer += piece
    return answer


def request(path: str = "/v1/models", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


AUTHORIZED = f"Authorization: Bearer {KEY}"


def test_the_openai_client_gets_answers_with_the_key_and_its_own_error_without(port: int) -> None:
    def client(key: str) -> OpenAI:
        return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)

    plain = KEY.replace("\u00e9", "e")
    with pytest.raises(AuthenticationError) as caught:
        client(plain).models.list()
    assert caught.value.status_code == 401
    assert caught.value.code == "invalid_api_key"
    assert caught.value.type == "invalid_request_error"
    assert Frontend.seen == []
    assert json.loads(talk(port, request("/v1/models", AUTHORIZED)).partition(b"\r\n\r\n")[2]) == {"path": "/v1/models"}


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer",),
        ("Authorization: Bearer wrong",),
        (f"Authorization: Basic {KEY}",),
        (f"Authorization: {KEY}",),
        (f"Authorization: Bearer {KEY}x",),
        (f"Authorization: Bearer {KEY[:-1]}",),
        (AUTHORIZED, "Authorization: Bearer wrong"),
        (f"X-Api-Key: {KEY}",),
    ],
)
def test_without_the_key_nothing_reaches_the_frontend(port: int, headers: tuple[str, ...]) -> None:
    answer = talk(port, request("/v1/chat/completions", *headers, method="POST", body=b"{}"))
    assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in answer
    assert KEY.encode() not in answer
    assert Frontend.seen == []


@pytest.mark.parametrize("path", ["/health", "/live", "/metrics", "/health?x=1"])
def test_probes_and_metrics_need_no_key(port: int, path: str) -> None:
    assert talk(port, request(path)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/health/../v1/models", "//health", "/metrics/x", "/v1/models?/health", "/HEALTH"])
def test_paths_that_look_like_those_of_probes_need_it(port: int, path: str) -> None:
    assert talk(port, request(path)).startswith(b"HTTP/1.1 401")
    assert Frontend.seen == []


def test_the_frontend_sees_neither_the_key_nor_a_second_request(port: int) -> None:
    """A second request on the connection, behind one that passes, has not been checked."""
    answer = talk(port, request("/health") + request("/v1/models", AUTHORIZED))
    assert answer.count(b"HTTP/1.1 ") == 1
    talk(port, request("/v1/models", AUTHORIZED, "Connection: keep-alive, x", "Upgrade: websocket"))
    assert [path for path, _, _ in Frontend.seen] == ["/health", "/v1/models"]
    for _, headers, _ in Frontend.seen:
        names = {name.lower(): value for name, value in headers.items()}
        assert names["connection"] == "close"
        assert names.keys() & {"authorization", "upgrade"} == set()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("/health", "Transfer-Encoding: chunked", method="POST"), 411),
        (request("/health", "Content-Length: 1", "Content-Length: 2", method="POST"), 400),
        (request("/health", "Content-Length: +1", method="POST"), 400),
        (b"GET /health HTTP/1.1\r\nHost: x\nAuthorization: y\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n folded\r\n\r\n", 400),
        (b"GET http://elsewhere/health HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (request("/health", "X: " + "x" * 70_000), 431),
    ],
)
def test_requests_whose_end_is_in_doubt_are_refused(port: int, data: bytes, status: int) -> None:
    assert talk(port, data).startswith(f"HTTP/1.1 {status} ".encode())
    assert Frontend.seen == []


def test_bodies_pass_whole_up_to_the_limit_and_a_larger_one_is_refused(port: int) -> None:
    answer = talk(port, request("/v1/x", AUTHORIZED, method="POST", body=b"x" * LIMIT))
    assert f'"size": {LIMIT}'.encode() in answer
    assert talk(port, request("/v1/x", AUTHORIZED, method="POST", body=b"x" * (8 * LIMIT))).startswith(b"HTTP/1.1 413 ")
    assert len(Frontend.seen) == 1


@pytest.mark.parametrize("size", [0, LIMIT])
def test_a_frontend_that_closes_without_an_answer_is_a_502(port: int, size: int) -> None:
    data = request("/v1/gone", AUTHORIZED, method="POST", body=b"x" * size)
    assert talk(port, data).startswith(b"HTTP/1.1 502 ")


def test_a_stream_comes_in_pieces_and_a_client_that_disconnects_is_noticed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request("/v1/stream", AUTHORIZED, method="POST", body=b"{}"))
        seen = b""
        while b"data: 1\n" not in seen:
            seen += client.recv(4096)
        assert b"data: 150\n" not in seen
    assert Frontend.gone.wait(5)


def test_a_frontend_that_does_not_run_is_a_503() -> None:
    port, nobody = free_ports(2)
    gate = Gate("127.0.0.1", port, nobody, KEY, LIMIT)
    try:
        assert talk(port, request("/health")).startswith(b"HTTP/1.1 503 ")
    finally:
        gate.close()
    with pytest.raises(ConnectionRefusedError):
        talk(port, request("/health"))


def test_a_port_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            Gate("127.0.0.1", taken.getsockname()[1], 1, KEY, LIMIT)
