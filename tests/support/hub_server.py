"""A local Hugging Face hub for the real client: repositories, digests, ranges, failures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

REVISION = "5" * 40
_LARGE = (".safetensors", ".gguf")


@dataclass
class Hub:
    """The server's content and the requests it received.

    repositories: files by name, by repository id. statuses: of ids to refuse. wrong_digests: files whose content does
    not match their digest. cut: bytes of a file to send before the connection drops, once.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    wrong_digests: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    stated_sizes: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[str, str]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    def add(self, hub_id: str, folder: Path) -> None:
        """Add a repository with a folder's files."""
        files = (path for path in folder.rglob("*") if path.is_file())
        self.repositories[hub_id] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    """Run a hub until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the hub's client, in this process and in children, to `hub`, with `cache` as its cache."""
    from huggingface_hub import constants

    for name, value in (("HF_ENDPOINT", hub.url), ("HF_HUB_CACHE", str(cache)), ("HF_HUB_DISABLE_XET", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, *, has_body: bool) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            self._info(match[1])
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            self._tree(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._file(match[1], match[2], has_body=has_body)
        else:
            self._send(404, {}, b"{}", has_body=has_body)

    def _refused(self, hub_id: str) -> bool:
        status = self.hub.statuses.get(hub_id, 200 if hub_id in self.hub.repositories else 401)
        if status == 200:
            return False
        code = {401: "RepoNotFound", 403: "GatedRepo"}.get(status, "")
        self._send(status, {"X-Error-Code": code, "X-Error-Message": "no"} if code else {}, b"{}", has_body=True)
        return True

    def _entries(self, hub_id: str) -> list[dict[str, Any]]:
        return [_entry(self.hub, name, data) for name, data in self.hub.repositories[hub_id].items()]

    def _info(self, hub_id: str) -> None:
        if not self._refused(hub_id):
            siblings = [{"rfilename": entry.pop("path"), **entry} for entry in self._entries(hub_id)]
            answer = {"id": hub_id, "modelId": hub_id, "sha": REVISION, "siblings": siblings}
            self._send(200, {}, json.dumps(answer).encode(), has_body=True)

    def _tree(self, hub_id: str) -> None:
        if not self._refused(hub_id):
            rows = [{"type": "file", "oid": entry["blobId"], **entry} for entry in self._entries(hub_id)]
            self._send(200, {}, json.dumps(rows).encode(), has_body=True)

    def _file(self, hub_id: str, name: str, *, has_body: bool) -> None:
        if self._refused(hub_id):
            return
        data = self.hub.repositories[hub_id].get(name)
        if data is None:
            self._send(404, {"X-Error-Code": "EntryNotFound"}, b"", has_body=has_body)
            return
        entry = _entry(self.hub, name, data)
        etag = entry["lfs"]["sha256"] if "lfs" in entry else entry["blobId"]
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if not has_body:
            self._send(200, headers, data, has_body=False)
            return
        self.hub.served.append(name)
        start, status = 0, 200
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append((name, wanted))
            start, status = int(wanted.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(status, headers, data[start:], has_body=True, cut=self.hub.cut.pop(name, None))

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, *, has_body: bool, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


def _entry(hub: Hub, name: str, data: bytes) -> dict[str, Any]:
    """Return a file's entry in the hub's listing."""
    stated = data if name not in hub.wrong_digests else bytes(len(data))
    blob = hashlib.sha1(b"blob %d\0" % len(stated) + stated, usedforsecurity=False).hexdigest()
    entry = {"path": name, "size": hub.stated_sizes.get(name, len(data)), "blobId": blob}
    if name.endswith(_LARGE):
        sha256 = hashlib.sha256(stated).hexdigest()
        entry["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": 134}
    return entry
