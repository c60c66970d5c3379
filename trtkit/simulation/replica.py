"""One engine on a virtual clock: the real scheduler, with steps that only take time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from trtkit.llm.cache import PageTables
from trtkit.llm.cache.transfers import AwaitBlocks, DropSequence, LoadBlocks, LoadSequence, SaveBlocks
from trtkit.llm.scheduler.batch import Batch, PrefixMatched, SlotLeft, SlotMoved, SlotTaken, idle_tokens, rows_between
from trtkit.llm.scheduler.options import SchedulerOptions
from trtkit.llm.scheduler.scheduler import Scheduler
from trtkit.llm.sequences import ONE
from trtkit.simulation.record import Passed
from trtkit.simulation.times import decode_s, step_s, steps_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.cache.host import BlockTier
    from trtkit.llm.cache.host.tier import HostTier
    from trtkit.llm.execution.saved import SavedSequence
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.llm.sequences import Ints
    from trtkit.simulation.record import Recorder
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.requests import SimulatedRequest
    from trtkit.simulation.times import Line, PackedTimes


@dataclass
class Clock:
    """An engine's clock, in seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class _Form(NamedTuple):
    size_bytes: int


class _Data(NamedTuple):
    nbytes: int


class _Saved(NamedTuple):
    data: _Data
    tokens: int

    def first(self, tokens: int) -> _Saved:
        return _Saved(_Data(self.data.nbytes // self.tokens * tokens), tokens)


class SimulatedCache:
    """A CacheLayout without recurrent states: page tables, and the time that copies take.

    Copies within a device take no time; those to and from the host, and from other replicas, do. Background copies run
    one after the other while steps go on, unless a step needs what is being loaded, or more is saved than the device
    can stage.
    """

    has_states = has_slot_memory = False
    block_multiple = 1
    positions: Ints

    def __init__(self, options: ReplicaOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self.pages: PageTables | None = None
        if options.pages is not None:
            self.pages = PageTables(options.slots, options.pages + 1, options.page_tokens, options.slot_tokens)
        self._copied_s = 0.0  # when the last background copy ends
        self._arrivals: dict[int, float] = {}

    def form(self, tokens: int) -> _Form:
        """Return the size of a sequence's cache."""
        return _Form(tokens * self._options.token_bytes)

    def saved(self, tokens: int) -> SavedSequence:
        """Return the first tokens of a sequence as another replica sends them."""
        return cast("SavedSequence", _Saved(_Data(tokens * self._options.token_bytes), tokens))

    def run(self, batch: Batch, host: HostTier) -> None:
        """Advance the clock by a batch's copies between host and device, and record the durations of saves."""
        for transfer in batch.transfers:
            match transfer:
                case SaveBlocks() | LoadBlocks() if host.blocks is not None:
                    self._copy(transfer, host.blocks, host.link.staged_bytes)
                case AwaitBlocks(number):
                    self._clock.now_s = max(self._clock.now_s, self._arrivals[number])
                    self._arrivals = {later: due_s for later, due_s in self._arrivals.items() if later > number}
                case LoadSequence(tokens=tokens):
                    self._clock.now_s += tokens * self._options.times.copy_s_per_token
                case DropSequence(number):
                    del host.saved.data[number]
                case _:
                    pass

    def _copy(self, transfer: SaveBlocks | LoadBlocks, blocks: BlockTier, staged_bytes: int) -> None:
        """Copy blocks to or from the host."""
        count, clock = len(transfer.places), self._clock
        seconds = count * (blocks.tokens * self._options.times.copy_s_per_token)
        if isinstance(transfer, SaveBlocks):
            blocks.rate.note(seconds, count * blocks.size_bytes)
        if not self._options.copies_in_background:
            clock.now_s += seconds
            return
        self._copied_s = max(clock.now_s, self._copied_s) + seconds
        if isinstance(transfer, LoadBlocks):
            self._arrivals[transfer.number] = self._copied_s
        else:
            staged_s = staged_bytes / blocks.size_bytes * blocks.tokens * self._options.times.copy_s_per_token
            clock.now_s = max(clock.now_s, self._copied_s - staged_s)


_ANY = 1 << 60
_NOTED_STEPS = 8
"""Number of equal steps whose costs are recorded; a running mean hardly depends on earlier ones."""
_NO_SLOTS: Ints = np.zeros(0, np.int64)


@dataclass(eq=False, slots=True)
class _Run:
    """A running batch; pure decode steps are repeated many times.

    started_s: before copies. waiting: requests without a slot. lengths, lefts: [R], the decoding slots' tokens before
    the run, and those still to be generated. cached: tokens of all of them. left: steps until the first request is
    complete. decode_s: duration of decoding. groups_s: durations of prompt calls.
    """

    batch: Batch
    started_s: float
    begin_s: float
    lengths: Ints
    lefts: Ints
    waiting: int = 0
    steps: int = 0
    cached: int = 0
    left: int = 0
    lines: tuple[Line, Line] = ((0.0, 0.0), (0.0, 0.0))
    decode_s: float = 0.0
    groups_s: Sequence[float] = ()


class Replica:
    """Requests in slots, advanced by `advance`. event_s: time of the next event; infinite if nothing runs."""

    def __init__(self, options: ReplicaOptions, recorder: Recorder) -> None:
        self.options, self._recorder, self._clock = options, recorder, Clock()
        self._cache = SimulatedCache(options, self._clock)
        shared = SchedulerOptions(
            options.slots,
            options.slot_tokens,
            options.max_prefill,
            token_budget=options.budget,
            schedule=options.schedule,
            min_shared_tokens=options.min_shared_tokens,
            most_imported_bytes=_ANY,
            host_cache_bytes=options.host_tokens * options.token_bytes,
            host_block_tokens=options.host_block_tokens,
            is_packed=options.is_packed,
            token_tile=options.token_tile,
            copies_in_background=options.copies_in_background,
            shares_prefixes=options.block_tokens > 0,
            in_blocks=options.in_blocks,
        )
        self.scheduler: Scheduler[SimulatedRequest] = Scheduler(self._cache, shared, self._clock)
        running, self._slots, self._host = self.scheduler.running, self.scheduler.slots, self.scheduler.memory.host
        self._requests, self._ends, self._lengths = running.requests, running.ends, self._slots.sequences.lengths
        self._arrived: list[SimulatedRequest] = []  # since the last step began
        self._unread: set[int] = set()  # slots whose prompt is not complete
        self._silent: list[SimulatedRequest] = []  # whose last prompt token is read like an answer's token
        self._unread_tokens = 0
        self._run: _Run | None = None
        self.event_s = math.inf

    @property
    def load(self) -> int:
        """Number of waiting and running requests."""
        return len(self._arrived) + len(self.scheduler.queue) + len(self._requests)

    @property
    def work_tokens(self) -> int:
        """Tokens of decoding requests, and of prompts that are being read or wait."""
        return (0 if self._run is None else self._run.cached) + self._unread_tokens

    def shared_tokens(self, request: SimulatedRequest) -> int:
        """Return how many tokens of a prompt are cached here, host memory included."""
        return self.scheduler.memory.prefixes.tokens_of(request.known_ids())

    def submit(self, request: SimulatedRequest, now_s: float) -> None:
        """Submit a request; the next step considers it."""
        memory = self.scheduler.memory
        most = memory.longest(request) - (0 if memory.pages is None else 1)  # an answer needs a position, too
        if request.prompt_tokens > min(self.options.slot_tokens, most):
            self._recorder.drop(request, now_s)
            return
        request.metrics.arrived_s = now_s
        self._arrived.append(request)
        self._unread_tokens += request.prompt_tokens
        if self._run is None:
            self._run, self.event_s = _Run(Batch(_NO_SLOTS), now_s, now_s, _NO_SLOTS, _NO_SLOTS), now_s
        elif not self._run.batch.prefill and self._run.steps > 1:
            self._cut(self._run, now_s)

    def advance(self) -> None:
        """End the current run and start the next."""
        run, end_s = self._run, self.event_s
        assert run is not None
        self._recorder.pass_time(self._passed(run, end_s))
        prefill = run.batch.prefill
        self._clock.now_s = run.begin_s + run.decode_s if prefill else end_s
        if run.steps:
            self._end_decoding(run)
        if prefill:
            for group, seconds in zip(prefill, run.groups_s, strict=True):
                self._clock.now_s += seconds
                self._end_group(group)
            self._clock.now_s = end_s
        if run.steps > 1 and self._host.blocks is not None:
            self._note_costs(run)
        copied_s = run.begin_s - run.started_s
        for ended in self.scheduler.end_step(run.batch, run.started_s, copied_s, run.steps or 1):
            self._end(ended.request, ended.request.metrics.finished_s or end_s, is_late=ended.reason == "error")
        self._begin(end_s)

    def _begin(self, now_s: float) -> None:
        """Start a step, or many equal ones."""
        if self._arrived:
            self._submit_arrived()
        self._clock.now_s = now_s
        batch = self.scheduler.schedule(now_s)
        if batch.transfers:
            self._cache.run(batch, self._host)
        if self.scheduler.changes or self._unread:
            self._apply_changes(batch, now_s)
        decode = batch.decode
        if not decode.size and not batch.prefill:
            for ended in self.scheduler.end_step(batch, now_s):
                self._end(ended.request, now_s, is_late=True)
            self._run, self.event_s = None, math.inf
            return
        queue, lengths, rows = self.scheduler.queue, self._lengths[decode], 0
        lefts = self._ends[decode] - lengths
        run = self._run = _Run(batch, now_s, self._clock.now_s, lengths, lefts, len(queue))
        if decode.size:
            rows = rows_between(decode)  # with idle rows between decoding ones
            run.steps, run.left = 1, lefts.item(lefts.argmin())
            run.cached = sum(lengths.tolist()) - decode.size  # all but the last token of each sequence
            run.lines = self._lines(lengths, rows, run.cached)
        if batch.prefill:
            self._time_prompts(run, rows)
            return
        run.steps = self._steps_alike(run)
        run.decode_s = decode_s(run.lines, decode.size, run.cached, run.steps)
        self.event_s = run.begin_s + run.decode_s
        if self.options.copies_in_background:
            self._cut_for_copies(run)
        if run.waiting:
            self._cut(run, queue.next_alarm_s)
            if queue.policy.measures:
                requests = self._requests
                self._cut(run, now_s + min(queue.policy.left_s(requests[slot].standing) for slot in decode.tolist()))

    def _submit_arrived(self) -> None:
        """Give the scheduler the requests that have arrived."""
        for request in self._arrived:
            if request.imported:
                ids = request.ids[: request.imported]
                self.scheduler.memory.host.imports.put(ids, self._cache.saved(request.imported))
                request.imported = 0
            self.scheduler.submit(request)
        self._arrived = []

    def _time_prompts(self, run: _Run, rows: int) -> None:
        """Compute the end of a step that decodes `rows`, idle ones included, and reads prompts."""
        batch = run.batch
        if self.options.is_packed:
            first, *others = batch.prefill
            run.decode_s = self._mixed_s(rows, self._read(run.lengths, rows, run.cached), first)
            run.groups_s = [0.0, *(self._mixed_s(0, 0, group) for group in others)]
        else:
            run.decode_s = step_s(run.lines, run.cached)
            run.groups_s = [self._group_s(group) for group in batch.prefill]
        self.event_s = run.begin_s + run.decode_s + sum(run.groups_s)

    def _lines(self, lengths: Ints, rows: int, cached: int) -> tuple[Line, Line]:
        """Return the lines of a decode step of `rows`, idle ones included; they are level if it reads windows.

        lengths: [R], of the sequences, with their new tokens. cached: tokens of all of them.
        """
        times, windows = self.options.times, self.options.windows
        if windows is None:
            return times.decode_lines(rows, cached)
        calls = windows.calls(lengths)
        if len(calls) == 1:  # idle rows between decoding ones read as many
            calls = [(rows, calls[0][1])]
        seconds = 0.0
        for count, window in calls:
            read = count * (window - 1)
            seconds += step_s(times.decode_lines(count, read), read)
        return (seconds, 0.0), (seconds, 0.0)

    def _read(self, lengths: Ints, rows: int, cached: int) -> int:
        """Return how many cached tokens `rows` read next to prompts; all rows share one window."""
        windows = self.options.windows
        return cached if windows is None or not rows else rows * (windows.of(int(lengths.max())) - 1)

    def _apply_changes(self, batch: Batch, now_s: float) -> None:
        """Record the requests that got slots, and their known answers. Some may have been preempted again."""
        for change in self.scheduler.changes:
            if isinstance(change, SlotLeft):
                self._unread.discard(change.slot)
            elif isinstance(change, SlotTaken):
                self._write_answer(change.slot, change.request)
                self._recorder.begin(change.request, now_s, change.reused, change.restored)
                self._unread.add(change.slot)
            elif isinstance(change, SlotMoved):
                if change.source in self._unread:
                    self._unread.remove(change.source)
                    self._unread.add(change.target)
                if change.target in self._requests:  # otherwise it was preempted after the move
                    self._write_answer(change.target, self._requests[change.target])
            elif isinstance(change, PrefixMatched):
                self._recorder.match(self._requests[change.slot], change.reused)
        self.scheduler.changes.clear()
        for slot in self._unread.intersection(batch.decode.tolist()) if self._unread else ():
            self._unread.remove(slot)
            request = self._requests[slot]
            self._note_read(request)
            self._silent.append(request)

    def _write_answer(self, slot: int, request: SimulatedRequest) -> None:
        """Write the answer that a request will generate into its slot."""
        tokens, length = self._slots.sequences.tokens[slot], int(self._lengths[slot])
        answer = request.ids[length : len(tokens)]
        tokens[length : length + len(answer)] = answer

    def _end_decoding(self, run: _Run) -> None:
        """Append the run's tokens to all decoding sequences; end complete ones."""
        slots, steps = run.batch.decode, run.steps
        if steps > 1 and self._cache.pages is not None:  # pages for the first step are reserved already
            self.scheduler.memory.reserve(slots, np.full(len(slots), steps))
        lengths = run.lengths + steps
        self._lengths[slots], self._slots.cached[slots] = lengths, lengths - ONE
        if self._silent:
            first_s = run.decode_s if run.batch.prefill else step_s(run.lines, run.cached)
            for request in self._silent:
                self._note_first_token(request, run.begin_s + first_s)
            self._silent = []
        if steps >= run.left:
            for slot in slots[run.lefts <= steps].tolist():
                self.scheduler.finish(slot, "length")

    def _end_group(self, group: Sequence[Chunk]) -> None:
        """Read the chunks of a call; completed prompts get their first token."""
        for chunk in group:
            request = self._requests[chunk.slot]
            self._recorder.read(request, chunk, self._clock.now_s)
            if self.scheduler.read(chunk):
                self._unread.discard(chunk.slot)
                self._note_read(request)
                self._note_first_token(request, self._clock.now_s)
                self._lengths[chunk.slot] += 1
                if self._lengths[chunk.slot] >= self._ends[chunk.slot]:
                    self.scheduler.finish(chunk.slot, "length")

    def _end(self, request: SimulatedRequest, now_s: float, *, is_late: bool) -> None:
        """Record a request that is complete, or whose deadline passed in the queue."""
        self._note_read(request)
        if is_late:
            self._recorder.drop(request, now_s)
        else:
            self._recorder.finish(request, now_s)

    @staticmethod
    def _note_first_token(request: SimulatedRequest, now_s: float) -> None:
        if math.isnan(request.first_token_s):
            request.first_token_s = now_s

    def _note_read(self, request: SimulatedRequest) -> None:
        self._unread_tokens -= request.prompt_tokens * request.is_unread
        request.is_unread = False

    def _group_s(self, group: Sequence[Chunk]) -> float:
        """Return the seconds of a prompt call, padded as the engine pads it."""
        tokens, length = max(chunk.count for chunk in group), max(chunk.start + chunk.count for chunk in group)
        windows = self.options.windows
        return self.options.times.prefill_s(len(group), tokens, length if windows is None else windows.of(length))

    def _mixed_s(self, rows: int, cached: int, group: Sequence[Chunk]) -> float:
        """Return the seconds of a packed call in which `rows` decode."""
        pieces = [(chunk.count, chunk.start + chunk.count) for chunk in group]
        if self.options.windows is not None:
            longest = self.options.windows.of(max(length for _, length in pieces))
            pieces = [(new, longest) for new, _ in pieces]
        idle = idle_tokens(rows, sum(chunk.count for chunk in group), self.options.token_tile)
        return cast("PackedTimes", self.options.times).mixed_s(rows, cached, pieces, idle)

    def _note_costs(self, run: _Run) -> None:
        """Record the costs of the latest steps, by which the scheduler chooses what the host keeps."""
        rows, noted = run.batch.decode.size, min(run.steps, _NOTED_STEPS)
        last = run.cached + (run.steps - 1) * rows
        first_s, last_s = step_s(run.lines, last - (noted - 1) * rows), step_s(run.lines, last)
        self.scheduler.costs.note_decoding(first_s, last_s, noted)

    def _passed(self, run: _Run, end_s: float) -> Passed:
        """Return the state since a run's steps began; reserved tokens are the mean of before and after."""
        decode, cached, pages = run.batch.decode, self._slots.cached, self._cache.pages
        running, read, unread = len(self._requests), 0, 0
        for slot in self._unread:
            read += int(cached[slot])
            unread += int(self._lengths[slot] - cached[slot])
        reserved = running * self.options.slot_tokens
        if pages is not None:
            starts = cached[decode]
            more = pages.needed(decode, starts, starts + run.steps) if run.steps else 0
            reserved = (2 * int(np.add.reduce(pages.counts)) + more) * pages.page_tokens // 2
        rows, held = decode.size, run.cached + read
        return Passed(rows, running - rows, run.waiting, held, unread, reserved, run.started_s, end_s, run.steps)

    def _steps_alike(self, run: _Run) -> int:
        """Return how many decode steps need no more pages than are free, and fill no blocks that would be saved.

        One if requests run in blocks: each pass of stages in turn has its own time.
        """
        steps, decode = 1 if run.batch.preempted or self.options.in_blocks else run.left, run.batch.decode
        if self.options.windows is not None:
            steps = min(steps, self.options.windows.steps_alike(run.lengths))
        if self._cache.pages is not None:
            steps = max(1, self.scheduler.memory.steps_that_fit(decode, steps))
        return min(steps, self._host.next_save(decode)[1]) if self.options.copies_in_background else steps

    def _cut_for_copies(self, run: _Run) -> None:
        """End a run once a slot's awaited blocks have arrived or the idle link has work; the first step always runs."""
        for until_s in (self.scheduler.memory.prefixes.next_arrival_s, self._host.next_save(run.batch.decode)[0]):
            if until_s < math.inf:
                self._cut(run, until_s)

    def _cut(self, run: _Run, until_s: float) -> None:
        """End a run before its first step that would begin at `until_s` or later; the first step always runs."""
        within_s = until_s - run.begin_s
        if run.decode_s >= within_s:
            most = run.steps, run.decode_s
            run.steps, run.decode_s = steps_before(within_s, run.lines, run.batch.decode.size, run.cached, most)
            self.event_s = run.begin_s + run.decode_s
