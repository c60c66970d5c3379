"""Servers that answer text requests, and the bundle itself in this process: one engine, driven step by step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trtkit.benchmarking.ceiling import CPU, GPU
from trtkit.benchmarking.load import WallClock
from trtkit.benchmarking.metrics import RequestRecord
from trtkit.llm.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.load import LoadClock
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.workload import Work
    from trtkit.llm import LLM, Delta
    from trtkit.llm.execution import DecoderExecution

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True)
class Served:
    """Results of requests, in order: their records, and the tokens, empty if unknown."""

    records: list[RequestRecord]
    tokens: Tokens = field(default_factory=list)


class TextServer(Protocol):
    """A server that answers requests. name: in ratios. computes: what runs and where, as shown with every figure.

    device: CPU, GPU, or None if unknown.
    """

    name: str
    computes: str
    device: str | None

    def serve(self, work: Sequence[Work], schedule: Schedule) -> Served:
        """Answer all of `work` on `schedule`, greedily, each request with exactly its specified number of tokens."""
        ...


def greedy_params(work: Work) -> SamplingParams:
    """Return settings that generate exactly `output_tokens` tokens, the most likely ones."""
    return SamplingParams(temperature=0.0, max_tokens=work.output_tokens, ignore_eos=True)


@dataclass
class _Request:
    """A running request. Times are by the clock."""

    index: int
    due_s: float
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class EngineServer:
    """A bundle in this process. A token's time is the end of its step, when its text could be sent."""

    def __init__(self, llm: LLM, precision: str, name: str = "trtkit", clock: LoadClock | None = None) -> None:
        self._llm, self._clock = llm, clock or WallClock()
        has_reference = llm.description.startswith("reference executor")
        self.name = name
        self.device: str | None = CPU if has_reference else GPU
        self.computes = f"{'reference executor, CPU' if has_reference else llm.description}, {precision}"

    @property
    def execution(self) -> DecoderExecution:
        return self._llm.frontend.execution

    def serve(self, work: Sequence[Work], schedule: Schedule) -> Served:
        """Answer all of `work`: run steps while there is work, and submit due requests between them."""
        run = _LoadRun(self._llm, self._clock, work, schedule)
        while run.is_open:
            run.submit()
            run.step()
        return Served([run.records[index] for index in range(len(work))], [run.tokens[i] for i in range(len(work))])


class _LoadRun:
    """One load on one engine."""

    def __init__(self, llm: LLM, clock: LoadClock, work: Sequence[Work], schedule: Schedule) -> None:
        self._llm, self._clock, self._work, self._schedule = llm, clock, work, schedule
        self._left = deque(range(len(work)))
        self._under_way: dict[str, _Request] = {}
        self._start = clock.now()
        self.records: dict[int, RequestRecord] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}

    @property
    def is_open(self) -> bool:
        """Whether a request is pending or running."""
        return bool(self._left or self._under_way)

    def submit(self) -> None:
        """Submit the due requests, or as many as may run concurrently."""
        while self._left and self._is_next():
            index = self._left.popleft()
            now = self._now()
            due = self._schedule.due_s[index] if self._schedule.due_s else now
            ids = list(self._work[index].prompt_ids)
            job = self._llm.frontend.add(ids, greedy_params(self._work[index]), is_streamed=True)
            self._under_way[job.id] = _Request(index, due, now)

    def step(self) -> None:
        """Run an engine step and record its output, or wait for the next request if there is no work."""
        if not self._under_way:
            if self._left:
                self._clock.sleep(max(1e-6, self._schedule.due_s[self._left[0]] - self._now()))
            return
        self._llm.frontend.step()
        news, now = self._llm.frontend.news(), self._now()
        for delta in news:
            self._note(delta, now)

    def _is_next(self) -> bool:
        if self._schedule.concurrency is not None:
            return len(self._under_way) < self._schedule.concurrency
        return self._schedule.due_s[self._left[0]] <= self._now()

    def _note(self, delta: Delta, now: float) -> None:
        request = self._under_way[delta.request_id]
        request.times_s += [now] * len(delta.token_ids)
        request.tokens += delta.token_ids
        if delta.output is None:
            return
        del self._under_way[delta.request_id]
        index = request.index
        error = str(delta.stop_reason) if delta.finish_reason in ("error", "abort") else ""
        times, metrics = (request.due_s, request.sent_s, now, tuple(request.times_s)), delta.output.metrics
        caches = metrics.reused_tokens, metrics.restored_tokens
        self.records[index] = RequestRecord(*times, len(self._work[index].prompt_ids), error, *caches)
        self.tokens[index] = tuple(request.tokens)

    def _now(self) -> float:
        return self._clock.now() - self._start
