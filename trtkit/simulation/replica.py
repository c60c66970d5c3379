"""One engine on a virtual clock: the real queue, slots and plans of chunks; steps are times and counts."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.runtime.generation.prefill import group_chunks, plan_chunks
from trtkit.runtime.scheduling import Service, Waiting
from trtkit.simulation.lockstep import Lockstep
from trtkit.simulation.memory import LinearMemory, PagedMemory
from trtkit.simulation.recorder import ReplicaState
from trtkit.simulation.slots import SimulatedSlots
from trtkit.simulation.times import decode_s

if TYPE_CHECKING:
    from trtkit.runtime.generation.prefill import Chunk
    from trtkit.simulation.recorder import Recorder
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.requests import SimulatedRequest
    from trtkit.simulation.times import Line


@dataclass(eq=False)
class _Run:
    """What runs now: decode steps alone, or one step with pieces of prompts."""

    begin_s: float
    end_s: float
    steps: int
    decode_s: float = 0.0
    groups: list[list[Chunk]] = field(default_factory=list)
    lines: tuple[Line, Line] = ((0.0, 0.0), (0.0, 0.0))


class Replica:
    """Requests in slots, moved on by `advance` at `event_s`."""

    def __init__(self, options: ReplicaOptions, recorder: Recorder) -> None:
        self.options, self._recorder = options, recorder
        self.waiting: Waiting[SimulatedRequest] = Waiting(options.schedule)
        self.slots = SimulatedSlots(options.slots, options.slot_tokens, options.block_tokens)
        self.memory = (
            LinearMemory(options.slot_tokens)
            if options.pages is None
            else PagedMemory(options.pages, options.page_tokens, options.block_tokens)
        )
        self.decoding = Lockstep()
        self._silent: list[SimulatedRequest] = []
        self._arrived: list[tuple[SimulatedRequest, float]] = []  # since the last step began
        self.reading: dict[int, SimulatedRequest] = {}
        self.preemptions = self.host_tokens = self.prompt_tokens = 0
        self._budget = options.budget or options.max_prefill
        self._run: _Run | None = None

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self._arrived) + len(self.waiting) + len(self.decoding) + len(self.reading)

    def shared_tokens(self, request: SimulatedRequest) -> int:
        """Return how many tokens of a prompt are cached here."""
        if self.options.pages is None and self.options.block_tokens:
            return self.slots.shared(request, self.options.min_shared_tokens)[1]
        return self.memory.shared_tokens(request)

    @property
    def work_tokens(self) -> int:
        """Tokens of the requests that decode, and of the prompts that are read or wait."""
        return self.decoding.cached + self.prompt_tokens

    @property
    def event_s(self) -> float:
        """When `advance` is due."""
        return math.inf if self._run is None else self._run.end_s

    def submit(self, request: SimulatedRequest, now_s: float) -> None:
        """Take a request; it gets its turn at the next step."""
        if not self.memory.holds(request) or request.prompt_tokens > self.options.slot_tokens:
            self._recorder.drop(request, now_s)
            return
        self._arrived.append((request, now_s))
        request.is_unread = True
        self.prompt_tokens += request.prompt_tokens
        if self._run is None:
            self._run = _Run(now_s, now_s, 0)
        elif not self._run.groups and self._run.steps > 1:
            self._cut(self._run, now_s)

    def advance(self) -> None:
        """End what runs, and begin what is next."""
        run = self._run
        assert run is not None
        decoding = list(self.decoding.requests.values()) if self.waiting.counts else []
        reading = [self.reading[chunk.slot] for group in run.groups for chunk in group]
        idle = [each for each in self.reading.values() if each not in reading] if self.waiting.counts else []
        self._recorder.pass_time(self._state(run.steps), run.begin_s, run.end_s, run.steps)
        self._end_decoding(run)
        at_s, tokens = run.begin_s + run.decode_s, 0
        for group in run.groups:
            at_s += self._group_s(group)
            tokens += sum(chunk.count for chunk in group)
            self._end_group(group, at_s)
        if self.waiting.counts:
            seconds = run.end_s - run.begin_s
            self.waiting.account(Service(decoding, reading, idle, seconds, run.end_s, tokens, run.steps))
        self._begin(run.end_s)

    def _begin(self, now_s: float) -> None:
        """Give slots, and begin a step, or many that are alike."""
        for request, arrived_s in self._arrived:
            self.waiting.add(request, arrived_s)
        self._arrived = []
        for late in self.waiting.wake(now_s):
            self._note_read(late)
            self._recorder.drop(late, now_s)
        copied_s = self._admit(now_s)
        while len(self.decoding) and not self.memory.fitting(self.decoding.tick, 1):
            copied_s += self._preempt(max(self._running(), key=lambda request: request.turn.rank))
        if not self.decoding.requests and not self.reading:
            self._run = None
            return
        begin_s, batch = now_s + copied_s, len(self.decoding)
        lines = self.options.times.decode_lines(self.decoding.rows) if batch else ((0.0, 0.0), (0.0, 0.0))
        if self.reading:
            in_turn = sorted(self.reading.values(), key=lambda request: request.turn.rank)
            budget, largest = max(1, self._budget - batch), self.options.max_prefill
            chunks = plan_chunks([request.slot for request in in_turn], self.slots, budget, largest)
            groups = group_chunks(chunks, self.options.slot_tokens)
            decoding_s = decode_s(lines, batch, self.decoding.cached, 1) if batch else 0.0
            end_s = begin_s + decoding_s + sum(map(self._group_s, groups))
            self._run = _Run(begin_s, end_s, 1 if batch else 0, decoding_s, groups)
            return
        steps = self.memory.fitting(self.decoding.tick, self.decoding.steps_left)
        self._run = _Run(begin_s, math.inf, steps, lines=lines)
        if len(self.waiting):
            self._cut(self._run, self.waiting.next_alarm_s)
            if self.waiting.policy.measures:
                left_s = min(self.waiting.policy.left_s(each.turn) for each in self.decoding.requests.values())
                self._cut(self._run, begin_s + left_s)
        self._set_steps(self._run, self._run.steps)

    def _admit(self, now_s: float) -> float:
        """Give slots to waiting requests, from others on lower levels if none is free; return seconds of copies."""
        copied_s = 0.0
        while (request := self.waiting.first()) is not None:
            if not (self.slots.free and self.memory.has_room(request)):
                victims = self._giving_way(request)
                if not victims:
                    break
                copied_s += sum(map(self._preempt, victims))
            self.waiting.begin(request)
            copied_s += self._place(request, now_s)
        return copied_s

    def _giving_way(self, request: SimulatedRequest) -> list[SimulatedRequest]:
        """Return who gives way to a request, the last on the lowest level first; empty if that does not suffice."""
        lower = [each for each in self._running() if each.turn.level > request.turn.level]
        lower.sort(key=lambda each: each.turn.rank, reverse=True)
        room = self.options.host_tokens - self.host_tokens if self.waiting.policy.keeps_work else math.inf
        pages, chosen = 0, []
        for each in lower:
            cached = self._cached_of(each)
            if cached > room:
                continue
            room -= cached
            pages += self.memory.pages_of(each)
            chosen.append(each)
            if self.memory.has_room(request, pages):
                return chosen
        return []

    def _place(self, request: SimulatedRequest, now_s: float) -> float:
        """Let a request run; return the seconds of copying what the host kept of it."""
        options, shared = self.options, self.memory.shared_tokens(request)
        source = 0
        if options.pages is None and options.block_tokens:
            source, shared = self.slots.shared(request, options.min_shared_tokens)
        restored = min(request.saved, request.length - 1)
        cached = max(shared, restored)
        self.host_tokens -= request.on_host
        request.saved = request.on_host = 0
        self.memory.take(request, cached)
        request.slot = self.slots.place(request, source, shared if cached == shared else 0, cached)
        outputs = 1 if request.is_prompt_alone else request.output_tokens
        request.end = min(request.prompt_tokens + outputs, options.slot_tokens + 1)
        self._recorder.begin(request, now_s, shared)
        if cached == request.length - 1:
            self._decode(request, cached)
        else:
            self.reading[request.slot] = request
        return restored * options.times.copy_s_per_token if cached > shared else 0.0

    def _preempt(self, request: SimulatedRequest) -> float:
        """Take a request's slot; return the seconds of copying its cache to the host, if there is room for it."""
        is_reading, cached = request.slot in self.reading, self._cached_of(request)
        self._leave(request, cached)
        if request in self._silent:
            self._silent.remove(request)
        if not is_reading:
            request.generated = cached + 1 - request.prompt_tokens
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.put_back(request)
        if self.host_tokens + cached > self.options.host_tokens:
            return 0.0
        request.saved = request.on_host = cached
        self.host_tokens += cached
        return cached * self.options.times.copy_s_per_token

    def _cached_of(self, request: SimulatedRequest) -> int:
        if request.slot in self.reading:
            return int(self.slots.cached[request.slot])
        return self.decoding.cached_of(request)

    def _decode(self, request: SimulatedRequest, cached: int) -> None:
        self._note_read(request)
        self.decoding.add(request, cached)
        self.memory.begin(request, cached, self.decoding.tick)
        if cached < request.length and not request.generated:
            self._silent.append(request)  # its last token is read as those of answers are

    @staticmethod
    def _note_first_token(request: SimulatedRequest, now_s: float) -> None:
        if math.isnan(request.first_token_s):
            request.first_token_s = now_s

    def _note_read(self, request: SimulatedRequest) -> None:
        self.prompt_tokens -= request.prompt_tokens * request.is_unread
        request.is_unread = False

    def _leave(self, request: SimulatedRequest, cached: int) -> None:
        """Free a request's slot, of which `cached` tokens stay."""
        if self.reading.pop(request.slot, None) is None and request.slot in self.decoding.requests:
            self.decoding.remove(request)
            self.memory.end(request, cached, self.decoding.tick)
        self.memory.release(request)
        self.slots.vacate(request, cached)

    def _end_decoding(self, run: _Run) -> None:
        """Let all who decode gain the run's tokens; those that are complete leave."""
        if not run.steps:
            return
        self.memory.grow(self.decoding.tick, run.steps)
        if self._silent:
            first_s = run.decode_s if run.groups else decode_s(run.lines, len(self.decoding), self.decoding.cached, 1)
            for request in self._silent:
                self._note_first_token(request, run.begin_s + first_s)
            self._silent = []
        at_s = run.begin_s + run.decode_s if run.groups else run.end_s
        for request in self.decoding.advance(run.steps):
            self._leave(request, request.end - 1)
            self._recorder.finish(request, at_s)

    def _end_group(self, group: list[Chunk], now_s: float) -> None:
        """Let prompts be read; those that are complete have their first token."""
        for chunk in group:
            request = self.reading[chunk.slot]
            self._recorder.read(request, chunk, now_s)
            self.slots.cached[chunk.slot] = cached = chunk.start + chunk.count
            if cached < request.length - 1:
                continue
            self.memory.keep_prompt(request)
            del self.reading[chunk.slot]
            self._decode(request, cached)
            if cached == request.length:
                self._note_first_token(request, now_s)
                if cached + 1 == request.end:
                    self._leave(request, cached)
                    self._recorder.finish(request, now_s)

    def _group_s(self, group: list[Chunk]) -> float:
        """Return the seconds of a call for pieces of prompts, padded as the engine pads them."""
        tokens, length = max(chunk.count for chunk in group), max(chunk.start + chunk.count for chunk in group)
        return self.options.times.prefill_s(len(group), tokens, length)

    def _state(self, steps: int) -> ReplicaState:
        """Return what holds before decode steps; of what is reserved, the mean of before and after."""
        cached = self.decoding.cached + (int(self.slots.cached[list(self.reading)].sum()) if self.reading else 0)
        counts = len(self.decoding), len(self.reading), len(self.waiting)
        reserved = self.memory.reserved_tokens + self.memory.growth(self.decoding.tick, steps) // 2
        return ReplicaState(*counts, cached, reserved)

    def _running(self) -> list[SimulatedRequest]:
        return [*self.decoding.requests.values(), *self.reading.values()]

    def _cut(self, run: _Run, until_s: float) -> None:
        """Let no decode step of a run begin at `until_s` or later, but the first."""
        batch, cached = len(self.decoding), self.decoding.cached
        within_s = until_s - run.begin_s
        if decode_s(run.lines, batch, cached, run.steps) < within_s:
            return
        steps = bisect_left(range(run.steps), within_s, key=lambda step: decode_s(run.lines, batch, cached, step))
        self._set_steps(run, max(1, steps))

    def _set_steps(self, run: _Run, steps: int) -> None:
        run.steps = steps
        run.end_s = run.begin_s + decode_s(run.lines, len(self.decoding), self.decoding.cached, steps)
