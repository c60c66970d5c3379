"""The simulator matches the real engine step by step, on the same requests and clock."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.clocked import ClockedDecoder
from tests.support.generation import PAGE_TOKENS, SLOTS, settings
from trtkit.llm.cache.host import link
from trtkit.llm.engine import EngineOptions, LLMEngine, Metrics, Request
from trtkit.llm.scheduler import ScheduleOptions, SchedulingParams
from trtkit.llm.scheduler.batch import PrefixMatched, SlotTaken
from trtkit.simulation.fleet import Fleet, FleetOptions
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import Traffic
from trtkit.simulation.times import MeasuredTimes, decode_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.llm.execution import Call
    from trtkit.llm.execution.host_blocks import LocalBlocks
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.simulation.record import Passed
    from trtkit.simulation.requests import SimulatedRequest

TIMES = MeasuredTimes(1.0, 0.125, 1 / 64, 0.5, 0.25, 1 / 128)
LENGTH, BUDGET = 64, 9
SLOW = [pytest.mark.slow]
Event = tuple[float, str, int, int, int]


@dataclass
class Events:
    """A Recorder of what happened: who began with how many tokens, which pieces were read, who ended, and when."""

    list: list[Event] = field(default_factory=list)

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:
        self.list.append((now_s, "begin", request.number, shared, restored))

    def match(self, request: SimulatedRequest, shared: int) -> None:
        self.list.append((-1.0, "match", request.number, 0, shared))

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:
        self.list.append((now_s, "read", request.number, chunk.start, chunk.count))

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        self.list.append((now_s, "finish", request.number, 0, 0))

    def drop(self, request: SimulatedRequest, now_s: float) -> None:
        self.list.append((now_s, "drop", request.number, 0, 0))

    def pass_time(self, passed: Passed) -> None:
        pass

    def rounded(self) -> list[Event]:
        return sorted((round(at_s, 6), *rest) for at_s, *rest in self.list)

    def tokens(self, kind: str) -> int:
        """Return the last numbers of all events of a kind, added up."""
        return sum(event[4] for event in self.list if event[1] == kind)


class BackgroundBlocks:
    """Blocks that are copied one after the other while the decoder's clock goes on: a CacheBlocks."""

    is_waited_for = False

    def __init__(self, blocks: LocalBlocks, decoder: TimedDecoder, token_s: float) -> None:
        self._blocks, self._decoder, self._block_s = blocks, decoder, blocks.tokens * token_s
        self.tokens, self.size_bytes, self.memory = blocks.tokens, blocks.size_bytes, blocks.memory
        self.places, self.settle = blocks.places, blocks.settle
        self._free_s, self._measured = 0.0, list[tuple[float, int]]()

    def _copied_s(self, count: int) -> float:
        self._free_s = max(self._decoder.now_s, self._free_s) + count * self._block_s
        return self._free_s

    def last_copy(self) -> tuple[float, int] | None:
        return self._measured.pop(0) if self._measured else None

    def save(self, places: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """Pack at once what is staged; who saves more waits for the rest."""
        self._measured.append((len(places) * self._block_s, len(places) * self.size_bytes))
        staged_s = link.STAGED_BYTES / self.size_bytes * self._block_s
        self._decoder.now_s = max(self._decoder.now_s, self._copied_s(len(places)) - staged_s)
        return self._blocks.save(places, rows)

    def load(self, places: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:
        due_s, loaded = self._copied_s(len(places)), [row.clone() for row in rows]

        def arrive() -> None:
            self._decoder.now_s = max(self._decoder.now_s, due_s)
            self._blocks.load(places, loaded)

        return arrive


class TimedDecoder(ClockedDecoder):
    """A decoder whose calls and copies take what the simulator says. is_reading: whether a call is for prompts."""

    def __init__(self, times: MeasuredTimes, pages: int | None, *, copies_in_background: bool = False) -> None:
        super().__init__(SLOTS, self.seconds_of, LENGTH, None if pages is None else pages + 1)
        self.is_asynchronous = copies_in_background
        self.is_reading, self._times, blocks = False, times, self.cache.blocks

        def timed_blocks(tokens: int) -> LocalBlocks | BackgroundBlocks | None:
            found = blocks(tokens)
            assert found is not None
            if copies_in_background:
                return BackgroundBlocks(found, self, times.copy_token_s)
            for name in ("save", "load"):
                setattr(found, name, self._timed(getattr(found, name), tokens))
            return found

        self.cache.blocks = timed_blocks  # type: ignore[method-assign]

    def _timed(self, copy: Callable[..., object], tokens: int) -> Callable[..., object]:
        def timed(places: Sequence[int], rows: Sequence[object]) -> object:
            self.now_s += len(places) * tokens * self._times.copy_token_s
            return copy(places, rows)

        return timed

    def seconds_of(self, call: Call) -> float:
        rows = call.counts > 0
        count = int(rows.sum())
        if self.is_reading:
            return self._times.prefill_s(count, int(call.counts.max()), int((call.starts + call.counts)[rows].max()))
        return decode_s(self._times.decode_lines(len(rows), 0), count, int(call.starts[rows].sum()), 1)


def traffic(seed: int) -> Traffic:
    """Return requests that come in bursts."""
    r = random.Random(seed)
    count = 30
    arrivals = np.cumsum([r.choice((0.0, 0.0, 3.0, 17.0)) for _ in range(count)])
    inputs, outputs = (np.array([r.choice(sizes) for _ in range(count)]) for sizes in ((1, 3, 12, 30), (1, 2, 9, 33)))
    scheduling = [
        SchedulingParams(r.randrange(3), r.choice("ab"), r.choice((None, None, None, 40.0))) for _ in range(count)
    ]
    return Traffic(arrivals, inputs, outputs, scheduling=scheduling)


def prompt_of(request: SimulatedRequest) -> list[int]:
    """Return tokens that are alike in the same blocks, and differ from all other prompts after them."""
    shared = [33 + block for block in request.hashes for _ in range(PAGE_TOKENS)]
    own = request.prompt_tokens - len(shared)
    return [*shared, 3 + request.number, *range(7, 6 + own)]


def engine_events(work: Traffic, own: ReplicaOptions, monkeypatch: pytest.MonkeyPatch) -> tuple[Events, LLMEngine]:
    """Serve the requests with the real engine on a tiny decoder."""
    assert isinstance(own.times, MeasuredTimes)
    decoder = TimedDecoder(own.times, own.pages, copies_in_background=own.copies_in_background)
    events = Events()
    options = EngineOptions(
        token_budget=BUDGET,
        min_shared_tokens=own.min_shared_tokens,
        host_cache_bytes=own.host_tokens * own.token_bytes,
        host_block_tokens=own.host_block_tokens,
        schedule=own.schedule,
        clock=decoder.clock,
        overlap=False,
    )
    engine = LLMEngine(decoder, options)
    prefill, apply_changes = engine._prefill, engine._state.apply_changes

    def noted_prefill(group: list[Chunk]) -> None:
        numbers = [int(engine._scheduler.running.requests[chunk.slot].id) for chunk in group]
        decoder.is_reading = True
        prefill(group)
        decoder.is_reading = False
        for number, chunk in zip(numbers, group, strict=True):
            events.list.append((decoder.now_s, "read", number, chunk.start, chunk.count))

    def noted_changes() -> None:
        for change in engine._scheduler.changes:
            if isinstance(change, SlotTaken):
                events.list.append((step_s, "begin", int(change.request.id), change.reused, change.restored))
            elif isinstance(change, PrefixMatched):
                number = int(engine._scheduler.running.requests[change.slot].id)
                events.list.append((-1.0, "match", number, 0, change.reused))
        apply_changes()

    monkeypatch.setattr(engine, "_prefill", noted_prefill)
    monkeypatch.setattr(engine._state, "apply_changes", noted_changes)
    left = deque(work.requests())
    while left or engine.has_work:
        if not engine.has_work:
            decoder.now_s = max(decoder.now_s, left[0].arrival_s)
        while left and left[0].arrival_s <= decoder.now_s:
            each = left.popleft()
            params = settings(max_tokens=each.output_tokens, temperature=0, ignore_eos=True)
            metrics = Metrics(each.arrival_s)
            engine.submit(Request(each.id, prompt_of(each), params, each.scheduling, metrics=metrics))
        step_s = decoder.now_s
        for ended in engine.step():
            kind, at_s = "drop" if ended.reason == "error" else "finish", ended.request.metrics.finished_s
            assert at_s is not None
            events.list.append((at_s, kind, int(ended.request.id), 0, 0))
    return events, engine


def simulated_events(work: Traffic, options: ReplicaOptions) -> Events:
    """Serve the requests with the simulator."""
    events = Events()
    fleet = Fleet(FleetOptions(options), events)
    for request in work.requests():
        fleet.run_until(request.arrival_s)
        fleet.submit(request)
    fleet.run_until(float("inf"))
    kinds = Counter(kind for _, kind, *_ in events.list)
    assert kinds["finish"] + kinds["drop"] == len(work)
    return events


SCHEDULES = {
    "fcfs": ScheduleOptions("fcfs"),
    "priority": ScheduleOptions("priority"),
    "mlfq": ScheduleOptions("mlfq", quantum_s=4.0, levels=4, starvation_s=60),
    "fair mlfq": ScheduleOptions("mlfq", {"a": 4.0}, quantum_s=4.0, levels=4, starvation_s=60),
    "fair": ScheduleOptions("fcfs", {"a": 4.0}),
}
TOKEN_BYTES = 512
OPTIONS = ReplicaOptions(
    TIMES, SLOTS, LENGTH, 16, BUDGET, token_bytes=TOKEN_BYTES, host_block_tokens=1, min_shared_tokens=1
)


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "computed again"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_simulator_does_what_the_engine_does(schedule: str, saves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    work = traffic(seed=3)
    options = replace(OPTIONS, host_tokens=1 << 16 if saves else 0, schedule=SCHEDULES[schedule])
    events, (expected, engine) = simulated_events(work, options), engine_events(work, options, monkeypatch)
    assert events.rounded() == expected.rounded()
    preempts = schedule == "priority" or ("mlfq" in schedule and saves)
    assert (engine.statistics.preemptions > 3) == preempts
    assert (engine.statistics.restored_tokens > 0) == (preempts and saves)


def conversations(seed: int) -> Traffic:
    """Return turns of five conversations, which begin with the blocks of earlier turns, with priorities."""
    r = random.Random(seed)
    arrivals, hashes, inputs, outputs, scheduling = [], [], [], [], []
    for _ in range(30):
        which, turns = r.randrange(5), r.randrange(1, 7)
        arrivals.append(r.choice((0.0, 0.0, 3.0, 17.0)))
        hashes.append(tuple(6 * which + turn for turn in range(turns)))
        inputs.append(PAGE_TOKENS * turns + r.randrange(1, 9))
        outputs.append(r.choice((1, 2, 9, 30)))
        scheduling.append(SchedulingParams(r.randrange(3)))
    return Traffic(np.cumsum(arrivals), np.array(inputs), np.array(outputs), hashes, scheduling, PAGE_TOKENS)


def shared_options(schedule: str, pages: int | None, host_tokens: int, copy_token_s: float) -> ReplicaOptions:
    """Return an engine whose requests share blocks, in slots or pages and on the host."""
    return replace(
        OPTIONS,
        times=replace(TIMES, copy_token_s=copy_token_s),
        schedule=SCHEDULES[schedule],
        pages=pages,
        page_tokens=PAGE_TOKENS,
        block_tokens=PAGE_TOKENS,
        host_tokens=host_tokens,
        host_block_tokens=PAGE_TOKENS,
    )


COPIES = {"free copies": 0.0, "fast copies": 1 / 32, "slow copies": 1 / 4}


def hosts() -> list[Any]:
    """Return schedules, host memory and copies: every pair of them, and the other combinations among the slow tests."""
    ways = product(enumerate(("fcfs", "priority", "mlfq")), enumerate((0, 100, 1000)), enumerate(COPIES))
    return [
        pytest.param(schedule, host, COPIES[copies], id=f"{schedule}-{host}-{copies}", marks=() if is_kept else SLOW)
        for (first, schedule), (second, host), (third, copies) in ways
        for is_kept in [(first + second + third) % 3 == 0]
    ]


@pytest.mark.parametrize("pages", [None, 28], ids=["slots", "pages"])
@pytest.mark.parametrize(("schedule", "host_tokens", "copy_token_s"), hosts())
def test_the_host_gives_back_what_it_gives_the_engine(
    schedule: str, pages: int | None, host_tokens: int, copy_token_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tokens of the same prompts, at the same times."""
    work = conversations(seed=5)
    options = shared_options(schedule, pages, host_tokens, copy_token_s)
    events, (expected, engine) = simulated_events(work, options), engine_events(work, options, monkeypatch)
    assert events.rounded() == expected.rounded()
    assert events.tokens("begin") == engine.statistics.restored_tokens
    assert events.tokens("read") == engine.statistics.prompt_tokens
    assert (engine.statistics.restored_tokens > 0) == (host_tokens > 0)


@pytest.mark.parametrize("staged_blocks", [1, pytest.param(100, marks=SLOW)])
@pytest.mark.parametrize("pages", [None, 28], ids=["slots", "pages"])
@pytest.mark.parametrize(("schedule", "host_tokens", "copy_token_s"), hosts())
def test_copies_in_the_background_are_the_engine_s(
    schedule: str, pages: int | None, host_tokens: int, copy_token_s: float, staged_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As many tokens come back at the same times, however much a device stages."""
    monkeypatch.setattr(link, "STAGED_BYTES", staged_blocks * PAGE_TOKENS * TOKEN_BYTES)
    work = conversations(seed=5)
    options = replace(shared_options(schedule, pages, host_tokens, copy_token_s), copies_in_background=True)
    events, (expected, engine) = simulated_events(work, options), engine_events(work, options, monkeypatch)
    assert events.rounded() == expected.rounded()
    assert events.tokens("begin") == engine.statistics.restored_tokens
    assert events.tokens("read") == engine.statistics.prompt_tokens
    assert (engine.statistics.restored_tokens > 0) == (host_tokens > 0)


def bursts(seed: int) -> Traffic:
    """Return requests of which several come at once with a prefix that nobody has computed yet."""
    r = random.Random(seed)
    arrivals, hashes, inputs, outputs, scheduling = [], [], [], [], []
    now_s = 0.0
    for burst in range(5):
        blocks = tuple(6 * burst + block for block in range(r.randrange(4, 7)))
        for _ in range(r.randrange(3, 7)):
            shared = blocks[: r.randrange(3, len(blocks) + 1)]
            arrivals.append(now_s)
            hashes.append(shared)
            inputs.append(PAGE_TOKENS * len(shared) + r.randrange(1, 9))
            outputs.append(r.choice((1, 2, 9, 20)))
            scheduling.append(SchedulingParams(r.randrange(2)))
        now_s += r.choice((5.0, 60.0))
    return Traffic(np.array(arrivals), np.array(inputs), np.array(outputs), hashes, scheduling, PAGE_TOKENS)


@pytest.mark.parametrize("host_tokens", [0, 1000])
@pytest.mark.parametrize("pages", [None, 28], ids=["slots", "pages"])
@pytest.mark.parametrize("schedule", ["fcfs", "priority", "mlfq"])
def test_requests_that_come_together_share_what_the_engine_s_share(
    schedule: str, pages: int | None, host_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look again for their prefix when their first piece is planned."""
    work = bursts(seed=2)
    options = shared_options(schedule, pages, host_tokens, 1 / 32)
    events, (expected, engine) = simulated_events(work, options), engine_events(work, options, monkeypatch)
    assert events.rounded() == expected.rounded()
    assert events.tokens("read") == engine.statistics.prompt_tokens
    assert events.tokens("match") > 40
