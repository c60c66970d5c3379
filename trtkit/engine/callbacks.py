"""Objects that TensorRT calls during a build: progress and the stream that takes the plan."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.backends import Backend

Json = dict[str, Any]

# Progress events closer together than this are dropped.
_EVENT_INTERVAL_S = 0.05


def progress_monitor(backend: Backend, report: Callable[[Json], None]) -> Any:
    """Return an IProgressMonitor that reports the outermost phase's steps."""

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
                report({"event": "progress", "name": name, "done": done, "total": self._totals.get(name, 0)})

    return Monitor()


def plan_writer(backend: Backend, file: BinaryIO) -> Any:
    """Return a stream writer that hashes as it writes; TensorRT swallows exceptions, so it keeps the first."""

    class Writer(backend.trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.sha256, self.size_bytes = hashlib.sha256(), 0
            self.fault: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                file.write(data)
            except OSError as error:
                self.fault = self.fault or OSError(error.errno, error.strerror, file.name)
                return 0
            self.sha256.update(data)
            self.size_bytes += len(data)
            return len(data)

    return Writer()
