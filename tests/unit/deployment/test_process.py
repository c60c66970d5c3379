"""Servers of this machine are reached whatever proxy the environment names."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trtkit.deployment.process import is_loopback, open_local


class Answer(BaseHTTPRequestHandler):
    """Answers every request with 204."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:0")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        with pytest.raises(urllib.error.URLError):
            urllib.request.build_opener().open(url, timeout=10)
        with open_local(url, timeout=10) as answer:
            assert answer.status == 204


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_only_this_machine_reaches_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.example", "localhost.example", "::10", "10.0.0.1", ""])
def test_other_hosts_may_be_reached_from_elsewhere(host: str) -> None:
    assert not is_loopback(host)
