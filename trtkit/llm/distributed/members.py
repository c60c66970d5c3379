"""The other ranks of this machine as child processes, which end with the process that started them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import RankError
from trtkit.jobs.json_form import to_json
from trtkit.llm.execution.single import OpenOptions  # noqa: TC001 (read from JSON by its types)
from trtkit.threads import import_paths, share_of_cores

_POLL_S = 0.02


@dataclass(frozen=True)
class MemberRequest:
    """What a child process is to be. port: of the store on the loopback address."""

    bundle: Path
    rank: int
    count: int
    port: int
    options: OpenOptions


class Members:
    """Ranks from 1 on, each a child process with a log of its own."""

    def __init__(self, bundle: Path, count: int, port: int, options: OpenOptions) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trtkit-ranks-"))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, count):
            self._processes[rank] = self._start(MemberRequest(bundle.absolute(), rank, count, port, options))

    @property
    def pids(self) -> dict[int, int]:
        """The process ids, by rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def exited(self) -> RankError | None:
        """Return the error of a rank that has failed, None if there is none."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code:  # one that was told to close exits with 0
                ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                line = self._last_line(rank)
                what = f"rank {rank} has ended: {ending}" + (f"; its last words: {line}" if line else "")
                return RankError(what, "ranks", "open the bundle again")
        return None

    def end(self, timeout_s: float) -> None:
        """Wait for the processes, which are about to end; kill those that do not."""
        end = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self._processes.values()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """End the processes at once."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._processes.values():
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, request: MemberRequest) -> subprocess.Popen[bytes]:
        with self._log(request.rank).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trtkit.llm.distributed.member"],
                stdin=subprocess.PIPE,  # stays open: its end tells the child that this process is gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | share_of_cores(request.count) | import_paths(),
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(to_json(request)).encode() + b"\n")
            process.stdin.flush()
        return process

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"

    def _last_line(self, rank: int) -> str:
        try:
            lines = self._log(rank).read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:300] if lines else ""
