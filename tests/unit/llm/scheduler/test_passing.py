"""Requests that pass one whose adapter has no room yet, by the scheduler alone, without a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.llm.adapters.adapters import Adapters, LoadedAdapter
from trtkit.llm.scheduler import DEFAULT_SCHEDULING, SchedulingParams, Standing
from trtkit.llm.scheduler.options import SchedulerOptions
from trtkit.llm.scheduler.request import Metrics
from trtkit.llm.scheduler.scheduler import Scheduler
from trtkit.llm.sequences import NO_ADAPTER, AdapterId

RANKS, LONGEST = 10, 4
"""Ranks that fit at once, and the most steps that a request takes."""


class NoCache:
    """A SequenceCache of slots that hold nothing."""

    pages, has_states, has_slot_memory, block_multiple = None, False, False, 1


@dataclass(eq=False)
class Asked:
    """A request of one token. steps: that it still needs."""

    id: str
    adapter: LoadedAdapter | None
    steps: int
    slots: int = 1
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    prompt_tokens: int = 1
    max_new_tokens: int = LONGEST
    needs_whole_prompt: bool = False
    soft: None = None
    standing: Standing = field(default_factory=Standing)
    generated: list[int] = field(default_factory=list)
    retained: list[bytes] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def adapter_id(self) -> AdapterId:
        return NO_ADAPTER if self.adapter is None else self.adapter.id

    def known_ids(self) -> np.ndarray[Any, Any]:
        return np.array([1])


class Queue:
    """A scheduler of so many slots, whose requests take steps."""

    def __init__(self, slots: int) -> None:
        device: Any = SimpleNamespace(most=RANKS, dtype=None, write=lambda *_: None, erase=lambda *_: None)
        adapters = Adapters(device, cast("Any", None), frozenset())
        options = SchedulerOptions(slots, 16, 16, host_cache_bytes=0)
        self.scheduler: Scheduler[Any] = Scheduler(cast("Any", NoCache()), options, adapters=adapters)
        self.begun: list[str] = []

    @property
    def running(self) -> dict[int, Asked]:
        return self.scheduler.running.requests

    def submit(self, request: Asked) -> None:
        self.scheduler.submit(request)

    def admit(self) -> None:
        self.scheduler.schedule(0.0)
        self.begun += [change.request.id for change in self.scheduler.changes if hasattr(change, "request")]
        self.scheduler.changes.clear()
        ranks = {each.adapter.id: each.adapter.rank for each in self.running.values() if each.adapter}
        assert sum(ranks.values()) <= RANKS

    def step(self) -> None:
        for slot, request in list(self.running.items()):
            request.steps -= 1
            if not request.steps:
                self.scheduler.finish(slot, "length")


def adapter(number: int, rank: int) -> LoadedAdapter:
    return LoadedAdapter(str(number), AdapterId(number, number), rank, {})


FIRST, SECOND, LARGE = adapter(1, 4), adapter(2, 5), adapter(3, 6)


def test_those_who_cannot_delay_the_first_pass_it_and_the_others_do_not() -> None:
    """Adapter 1 leaves room for 6 ranks of 10 and may be joined; adapter 2 has to end first."""
    queue = Queue(6)
    own = {
        "a": FIRST,
        "b": SECOND,
        "large": LARGE,
        "second": SECOND,
        "new": adapter(4, 9),
        "first": FIRST,
        "none": None,
    }
    for name, each in own.items():
        queue.submit(Asked(name, each, 3))
    queue.admit()
    assert queue.begun == ["a", "b", "first", "none"]
    for _ in range(3):
        queue.step()
    queue.admit()
    assert queue.begun[4:] == ["large"]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, LONGEST)), min_size=1, max_size=8),
    st.lists(st.integers(1, RANKS), min_size=5, max_size=5),
    st.integers(1, LONGEST),
)
def test_nobody_starves_though_requests_for_all_adapters_in_use_never_end(
    slots: int, asked: list[tuple[int, int]], ranks: list[int], steps: int
) -> None:
    """Each step brings new requests for the adapters in use, and one without: all who came before them begin."""
    queue, adapters = Queue(slots), [None, *(adapter(number, rank) for number, rank in enumerate(ranks, 1))]
    for index, (number, own) in enumerate(asked):
        queue.submit(Asked(f"early {index}", adapters[number], own))
    for now in range(len(asked) * (slots + 1) * (LONGEST + 1)):
        queue.admit()
        queue.step()
        for number in sorted({0, *queue.scheduler.running.adapters}):
            queue.submit(Asked(f"late {now}", adapters[number], steps))
    assert {name for name in queue.begun if name.startswith("early")} == {f"early {i}" for i in range(len(asked))}
