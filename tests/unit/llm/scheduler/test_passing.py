"""Requests that pass one whose adapter has no room yet, on the engine's own queue and ranks, without a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.llm.adapters.adapters import Adapters, LoadedAdapter
from trtkit.llm.engine.state import State
from trtkit.llm.scheduler import DEFAULT_SCHEDULING, ScheduleOptions, SchedulingParams, Turn, Waiting, admission
from trtkit.llm.sequences import AdapterId

RANKS, LONGEST = 10, 4
"""Ranks that fit at once, and the most steps that a request takes."""


@dataclass(eq=False)
class Asked:
    """A request without an engine. steps: that it still needs."""

    id: str
    adapter: LoadedAdapter | None
    steps: int
    slots: int = 1
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    prompt_tokens: int = 1
    turn: Turn = field(default_factory=Turn)


class Queue:
    """A queue in front of so many slots, whose requests take steps."""

    def __init__(self, slots: int) -> None:
        device = SimpleNamespace(most=RANKS, dtype=None, write=lambda *_: None, erase=lambda *_: None)
        self.waiting: Waiting[Any] = Waiting(ScheduleOptions())
        self.running: list[Asked] = []
        self.begun: list[str] = []
        state: Any = SimpleNamespace(
            slots=SimpleNamespace(free=slots), running=SimpleNamespace(adapters=set(), giving_way=lambda _: [])
        )
        state.adapters = Adapters(device, None, frozenset())  # type: ignore[arg-type]
        for name in ("can_hold", "is_harmless", "hold"):
            setattr(state, name, getattr(State, name).__get__(state))
        self.state = state

    def admit(self) -> None:
        def admit(_: State, request: Any, __: int) -> None:
            self.running.append(request)
            self.begun.append(request.id)
            self._count(-1)

        with patch.object(admission, "_admit", admit), patch.object(admission, "can_admit", lambda *_: True):
            admission.admit_waiting(self.state, self.waiting, 0, lambda: None)
        assert sum({each.adapter.id: each.adapter.rank for each in self.running if each.adapter}.values()) <= RANKS

    def step(self) -> None:
        for request in self.running:
            request.steps -= 1
        ended = [request for request in self.running if not request.steps]
        self.running = [request for request in self.running if request.steps]
        self._count(len(ended))

    def _count(self, freed: int) -> None:
        self.state.slots.free += freed
        self.state.running.adapters = {each.adapter.id.number if each.adapter else 0 for each in self.running}


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
        queue.waiting.add(Asked(name, each, 3), 0.0)
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
        queue.waiting.add(Asked(f"early {index}", adapters[number], own), 0.0)
    for now in range(len(asked) * (slots + 1) * (LONGEST + 1)):
        queue.admit()
        queue.step()
        for number in sorted({0, *queue.state.running.adapters}):
            queue.waiting.add(Asked(f"late {now}", adapters[number], steps), 0.0)
    assert {name for name in queue.begun if name.startswith("early")} == {f"early {i}" for i in range(len(asked))}
