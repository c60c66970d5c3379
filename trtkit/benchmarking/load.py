"""Load generation: closed loops with fixed concurrency, or open loops with due times."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtkit.benchmarking.metrics import RequestRecord
from trtkit.errors import TrtkitError


class LoadClock(Protocol):
    """A clock that reports and waits, in seconds."""

    def now(self) -> float:
        """Return the time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class RequestOutcome:
    """The result of a request. token_times_s: by the clock. error: why it failed."""

    token_times_s: tuple[float, ...] = ()
    input_tokens: int = 0
    error: str = ""


def drive(
    send: Callable[[int], RequestOutcome],
    due_s: Sequence[float] | int,
    workers: int,
    clock: LoadClock | None = None,
) -> list[RequestRecord]:
    """Send requests and return their records, in order.

    send: takes a request's index and blocks until it is answered. due_s: due times in seconds from the start (an open
    loop), or the number of requests, each sent when a worker is free (a closed loop). workers: maximum concurrent
    requests. In an open loop a delayed request's latency counts from its due time. A trtkit error fails its request;
    any other error ends the load.
    """
    count = due_s if isinstance(due_s, int) else len(due_s)
    load = _RunningLoad(send, None if isinstance(due_s, int) else due_s, clock or WallClock(), iter(range(count)))
    if workers == 1:
        load.work()
    else:
        threads = [threading.Thread(target=load.work, daemon=True) for _ in range(min(workers, count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if load.failures:
        raise load.failures[0]
    return [load.records[index] for index in range(count)]


class _RunningLoad:
    """The remaining requests, and the records of finished ones."""

    def __init__(
        self,
        send: Callable[[int], RequestOutcome],
        due_s: Sequence[float] | None,
        clock: LoadClock,
        left: Iterator[int],
    ) -> None:
        self._send, self._due_s, self._clock, self._left = send, due_s, clock, left
        self._lock, self._start = threading.Lock(), clock.now()
        self.records: dict[int, RequestRecord] = {}
        self.failures: list[BaseException] = []

    def work(self) -> None:
        """Send requests until none remain."""
        try:
            while not self.failures and (index := self._next()) is not None:
                self.records[index] = self._one(index)
        except BaseException as failure:  # a thread's own would be lost: `drive` raises it again
            self.failures.append(failure)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._left, None)

    def _one(self, index: int) -> RequestRecord:
        due = self._wait(index)
        sent = self._clock.now() - self._start
        try:
            answer = self._send(index)
        except TrtkitError as error:
            answer = RequestOutcome(error=str(error))
        ended = self._clock.now() - self._start
        times = tuple(moment - self._start for moment in answer.token_times_s)
        return RequestRecord(sent if due is None else due, sent, ended, times, answer.input_tokens, answer.error)

    def _wait(self, index: int) -> float | None:
        """Wait until a request is due; return its due time."""
        if self._due_s is None:
            return None
        due = self._due_s[index]
        ahead = due - (self._clock.now() - self._start)
        if ahead > 0:
            self._clock.sleep(ahead)
        return due


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """Return the maximum number of concurrent requests."""
    changes = sorted([(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records])
    return max(itertools.accumulate(change for _, change in changes), default=0)
