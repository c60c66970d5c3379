"""One engine on a virtual clock: the real queue, slots, pages and plans of chunks; steps are times and counts."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.llm.scheduler import Service, Waiting
from trtkit.llm.scheduler.chunks import group_chunks, plan_chunks
from trtkit.llm.scheduler.costs import StepCosts
from trtkit.simulation.caches import SimulatedCaches
from trtkit.simulation.host import Clock
from trtkit.simulation.lockstep import Lockstep
from trtkit.simulation.recorder import ReplicaState
from trtkit.simulation.times import decode_s

if TYPE_CHECKING:
    from trtkit.llm.scheduler.chunks import Chunk
    from trtkit.simulation.recorder import Recorder
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.requests import SimulatedRequest
    from trtkit.simulation.times import Line


_NOTED_STEPS = 8
"""Of many that are alike; a running mean hardly knows those before them."""


@dataclass(eq=False)
class _Run:
    """What runs now: decode steps alone, or one step with pieces of prompts. started_s: before copies."""

    started_s: float
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
        self._clock, self._costs = Clock(), StepCosts()
        self.caches = SimulatedCaches(options, self._clock, self._costs)
        self.slots = self.caches.slots
        self.decoding = Lockstep()
        self._silent: list[SimulatedRequest] = []
        self._arrived: list[tuple[SimulatedRequest, float]] = []  # since the last step began
        self.reading: dict[int, SimulatedRequest] = {}
        self.preemptions = self.prompt_tokens = 0
        self._budget = options.budget or options.max_prefill
        self._run: _Run | None = None

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self._arrived) + len(self.waiting) + len(self.decoding) + len(self.reading)

    def shared_tokens(self, request: SimulatedRequest) -> int:
        """Return how many tokens of a prompt are cached here, on the host among them."""
        return self.caches.known_tokens(request)

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
        if not self.caches.holds(request):
            self._recorder.drop(request, now_s)
            return
        self._arrived.append((request, now_s))
        request.is_unread = True
        self.prompt_tokens += request.prompt_tokens
        if self._run is None:
            self._run = _Run(now_s, now_s, now_s, 0)
        elif not self._run.groups and self._run.steps > 1:
            self._cut(self._run, now_s)

    def advance(self) -> None:
        """End what runs, and begin what is next."""
        run = self._run
        assert run is not None
        decoding = list(self.decoding.requests.values()) if self.waiting.counts else []
        reading = [self.reading[chunk.slot] for group in run.groups for chunk in group]
        idle = [each for each in self.reading.values() if each not in reading] if self.waiting.counts else []
        self._recorder.pass_time(self._state(run.steps), run.started_s, run.end_s, run.steps)
        self._note_costs(run)
        self._end_decoding(run)
        at_s, tokens = run.begin_s + run.decode_s, 0
        for group in run.groups:
            at_s += self._group_s(group)
            tokens += sum(chunk.count for chunk in group)
            self._end_group(group, at_s)
        if self.waiting.counts:
            seconds = run.end_s - run.started_s
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
        self._clock.now_s = now_s
        self._admit()
        has_freed = self._make_pages()
        if not self.decoding.requests and not self.reading:
            self._run = None
            return
        begin_s, batch = self._clock.now_s, len(self.decoding)
        lines = self.options.times.decode_lines(self.decoding.rows) if batch else ((0.0, 0.0), (0.0, 0.0))
        if self.reading:
            groups = self._groups(max(1, self._budget - batch))
            decoding_s = decode_s(lines, batch, self.decoding.cached, 1) if batch else 0.0
            end_s = begin_s + decoding_s + sum(map(self._group_s, groups))
            self._run = _Run(now_s, begin_s, end_s, 1 if batch else 0, decoding_s, groups)
            return
        steps = 1 if has_freed else self.caches.fitting(self.decoding.requests, self.decoding.steps_left)
        self._run = _Run(now_s, begin_s, math.inf, steps, lines=lines)
        if len(self.waiting):
            self._cut(self._run, self.waiting.next_alarm_s)
            if self.waiting.policy.measures:
                left_s = min(self.waiting.policy.left_s(each.turn) for each in self.decoding.requests.values())
                self._cut(self._run, now_s + left_s)
        self._set_steps(self._run, self._run.steps)

    def _groups(self, budget: int) -> list[list[Chunk]]:
        """Return the pieces of prompts that a step computes, by call."""
        in_turn = sorted(self.reading.values(), key=lambda request: request.turn.rank)
        slots = [request.slot for request in in_turn]
        return group_chunks(plan_chunks(slots, self.slots, budget, self.options.max_prefill), self.options.slot_tokens)

    def _make_pages(self) -> bool:
        """Take the pages of the next tokens; return whether requests gave way, so that others may begin next."""
        preemptions = self.preemptions
        while len(self.decoding) and not self.caches.fitting(self.decoding.requests, 1):
            self._preempt(max(self._running(), key=lambda request: request.turn.rank))
        self.caches.grow(self.decoding.requests, 1)
        return self.preemptions > preemptions

    def _admit(self) -> None:
        """Give slots and pages to waiting requests, from others on lower levels if none are free."""
        while (request := self.waiting.first()) is not None:
            if not self.slots.free and not self._preempt_for(request):
                return
            while not self.caches.has_room(request):
                if not self._preempt_for(request):
                    return
            self.waiting.begin(request)
            self._place(request)

    def _preempt_for(self, request: SimulatedRequest) -> bool:
        """Let the last request on the lowest level below another's give way; return whether there is one."""
        lower = [each for each in self._running() if each.turn.level > request.turn.level]
        lower.sort(key=lambda each: each.turn.rank, reverse=True)
        keeps_work = self.waiting.policy.keeps_work
        victim = next((each for each in lower if not keeps_work or self.caches.can_keep(each)), None)
        if victim is not None:
            self._preempt(victim)
        return victim is not None

    def _place(self, request: SimulatedRequest) -> None:
        """Let a request run, on what the caches and the host have of it."""
        began_s = self._clock.now_s
        shared, restored = self.caches.take(request)
        outputs = 1 if request.is_prompt_alone else request.output_tokens
        request.end = min(request.prompt_tokens + outputs, self.caches.longest + 1)
        self._recorder.begin(request, began_s, shared, restored)
        if shared == request.length - 1:
            self._decode(request, shared)
        else:
            self.reading[request.slot] = request

    def _preempt(self, request: SimulatedRequest) -> None:
        """Take a request's slot; the host keeps its cache if there is room for it."""
        is_reading, cached = request.slot in self.reading, int(self.slots.cached[request.slot])
        self.caches.keep(request)
        request.preemptions += 1
        self.preemptions += 1
        self._leave(request)
        if request in self._silent:
            self._silent.remove(request)
        if not is_reading:
            request.generated = cached + 1 - request.prompt_tokens
        self.waiting.put_back(request)

    def _decode(self, request: SimulatedRequest, cached: int) -> None:
        self._note_read(request)
        self.decoding.add(request, cached)
        if cached < request.length and not request.generated:
            self._silent.append(request)  # its last token is read as those of answers are

    @staticmethod
    def _note_first_token(request: SimulatedRequest, now_s: float) -> None:
        if math.isnan(request.first_token_s):
            request.first_token_s = now_s

    def _note_read(self, request: SimulatedRequest) -> None:
        self.prompt_tokens -= request.prompt_tokens * request.is_unread
        request.is_unread = False

    def _leave(self, request: SimulatedRequest) -> None:
        """Free a request's slot."""
        if self.reading.pop(request.slot, None) is None and request.slot in self.decoding.requests:
            self.decoding.remove(request)
        self.caches.leave(request)

    def _note_costs(self, run: _Run) -> None:
        """Note what the latest steps have taken, by which the engine chooses what the host keeps."""
        if self.caches.host.blocks is None:
            return
        tokens = sum(chunk.count for group in run.groups for chunk in group)
        if tokens:
            self._costs.note(run.end_s - run.begin_s, tokens, decodes=run.steps > 0)
            return
        batch, cached = len(self.decoding), self.decoding.cached
        for step in range(max(0, run.steps - _NOTED_STEPS), run.steps):
            self._costs.note(decode_s(run.lines, batch, cached + step * batch, 1), 0, decodes=True)

    def _end_decoding(self, run: _Run) -> None:
        """Let all who decode gain the run's tokens; those that are complete leave."""
        if not run.steps:
            return
        self.caches.grow(self.decoding.requests, run.steps)
        self.slots.cached[list(self.decoding.requests)] += run.steps
        if self._silent:
            first_s = run.decode_s if run.groups else decode_s(run.lines, len(self.decoding), self.decoding.cached, 1)
            for request in self._silent:
                self._note_first_token(request, run.begin_s + first_s)
            self._silent = []
        at_s = run.begin_s + run.decode_s if run.groups else run.end_s
        for request in self.decoding.advance(run.steps):
            self._leave(request)
            self._recorder.finish(request, at_s)

    def _end_group(self, group: list[Chunk], now_s: float) -> None:
        """Let prompts be read; those that are complete have their first token."""
        for chunk in group:
            request = self.reading[chunk.slot]
            self._recorder.read(request, chunk, now_s)
            self.slots.cached[chunk.slot] = cached = chunk.start + chunk.count
            if cached < request.length - 1:
                continue
            del self.reading[chunk.slot]
            self._decode(request, cached)
            if cached == request.length:
                self._note_first_token(request, now_s)
                if cached + 1 == request.end:
                    self._leave(request)
                    self._recorder.finish(request, now_s)

    def _group_s(self, group: list[Chunk]) -> float:
        """Return the seconds of a call for pieces of prompts, padded as the engine pads them."""
        tokens, length = max(chunk.count for chunk in group), max(chunk.start + chunk.count for chunk in group)
        return self.options.times.prefill_s(len(group), tokens, length)

    def _state(self, steps: int) -> ReplicaState:
        """Return what holds before decode steps; of what is reserved, the mean of before and after."""
        read = int(self.slots.cached[list(self.reading)].sum())
        unread = sum(request.length for request in self.reading.values()) - read
        counts = len(self.decoding), len(self.reading), len(self.waiting)
        reserved = self.caches.reserved_tokens + self.caches.growth(self.decoding.requests, steps) // 2
        return ReplicaState(*counts, self.decoding.cached + read, unread, reserved)

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
