"""The other ranks of this machine, as child processes that end with the process that started them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trtkit.errors import RankError
from trtkit.jobs.json_form import to_json
from trtkit.jobs.process import ChildProcess
from trtkit.llm.execution.single import OpenOptions  # noqa: TC001 (read from JSON by its types)
from trtkit.threads import import_paths, share_of_cores

_POLL_S = 0.02


@dataclass(frozen=True)
class MemberRequest:
    """Which rank a child process is. port: of the store, on the loopback address."""

    bundle: Path
    rank: int
    count: int
    port: int
    options: OpenOptions


class Members:
    """Ranks from 1 on, each a child process with its own log."""

    def __init__(self, bundle: Path, count: int, port: int, options: OpenOptions) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trtkit-ranks-"))
        self._processes: dict[int, ChildProcess] = {}
        for rank in range(1, count):
            self._processes[rank] = self._start(MemberRequest(bundle.absolute(), rank, count, port, options))

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def exited(self) -> RankError | None:
        """Return the error of a rank that has failed; None if all are well."""
        for rank, process in self._processes.items():
            if failure := process.failure():  # a rank that was told to close exits with 0
                return RankError(f"rank {rank} has ended: {failure}", "ranks", "open the bundle again")
        return None

    def end(self, timeout_s: float) -> None:
        """Wait for processes that are about to end; kill those that do not."""
        end = time.monotonic() + timeout_s
        while any(process.is_running for process in self._processes.values()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kill the processes."""
        for process in self._processes.values():
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, request: MemberRequest) -> ChildProcess:
        environment = os.environ | share_of_cores(request.count) | import_paths()
        log = self._folder / f"rank{request.rank}.log"
        process = ChildProcess(["trtkit.llm.distributed.member"], log, environment)
        process.send(json.dumps(to_json(request)))
        return process
