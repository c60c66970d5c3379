"""Objects that TensorRT calls: progress of a build, the stream that takes the plan, the log of a parse."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from trtkit.jobs.events import Progress
from trtkit.jobs.trt_log import parsed_node

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.jobs.events import Listener

Json = dict[str, Any]

# Progress events closer together than this are dropped.
_EVENT_INTERVAL_S = 0.05


def progress_monitor(backend: Backend, report: Listener) -> Any:
    """Return an IProgressMonitor that reports the steps of every phase, nested ones too."""

    class Monitor(backend.trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self._totals: dict[str, int] = {}
            self._reported_s = 0.0

        def phase_start(self, name: str, _parent: str | None, num_steps: int) -> None:
            self._totals[name] = num_steps
            self._send(name, 0)

        def step_complete(self, name: str, step: int) -> bool:
            self._send(name, step + 1)
            return True

        def phase_finish(self, name: str) -> None:
            self._totals.pop(name, None)

        def _send(self, name: str, done: int) -> None:
            now = time.monotonic()
            if now - self._reported_s >= _EVENT_INTERVAL_S:
                self._reported_s = now
                report(Progress(name, done, self._totals.get(name, 0)))

    return Monitor()


def parse_recorder(backend: Backend) -> Any:
    """Return a logger that prints nothing and keeps, as `last_node`, the name of the node that a parser came to."""

    class LogRecorder(backend.trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.last_node = ""

        def log(self, _severity: Any, text: str) -> None:
            self.last_node = parsed_node(text) or self.last_node

    return LogRecorder()


class FileWriter:
    """Write a plan to `file` and hash it next to that, in a thread: hashing releases the interpreter."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hashing = ThreadPoolExecutor(max_workers=1)
        self._sha256, self.size_bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Take the next part; returns its size. Raises OSError where the disk does not."""
        part = memoryview(data)
        self._hashing.submit(self._sha256.update, part)
        try:
            self._file.write(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from None
        self.size_bytes += part.nbytes
        return part.nbytes

    def sha256(self) -> str:
        """Return the digest of all that was written; nothing can be written after."""
        self._hashing.shutdown()
        return self._sha256.hexdigest()


def plan_writer(backend: Backend, writer: FileWriter) -> Any:
    """Return TensorRT's stream writer over `writer`; TensorRT swallows exceptions, so it keeps the first as `fault`."""

    class StreamWriter(backend.trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fault: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                return writer.write(data)
            except OSError as error:
                self.fault = self.fault or error
                return 0

    return StreamWriter()
