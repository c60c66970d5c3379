"""The scheduler alone, without a network: its batches keep every budget, and every request comes to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.errors import RequestError
from trtkit.llm.cache.transfers import AwaitBlocks, CopyPages, CopyTokens, LoadBlocks, SaveBlocks
from trtkit.llm.scheduler import ScheduleOptions, SchedulingParams
from trtkit.llm.scheduler.batch import Batch, SlotTaken, rows_between
from trtkit.llm.scheduler.options import SchedulerOptions
from trtkit.llm.scheduler.scheduler import Scheduler
from trtkit.simulation.replica import Clock, SimulatedCache
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import SimulatedRequest
from trtkit.simulation.times import MeasuredTimes

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH, PAGE, BLOCK = 64, 4, 8
SCHEDULES = (
    ScheduleOptions("fcfs"),
    ScheduleOptions("priority"),
    ScheduleOptions("mlfq", quantum_s=3.0, levels=3, starvation_s=40.0),
    ScheduleOptions("fcfs", {"a": 3.0}),
)


@dataclass(frozen=True)
class Case:
    """A machine, and requests by the step in which they come: prompt, answer, shared block, priority and user.

    tile: of packed calls; None if decoding and prompts have a call each. copy_s: of a token to the host and back, while
    steps go on; None if they wait.
    """

    slots: int
    pages: int | None
    budget: int
    schedule: ScheduleOptions
    host_tokens: int
    requests: tuple[tuple[int, int, int, int, int, str], ...]
    tile: int | None = None
    copy_s: float | None = None


requests = st.tuples(
    st.integers(0, 12),
    st.integers(1, 40),
    st.integers(1, 20),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from("ab"),
)
cases = st.builds(
    Case,
    st.integers(1, 5),
    st.sampled_from([None, 16, 40]),
    st.sampled_from([1, 5, 16, 25]),
    st.sampled_from(SCHEDULES),
    st.sampled_from([0, 30, 1000]),
    st.lists(requests, min_size=1, max_size=12).map(tuple),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, 0.0, 0.01, 0.2]),
)


class Machine:
    """Carries batches out at once, a second each: tokens are those that requests are known to have."""

    def __init__(self, case: Case) -> None:
        self.case, self.clock, self.ended, self.step = case, Clock(), list[str](), 0
        self.waited_s = 0.0  # in the last step, for copies
        times, in_background = MeasuredTimes(1.0, copy_token_s=case.copy_s or 0.0), case.copy_s is not None
        options = ReplicaOptions(times, case.slots, LENGTH, 16, pages=case.pages, page_tokens=PAGE, token_bytes=1)
        options = replace(options, copies_in_background=in_background)
        self.cache = SimulatedCache(options, self.clock)
        shared = SchedulerOptions(
            case.slots,
            LENGTH,
            16,
            token_budget=case.budget,
            schedule=case.schedule,
            min_shared_tokens=1,
            host_cache_bytes=case.host_tokens,
            host_block_tokens=PAGE,
            is_packed=case.tile is not None,
            token_tile=case.tile or 1,
            copies_in_background=in_background,
        )
        self.scheduler: Scheduler[SimulatedRequest] = Scheduler(self.cache, shared, self.clock)

    def arrive(self) -> None:
        """Submit the requests of this step."""
        for number, (step, prompt, answer, block, priority, user) in enumerate(self.case.requests):
            if step == self.step:
                scheduling = SchedulingParams(priority, user)
                request = SimulatedRequest(number, 0.0, prompt, answer, (block,), scheduling, BLOCK)
                request.metrics.arrived_s = self.clock.now_s
                self.scheduler.submit(request)

    def run(self) -> Iterator[Batch]:
        """Yield each batch before it is carried out."""
        scheduler, sequences = self.scheduler, self.scheduler.slots.sequences
        while self.step <= 12 or scheduler.has_work:
            self.arrive()
            started_s = self.clock.now_s
            batch = scheduler.schedule(started_s)
            for change in scheduler.changes:
                if isinstance(change, SlotTaken) and change.slot in scheduler.running.requests:
                    ids = change.request.ids[: sequences.tokens.shape[1]]
                    sequences.tokens[change.slot, : len(ids)] = ids
            scheduler.changes.clear()
            yield batch
            self._carry_out(batch)
            self.clock.now_s += 1.0
            self.ended += [ended.request.id for ended in scheduler.end_step(batch, started_s)]
            self.step += 1

    def _carry_out(self, batch: Batch) -> None:
        slots, lengths = self.scheduler.slots, self.scheduler.slots.sequences.lengths
        before_s = self.clock.now_s
        self.cache.run(batch, self.scheduler.memory.host)
        self.waited_s = self.clock.now_s - before_s
        slots.cached[batch.decode] += 1
        complete = [chunk.slot for group in batch.prefill for chunk in group if self.scheduler.read(chunk)]
        for slot in [*batch.decode.tolist(), *complete]:
            lengths[slot] += 1
            if lengths[slot] >= self.scheduler.running.ends[slot]:
                self.scheduler.finish(slot, "length")


class Contents:
    """Memory whose every place holds a token's id, so that what batches do can be followed without a network."""

    def __init__(self, machine: Machine) -> None:
        self.scheduler, case = machine.scheduler, machine.case
        self.table = np.zeros((case.slots, -(-LENGTH // PAGE)), np.int32)
        shape = (case.slots, LENGTH // PAGE, PAGE) if case.pages is None else (case.pages + 1, PAGE)
        self.cache = np.full(shape, -1, np.int64)
        self.host = np.full((case.host_tokens // PAGE, PAGE), -1, np.int64)
        self.loads: dict[int, tuple[list[int], np.ndarray[Any, Any]]] = {}

    def run(self, batch: Batch) -> None:
        """Do what a batch says, and write the tokens that its rows read."""
        blocks = self.cache.reshape(-1, PAGE)
        for transfer in batch.transfers:
            match transfer:
                case CopyTokens(source, target, start, stop):
                    tokens = self.cache.reshape(-1, LENGTH)
                    tokens[target, start:stop] = tokens[source, start:stop]
                case CopyPages(sources, targets):
                    blocks[list(targets)] = blocks[list(sources)]
                case SaveBlocks(places, rows):
                    self.host[list(rows)] = blocks[list(places)]
                case LoadBlocks(rows, places, number):
                    self.loads[number] = list(places), self.host[list(rows)]
                    blocks[list(places)] = -1  # until it is awaited
                    if not number:
                        self._land(number)
                case AwaitBlocks(number):
                    for earlier in [each for each in self.loads if each <= number]:
                        self._land(earlier)
                case _:
                    raise AssertionError(transfer)
        for slot, place, page in batch.pages:
            self.table[slot, place] = page
        chunks = [(chunk.slot, chunk.start, chunk.count) for group in batch.prefill for chunk in group]
        decoding = [(slot, int(self.scheduler.slots.cached[slot]), 1) for slot in batch.decode.tolist()]
        for slot, start, count in chunks + decoding:
            for place in range(start, start + count):
                token = self.scheduler.slots.sequences.tokens[slot, place]
                self.pages_of(slot)[place // PAGE][place % PAGE] = token

    def _land(self, number: int) -> None:
        places, loaded = self.loads.pop(number)
        self.cache.reshape(-1, PAGE)[places] = loaded

    def pages_of(self, slot: int) -> list[np.ndarray[Any, Any]]:
        """Return views of where a slot's tokens are."""
        return list(self.cache[slot]) if self.cache.ndim == 3 else [self.cache[page] for page in self.table[slot]]

    def cached(self, slot: int) -> list[int]:
        """Return the tokens that a slot is supposed to have cached."""
        return np.concatenate(self.pages_of(slot))[: self.scheduler.slots.cached[slot]].tolist()


def check_pages(scheduler: Scheduler[SimulatedRequest]) -> None:
    """Every page is free, unused, or in as many tables as it has references; none is in two otherwise."""
    pages, prefetches = scheduler.memory.pages, scheduler.memory.prefixes.prefetches
    if pages is None:
        return
    ahead = [] if prefetches is None else prefetches.held()
    held = np.concatenate([np.array(ahead, np.int64), *(pages.pages_of(slot) for slot in range(len(pages.counts)))])
    counts = np.bincount(held.astype(np.int64), minlength=pages.pages)
    np.testing.assert_array_equal(counts[1:], pages.references[1:])
    assert pages.free + int((pages.references[1:] > 0).sum()) == pages.pages - 1


def check_tile(tile: int, rows: int, count: int) -> None:
    """A prompt that goes on fills whole tiles of a large call, unless fewer of its tokens would be read per tile."""
    tiles, excess = divmod(max(rows, 1) + count, tile)
    assert not excess or tiles < 4 or (count - excess) / tiles < count / (tiles + 1)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_batches_keep_the_budget_and_every_request_ends_once(case: Case) -> None:
    machine = Machine(case)
    for batch in machine.run():
        scheduler, slots = machine.scheduler, machine.scheduler.slots
        chunks = [chunk for group in batch.prefill for chunk in group]
        assert len(batch.decode) <= case.slots
        assert batch.prompt_tokens <= max(1, case.budget - len(batch.decode))
        busy = [*batch.decode.tolist(), *(chunk.slot for chunk in chunks)]
        assert len(set(busy)) == len(busy)
        assert set(busy) <= set(scheduler.running.requests)
        for chunk in chunks:
            assert 0 < chunk.count <= 16
            assert chunk.start == slots.cached[chunk.slot]
            assert chunk.start + chunk.count <= slots.sequences.lengths[chunk.slot]
        for number, group in enumerate(batch.prefill):
            numbers = [chunk.slot for chunk in group]
            is_in_place = numbers == list(range(numbers[0], numbers[0] + len(group)))
            assert is_in_place or (case.tile is not None and case.pages is not None)
            ends = [chunk.start + chunk.count == slots.sequences.lengths[chunk.slot] for chunk in group]
            if case.tile is not None and ends == [False]:
                check_tile(case.tile, 0 if number else rows_between(batch.decode), group[0].count)
        assert busy or not scheduler.running.requests
        check_pages(scheduler)
        assert machine.step < 2000, "somebody starves"
    assert sorted(machine.ended, key=int) == [str(number) for number in range(len(case.requests))]
    assert machine.scheduler.slots.free == case.slots
    assert not machine.scheduler.memory.host.retained_bytes


@settings(max_examples=50, deadline=None)
@given(cases)
def test_the_same_requests_make_the_same_batches(case: Case) -> None:
    first, second = (list(Machine(case).run()) for _ in range(2))
    assert first == second


@settings(max_examples=150, deadline=None)
@given(cases)
def test_what_batches_do_in_order_leaves_every_sequence_in_its_place(case: Case) -> None:
    """Copies and loads come before the rows that read them, and what is overwritten was saved before."""
    machine = Machine(case)
    contents, slots = Contents(machine), machine.scheduler.slots
    for batch in machine.run():
        contents.run(batch)
        decoding, reading = batch.decode.tolist(), [chunk for group in batch.prefill for chunk in group]
        idle = set(machine.scheduler.running.requests) - set(decoding) - {chunk.slot for chunk in reading}
        for slot in idle - set(machine.scheduler.memory.prefixes.is_loading.nonzero()[0].tolist()):
            assert contents.cached(slot) == slots.sequences.tokens[slot, : slots.cached[slot]].tolist()
        for slot, length in [(slot, slots.cached[slot] + 1) for slot in decoding] + [
            (chunk.slot, chunk.start + chunk.count) for chunk in reading
        ]:
            held = np.concatenate(contents.pages_of(slot))[:length].tolist()
            assert held == slots.sequences.tokens[slot, :length].tolist()


@settings(max_examples=50, deadline=None)
@given(cases)
def test_stored_batches_are_the_same_and_give_the_same_page_tables(case: Case) -> None:
    machine, stored, tables = Machine(case), list[tuple[Batch, str]](), list[np.ndarray[Any, Any]]()
    for batch in machine.run():
        stored.append((batch, json.dumps(batch.to_json())))
        tables.append(np.zeros(0) if machine.cache.pages is None else machine.cache.pages.table.copy())
    table = np.zeros_like(tables[0])
    for (batch, text), expected in zip(stored, tables, strict=True):
        replayed = Batch.from_json(json.loads(text))
        assert replayed == batch
        for slot, place, page in replayed.pages:
            table[slot, place] = page
        np.testing.assert_array_equal(table, expected)


def test_a_prefix_that_comes_into_the_cache_meanwhile_is_found_when_reading_begins() -> None:
    """Two prompts of the same 8 tokens and 4 of their own are admitted at once; the budget lets the first go first."""
    case = Case(2, None, 12, ScheduleOptions("fcfs"), 0, ((0, 12, 2, 1, 0, "a"), (0, 12, 2, 1, 0, "a")))
    chunks = [[chunk for group in batch.prefill for chunk in group] for batch in Machine(case).run()]
    read = [[(chunk.slot, chunk.start, chunk.count) for chunk in step] for step in chunks if step]
    assert read == [[(0, 0, 12)], [(1, 8, 4)]]


def test_a_prompt_that_all_pages_cannot_hold_is_refused() -> None:
    machine = Machine(Case(2, 10, 16, ScheduleOptions("fcfs"), 0, ((0, 40, 1, 0, 0, "a"),)))
    with pytest.raises(RequestError, match=r"the prompt has 40 tokens; the caches have 10 pages of 4 tokens"):
        machine.arrive()


def test_neither_the_scheduler_nor_the_simulator_imports_torch() -> None:
    code = "import sys, trtkit.simulation.fleet, trtkit.llm.scheduler.scheduler; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("pages", [None, 40])
def test_a_prefix_that_another_request_is_computing_is_waited_for(pages: int | None) -> None:
    """Prompts of 20 tokens, of which 8 are the same, and a budget for both: the second reads its other tokens only."""
    case = Case(3, pages, 40, ScheduleOptions("fcfs"), 0, tuple((0, 20, 2, block, 0, "a") for block in (1, 1, 2)))
    chunks = [[chunk for group in batch.prefill for chunk in group] for batch in Machine(case).run()]
    read = [[(chunk.slot, chunk.start, chunk.count) for chunk in step] for step in chunks if step]
    assert sum(count for step in read for _, _, count in step) == 3 * 20 - 8
    assert {(slot, start) for slot, start, _ in read[0]} == {(0, 0), (2, 0)}


@settings(max_examples=150, deadline=None)
@given(cases.map(lambda case: replace(case, pages=None, copy_s=case.copy_s or 0.1)))
def test_no_step_waits_for_what_another_request_loads(case: Case) -> None:
    """Time passes for copies only if there is nothing else to do, or if whoever waits is preempted."""
    machine, last, landed = Machine(case), Batch(np.zeros(0, np.int64)), set[int]()
    machine.scheduler.memory.host.link.rate.note(case.copy_s or 0.0, 1)  # copies have been measured
    loading, running = set[int](), dict[int, SimulatedRequest]()
    for batch in machine.run():
        busy = {*last.decode.tolist(), *(chunk.slot for group in last.prefill for chunk in group)}
        assert not machine.waited_s or busy <= landed or last.preempted
        requests = dict(machine.scheduler.running.requests)
        new = {slot for slot, request in requests.items() if running.get(slot) is not request}
        now_loading = set(machine.scheduler.memory.prefixes.is_loading.nonzero()[0].tolist())
        landed = (loading | new) - now_loading
        last, loading, running = batch, now_loading, requests


def test_blocks_of_the_next_request_come_back_while_another_runs() -> None:
    """One slot; four long prompts have evicted what the last request's begins with."""
    fill = tuple((0, 40, 1, block, 0, "a") for block in (2, 3, 4, 5))
    last = (12, 40, 12, 6, 0, "a"), (12, 16, 2, 1, 0, "a")
    machine = Machine(Case(1, 40, 16, ScheduleOptions("fcfs"), 1000, ((0, 12, 1, 1, 0, "a"), *fill, *last), None, 0.01))
    begun, loads = {}, []
    for batch in machine.run():
        begun.update({request.id: request for request in machine.scheduler.running.requests.values()})
        loads += [
            (batch.decode.size + batch.prompt_tokens, "6" in begun)
            for each in batch.transfers
            if isinstance(each, LoadBlocks)
        ]
    assert loads
    assert all(tokens and not has_begun for tokens, has_begun in loads)
    assert begun["6"].metrics.restored == 8
    assert machine.scheduler.memory.prefixes.prefetches is not None
    assert not machine.scheduler.memory.prefixes.prefetches.held()
