from __future__ import annotations

import contextlib
import http.server
import threading
from typing import TYPE_CHECKING

import pytest

from trtkit.deployment.triton.endpoints import free_ports
from trtkit.errors import DeployError
from trtkit.runtime.triton_client import Client, parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.runtime.triton_client import Protocol


@pytest.mark.parametrize(
    ("url", "protocol", "address"),
    [
        ("localhost:8000", None, "http://localhost:8000"),
        ("localhost:8001", "grpc", "grpc://localhost:8001"),
        ("http://gpu-7:8000/", None, "http://gpu-7:8000"),
        ("https://gpu-7:8000", "http", "https://gpu-7:8000"),
        ("grpc://10.0.0.7:8001", None, "grpc://10.0.0.7:8001"),
        ("grpcs://gpu-7:443", None, "grpcs://gpu-7:443"),
        ("[::1]:8000", None, "http://[::1]:8000"),
    ],
)
def test_addresses(url: str, protocol: Protocol | None, address: str) -> None:
    assert str(parse_url(url, protocol)) == address


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "127.0.0.1:8000/v1/"])
def test_an_openai_server_names_what_measures_it(url: str) -> None:
    with pytest.raises(DeployError) as error:
        parse_url(url)
    assert str(error.value) == (
        f"`{url}` is an OpenAI-compatible server; trtkit measures a bundle here, or Triton servers\n"
        "fix: measure it with AIPerf, as docs/openai-production.md shows, or give the bundle without `--url`"
    )


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://localhost", "a:b", "ftp://a:1", "http://me:secret@a:1", "a:1/x", "a:99999", "::1:8"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(DeployError) as error:
        parse_url(url)
    assert (
        str(error.value) == f"`{url}` is not a server address\nfix: use http://HOST:PORT, grpc://HOST:PORT or HOST:PORT"
    )


def test_url_and_protocol_must_agree() -> None:
    with pytest.raises(DeployError, match="`http://a:1` is not for grpc"):
        parse_url("http://a:1", "grpc")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nobody_there(protocol: Protocol) -> None:
    target = f"127.0.0.1:{free_ports().http_port}"
    with Client(parse_url(target, protocol), 5.0) as client, pytest.raises(DeployError) as error:
        client.is_live()
    assert error.value.what.startswith("no Triton server answers: ")
    assert error.value.where == f"{protocol}://{target}"
    assert error.value.fix.startswith("start it with `trtkit serve`")


class AnswersAnything(http.server.BaseHTTPRequestHandler):
    """A web server that is not Triton and says yes to every path."""

    body = b"{}"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[b"{}", b"[]", b"<html>", b""])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(type("Handler", (AnswersAnything,), {"body": request.param})) as target:
        yield target


@contextlib.contextmanager
def serving(handler: type[AnswersAnything]) -> Iterator[str]:
    """Serve on a port of this machine; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_another_web_server_is_told_from_triton(stranger: str) -> None:
    with Client(parse_url(stranger), 5.0) as client:
        assert client.is_live()
        with pytest.raises(DeployError, match="no Triton server answers: "):
            client.version()


class OpenAiServer(AnswersAnything):
    """A server with OpenAI's paths, and no others."""

    def do_GET(self) -> None:
        is_known = self.path == "/v1/models"
        body = b'{"object": "list", "data": [{"id": "llama", "object": "model"}]}' if is_known else b""
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_an_openai_server_without_v1_in_its_address_names_what_measures_it() -> None:
    with (
        serving(OpenAiServer) as target,
        Client(parse_url(target), 5.0) as client,
        pytest.raises(DeployError) as error,
    ):
        client.version()
    assert str(error.value) == (
        f"`http://{target}` is an OpenAI-compatible server; trtkit measures a bundle here, or Triton servers\n"
        "fix: measure it with AIPerf, as docs/openai-production.md shows, or give the bundle without `--url`"
    )
