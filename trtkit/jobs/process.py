"""A Python process that ends with the one that started it, which it hears through its stdin."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LAST_CHARACTERS = 300


class ChildProcess:
    """A module in a session of its own; what it prints is in `log`.

    Its stdin stays open: its end tells the process that this one is gone. command: the module, then its arguments.
    environment: None for that of this process. pass_fds: file descriptors that it inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=pass_fds,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, line: str) -> None:
        """Write a line to its stdin; one that is gone does not read it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        return self._process.wait()

    def failure(self) -> str:
        """Return how it failed and the last line that it printed; empty while it runs, and if it exited with 0."""
        code = self._process.poll()
        if not code:
            return ""
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        line = self._last_line()
        return ending + (f"; its last words: {line}" if line else "")

    def end(self, timeout_s: float) -> None:
        """Terminate it if it runs; kill it if it takes longer than that to exit."""
        if self.is_running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _last_line(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:_LAST_CHARACTERS] if lines else ""
