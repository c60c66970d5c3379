"""Run cases in worker processes: TensorRT may crash or hang on any of them."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 30.0


@dataclass
class _Worker:
    """A process and what it works on. since: when it began."""

    process: Any
    pipe: Connection
    item: int | None = None
    since: float = 0.0


def run_isolated(work: Callable[[int], Any], items: list[int], processes: int) -> Iterator[tuple[int, Any, str]]:
    """Yield each item with its result and "", or with None and why its process is gone.

    work is inherited by fork, so it may hold what cannot be pickled.
    """
    pending = list(reversed(items))
    workers = [_start(work) for _ in range(processes)]
    while pending or any(worker.item is not None for worker in workers):
        for worker in workers:
            if worker.item is None and pending:
                worker.item, worker.since = pending.pop(), time.monotonic()
                worker.pipe.send(worker.item)
        busy = [worker for worker in workers if worker.item is not None]
        ready = wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in busy:
            is_done, result, death = _outcome(worker, worker.pipe in ready)
            if is_done:
                item, worker.item = worker.item, None
                assert item is not None
                if death:
                    workers[workers.index(worker)] = _start(work)
                yield item, result, death
    for worker in workers:
        worker.pipe.send(None)
        worker.process.join()


def _outcome(worker: _Worker, is_ready: bool) -> tuple[bool, Any, str]:
    """Return whether the worker is done with its item, the result, and why its process is gone."""
    if is_ready:
        try:
            return True, worker.pipe.recv(), ""
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return True, None, f"the process ends with exit code {worker.process.exitcode}"
    if time.monotonic() - worker.since > TIMEOUT_S:
        worker.process.kill()
        worker.process.join()
        return True, None, f"takes longer than {TIMEOUT_S:.0f} s"
    return False, None, ""


def _start(work: Callable[[int], Any]) -> _Worker:
    """Start a worker."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(work: Callable[[int], Any], pipe: Connection) -> None:
    """Answer items until told to stop; what native code prints is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while (item := pipe.recv()) is not None:
        pipe.send(work(item))
