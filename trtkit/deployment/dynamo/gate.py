"""A gate in front of Dynamo's frontend, which has no API keys: requests without the key are answered with 401.

A connection carries one request, whose head is parsed and whose body has its declared length, so that nothing reaches
the frontend unchecked: bodies without a length are refused, and a connection is closed after its answer. Answers,
including streams, pass through as they arrive; if a client disconnects, the gate disconnects from the frontend, which
frees the client's slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

OPEN_PATHS = frozenset({"/health", "/live", "/metrics"})
"""Open to probes and Prometheus, which have no key."""
_Result = TypeVar("_Result")
_HEAD_LIMIT, _PIECE = 64 << 10, 64 << 10
_HEAD_S, _LINGER_S = 30.0, 2.0
# Hop-by-hop headers, and the key, which is for the gate only.
_DROPPED = frozenset(
    {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade", "authorization"}
)


class RefusedError(Exception):
    """A refused request: its status, and the code and message of an error in OpenAI's form."""

    def __init__(self, status: str, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def answer(self) -> bytes:
        """Return the response."""
        kind = "server_error" if self.status.startswith("5") else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        body = json.dumps({"error": error}).encode()
        lines = [f"HTTP/1.1 {self.status}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += ["WWW-Authenticate: Bearer"] if self.status.startswith("401") else []
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@dataclass(frozen=True)
class _Head:
    """The head of a request. line: method, target and version. headers: in order, with names as received."""

    line: str
    headers: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1].partition("?")[0]

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def body_length(self) -> int:
        """Return the length of the body. Raises RefusedError unless it is declared exactly once."""
        lengths = self.values("content-length")
        if self.values("transfer-encoding"):
            raise RefusedError("411 Length Required", None, "send the body with a Content-Length")
        if len(lengths) > 1 or not all(length.isascii() and length.isdigit() for length in lengths):
            raise RefusedError("400 Bad Request", None, "Content-Length must be one number")
        return int(lengths[0]) if lengths else 0

    def forwarded(self) -> bytes:
        """Return the head for the frontend: that of its connection's only request."""
        kept = [f"{name}: {value}" for name, value in self.headers if name.lower() not in _DROPPED]
        return "\r\n".join([self.line, *kept, "Connection: close", "", ""]).encode("latin-1")


def _parse(data: bytes) -> _Head:
    """Return the parsed head. Raises RefusedError for anything but HTTP/1."""
    line, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"} or not words[1].startswith("/"):
        raise RefusedError("400 Bad Request", None, "not a request of HTTP/1.1")
    headers = []
    for text in lines:
        name, colon, value = text.partition(":")
        if not colon or not name or name != name.strip() or "\n" in text or "\r" in text:
            raise RefusedError("400 Bad Request", None, "a header is malformed")
        headers.append((name, value.strip()))
    return _Head(line, tuple(headers))


class Gate:
    """A running gate; `close` ends it and its connections.

    backend_port: the frontend's, on the loopback address. body_limit: size of the largest accepted body in bytes.
    Raises OSError if `host` and `port` cannot be bound.
    """

    def __init__(self, host: str, port: int, backend_port: int, api_key: str, body_limit: int) -> None:
        self._backend_port, self._key, self._body_limit = backend_port, api_key.encode(), body_limit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, host, port, limit=_HEAD_LIMIT)
        try:
            self._server = self._run(starting)
        except BaseException:
            self._end_loop()
            raise

    def close(self) -> None:
        """End the connections and stop listening."""
        self._run(self._stop())
        self._end_loop()

    def _run(self, work: Coroutine[None, None, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection's request."""
        try:
            try:
                head = await _read_head(reader)
                if head is None:
                    return
                self._check(head)
                await self._forward(head, reader, writer)
            except RefusedError as refusal:
                writer.write(refusal.answer())
            await writer.drain()
            await _linger(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the gate closes
        finally:
            writer.close()

    def _check(self, head: _Head) -> None:
        """Raise RefusedError for a request without the key."""
        if head.path in OPEN_PATHS:
            return
        sent = head.values("authorization")
        scheme, _, key = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not secrets.compare_digest(key.strip().encode("latin-1"), self._key):
            message = "Incorrect API key provided" if sent else "You didn't provide an API key"
            fix = "send the server's key as `Authorization: Bearer KEY`"
            raise RefusedError("401 Unauthorized", "invalid_api_key", f"{message}: {fix}")

    async def _forward(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a request, and its answer until either side closes. Raises RefusedError, OSError."""
        length = head.body_length()
        # The frontend has the same limit, but resets connections that are still sending, which can lose its answer.
        if length > self._body_limit:
            what = f"the body has {length} bytes, and the limit is {self._body_limit}"
            raise RefusedError("413 Content Too Large", None, what)
        try:
            answer, backend = await asyncio.open_connection("127.0.0.1", self._backend_port)
        except OSError:
            raise RefusedError("503 Service Unavailable", None, "the server is starting or stopping") from None
        sending = asyncio.ensure_future(_send(head.forwarded(), length, reader, backend))
        answering = asyncio.ensure_future(_pipe(answer, writer))
        try:
            # The sending task ends if the client disconnects, and otherwise waits for that.
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and not answering.result():
                raise RefusedError("502 Bad Gateway", None, "the server closed the connection without an answer")
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)
            backend.close()


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    """Return the head of the request, None if none arrived. Raises RefusedError."""
    try:
        return _parse(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S))
    except asyncio.LimitOverrunError:
        raise RefusedError("431 Request Header Fields Too Large", None, "the headers are too large") from None
    except (asyncio.IncompleteReadError, TimeoutError):
        return None


async def _send(head: bytes, length: int, reader: asyncio.StreamReader, backend: asyncio.StreamWriter) -> None:
    """Forward a request, then wait until the client disconnects."""
    backend.write(head)
    while length:
        piece = await reader.read(min(_PIECE, length))
        if not piece:
            return
        length -= len(piece)
        try:
            backend.write(piece)
            await backend.drain()
        except OSError:  # it has refused the request, and its answer is on the way
            await asyncio.Event().wait()
    while await reader.read(_PIECE):
        pass


async def _pipe(answer: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Forward the answer until the frontend closes the connection. Returns whether any of it arrived."""
    began = False
    with contextlib.suppress(OSError):
        while piece := await answer.read(_PIECE):
            began = True
            writer.write(piece)
            await writer.drain()
    return began


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Drain what a refused client still sends: closing earlier would discard the answer before it is read."""
    if writer.can_write_eof():
        writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HEAD_S):
            while await asyncio.wait_for(reader.read(_PIECE), _LINGER_S):
                pass
