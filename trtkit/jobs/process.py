"""A Python process that exits when its parent does, which it detects by the end of its stdin."""

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
    """A module running in its own session, with its output in `log`.

    Its stdin stays open: end of file tells it that this process has exited. command: the module, then its arguments.
    environment: None to inherit this process's. pass_fds: file descriptors that it inherits.
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
        """Write a line to its stdin; ignored if it has exited."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Wait for it to exit; return its exit code, negative for a signal."""
        return self._process.wait()

    def failure(self) -> str:
        """Return how it failed and its last line of output; empty while it runs and if it exited with 0."""
        code = self._process.poll()
        if not code:
            return ""
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        line = self._last_line()
        return ending + (f"; its last words: {line}" if line else "")

    def end(self, timeout_s: float) -> None:
        """Terminate it if it runs; kill it after `timeout_s`."""
        if self.is_running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kill it immediately if it runs."""
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
