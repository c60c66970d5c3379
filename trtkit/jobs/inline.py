"""Run a job in this process as a child would run it, and leave no trace of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtkit.jobs.events import Event, Listener


class Printed:
    """Sends what this process prints to a file while a job runs: Python's streams, and C++'s below them."""

    def __init__(self, log: Path) -> None:
        self._file = log.open("a", encoding="utf-8", buffering=1)
        self._streams, self._saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))

    def __enter__(self) -> Printed:
        self._to_log()
        return self

    def __exit__(self, *_: object) -> None:
        self._back()
        for descriptor in self._saved:
            os.close(descriptor)
        self._file.close()

    def outside(self, report: Listener) -> Listener:
        """Return `report` with the streams as they were before: who listens may print."""

        def deliver(event: Event) -> None:
            self._back()
            try:
                report(event)
            finally:
                self._to_log()

        return deliver

    def _to_log(self) -> None:
        _flush()
        sys.stdout = sys.stderr = self._file
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def _back(self) -> None:
        _flush()
        sys.stdout, sys.stderr = self._streams
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Put back what a job changes in its process: sys.path, a user's modules, torch's random state."""
    path, modules = list(sys.path), set(sys.modules)
    importlib.invalidate_caches()  # a job may import a file that was written just now
    try:
        with contextlib.ExitStack() as stack:
            if "torch" in sys.modules:
                stack.enter_context(sys.modules["torch"].random.fork_rng(devices=[]))
            yield
    finally:
        added = tuple(f"{folder}{os.sep}" for folder in sys.path if folder not in path)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(added or ("\0",)):
                del sys.modules[name]


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
