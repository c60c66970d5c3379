"""Servers of this machine start from any process, and are reached whatever proxy the environment names."""

from __future__ import annotations

import mmap
import os
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from trtkit.deployment.process import POLL_S, ServerProcess, is_loopback, open_local

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@contextmanager
def more_memory_than_a_fork_may_have() -> Iterator[None]:
    """Reserve, without touching it, more than the machine has; the kernel merges neighboring mappings."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 5
    with ExitStack() as mappings:
        for _ in range(2):
            mappings.enter_context(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        yield


def can_fork() -> bool:
    """Whether this process can be forked now."""
    try:
        pid = os.fork()
    except OSError:
        return False
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


def ending(server: ServerProcess) -> str:
    """Return how a process ended, once it has."""
    while server.exit_code() is None:
        time.sleep(POLL_S)
    return server.ending()


def test_a_process_that_cannot_be_forked_starts_a_server() -> None:
    lines: list[str] = []
    with more_memory_than_a_fork_may_have():
        if can_fork():
            pytest.skip("this machine forks any process")
        server = ServerProcess(["/bin/sh", "-c", "umask; ulimit -s; echo $NAME"], {"NAME": "x"}, lines.append, 1 << 26)
    try:
        assert ending(server) == "exit code 0"
        assert lines == ["0077", str(1 << 16), "x"]
    finally:
        server.stop(1.0)


def test_a_command_that_is_missing_is_named() -> None:
    lines: list[str] = []
    server = ServerProcess(["/missing/server"], {}, lines.append)
    try:
        assert ending(server) == "exit code 1"
        assert lines == ["/missing/server: No such file or directory"]
    finally:
        server.stop(1.0)
