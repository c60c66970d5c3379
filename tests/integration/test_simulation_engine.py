"""The simulator does, step by step, what the real engine does with the same requests on the same clock."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.clocked import ClockedDecoder
from tests.generation import SLOTS, settings
from trtkit.runtime.generation import Engine, EngineOptions, Metrics, Request, admission
from trtkit.runtime.scheduling import ScheduleOptions, SchedulingParams
from trtkit.simulation.fleet import Fleet, FleetOptions
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import Traffic
from trtkit.simulation.times import MeasuredTimes, decode_s

if TYPE_CHECKING:
    from trtkit.runtime.decoder import Call
    from trtkit.runtime.generation.prefill import Chunk
    from trtkit.runtime.generation.state import State
    from trtkit.simulation.recorder import ReplicaState
    from trtkit.simulation.requests import SimulatedRequest

TIMES = MeasuredTimes(1.0, 0.125, 1 / 64, 0.5, 0.25, 1 / 128)
LENGTH, BUDGET = 64, 9


@dataclass
class Events:
    """A Recorder of what happened: who began, which pieces of prompts were read, who ended, and when."""

    list: list[tuple[float, str, int, int, int]] = field(default_factory=list)

    def begin(self, request: SimulatedRequest, now_s: float, shared: int) -> None:  # noqa: ARG002
        self.list.append((now_s, "begin", request.number, 0, 0))

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:
        self.list.append((now_s, "read", request.number, chunk.start, chunk.count))

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        self.list.append((now_s, "finish", request.number, 0, 0))

    def drop(self, request: SimulatedRequest, now_s: float) -> None:
        self.list.append((now_s, "drop", request.number, 0, 0))

    def pass_time(self, state: ReplicaState, begin_s: float, end_s: float, steps: int) -> None:
        pass

    def rounded(self) -> list[tuple[float, str, int, int, int]]:
        return sorted((round(at_s, 6), *rest) for at_s, *rest in self.list)


class TimedDecoder(ClockedDecoder):
    """A decoder whose calls take what the simulator says that they take. is_reading: whether a call is for prompts."""

    def __init__(self) -> None:
        super().__init__(SLOTS, self.seconds_of, LENGTH)
        self.is_reading = False

    def seconds_of(self, call: Call) -> float:
        rows = call.counts > 0
        count = int(rows.sum())
        if self.is_reading:
            return TIMES.prefill_s(count, int(call.counts.max()), int((call.starts + call.counts)[rows].max()))
        return decode_s(TIMES.decode_lines(len(rows)), count, int(call.starts[rows].sum()), 1)


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


def engine_events(work: Traffic, schedule: ScheduleOptions, monkeypatch: pytest.MonkeyPatch, *, saves: bool) -> Events:
    """Serve the requests with the real engine on a tiny decoder."""
    events, decoder = Events(), TimedDecoder()
    options = EngineOptions(
        BUDGET,
        min_shared_tokens=1,
        host_cache_bytes=(1 << 30) * saves,
        host_block_tokens=1,
        schedule=schedule,
        clock=decoder.clock,
        overlap=False,
    )
    engine = Engine(decoder, options)
    prefill, admit = engine._prefill, admission._admit

    def noted_prefill(group: list[Chunk]) -> None:
        numbers = [int(engine._state.running.requests[chunk.slot].id) for chunk in group]
        decoder.is_reading = True
        prefill(group)
        decoder.is_reading = False
        for number, chunk in zip(numbers, group, strict=True):
            events.list.append((decoder.now_s, "read", number, chunk.start, chunk.count))

    def noted_admit(state: State, request: Request, min_shared_tokens: int) -> None:
        events.list.append((decoder.now_s, "begin", int(request.id), 0, 0))
        admit(state, request, min_shared_tokens)

    monkeypatch.setattr(engine, "_prefill", noted_prefill)
    monkeypatch.setattr(admission, "_admit", noted_admit)
    left = deque(work.requests())
    while left or engine.has_work:
        if not engine.has_work:
            decoder.now_s = max(decoder.now_s, left[0].arrival_s)
        while left and left[0].arrival_s <= decoder.now_s:
            each = left.popleft()
            prompt = [3 + each.number, *range(7, 6 + each.prompt_tokens)]  # no two begin alike
            params = settings(max_tokens=each.output_tokens, temperature=0, ignore_eos=True)
            metrics = Metrics(each.arrival_s)
            engine.submit(Request(each.id, prompt, params, each.scheduling, metrics=metrics))
        for ended in engine.step():
            kind, at_s = "drop" if ended.reason == "error" else "finish", ended.request.metrics.finished_s
            assert at_s is not None
            events.list.append((at_s, kind, int(ended.request.id), 0, 0))
    preempts = schedule.name == "priority" or (schedule.name == "mlfq" and saves)
    assert (engine.statistics.preemptions > 3) == preempts
    assert (engine.statistics.restored_tokens > 0) == (preempts and saves)
    return events


SCHEDULES = {
    "fcfs": ScheduleOptions("fcfs"),
    "priority": ScheduleOptions("priority"),
    "mlfq": ScheduleOptions("mlfq", quantum_s=4.0, levels=4, starvation_s=60),
    "fair mlfq": ScheduleOptions("mlfq", {"a": 4.0}, quantum_s=4.0, levels=4, starvation_s=60),
    "fair": ScheduleOptions("fcfs", {"a": 4.0}),
}


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "computed again"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_simulator_does_what_the_engine_does(schedule: str, saves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    work, events = traffic(seed=3), Events()
    options = ReplicaOptions(
        TIMES, SLOTS, LENGTH, 16, BUDGET, host_tokens=10**9 if saves else 0, schedule=SCHEDULES[schedule]
    )
    fleet = Fleet(FleetOptions(options), events)
    for request in work.requests():
        fleet.run_until(request.arrival_s)
        fleet.submit(request)
    fleet.run_until(float("inf"))
    expected = engine_events(work, SCHEDULES[schedule], monkeypatch, saves=saves)
    assert events.rounded() == expected.rounded()
    kinds = Counter(kind for _, kind, *_ in events.list)
    assert kinds["finish"] + kinds["drop"] == len(work)
