"""The order of the queue, under every schedule; and that nobody waits forever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.errors import RequestError
from trtkit.llm.scheduler import DEFAULT_SCHEDULING, RequestQueue, ScheduleOptions, SchedulingParams, Service, Standing
from trtkit.llm.scheduler.options import SharingOptions

if TYPE_CHECKING:
    from trtkit.serving_options import ScheduleName


@dataclass(eq=False)
class Asked:
    """A request without an engine."""

    id: str
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    prompt_tokens: int = 1
    standing: Standing = field(default_factory=Standing)


def queue(*asked: Asked, **options: object) -> RequestQueue[Asked]:
    waiting: RequestQueue[Asked] = RequestQueue(SharingOptions(schedule=ScheduleOptions(**options)))  # type: ignore[arg-type]
    for request in asked:
        waiting.add(request, 0.0)
    return waiting


def order(waiting: RequestQueue[Asked]) -> str:
    return "".join(begin(waiting).id for _ in range(len(waiting)))


def begin(waiting: RequestQueue[Asked]) -> Asked:
    """Give a slot to the request whose turn it is."""
    request = waiting.first()
    assert request is not None
    waiting.begin(request)
    return request


def served(*requests: Asked, seconds: float, ended_s: float, idle: tuple[Asked, ...] = ()) -> Service[Asked]:
    return Service(requests, (), idle, seconds, ended_s)


PRIORITIES = [Asked(name, SchedulingParams(priority)) for name, priority in zip("abcd", (2, 0, 1, 0), strict=True)]


def test_priority_goes_before_arrival_and_fcfs_knows_arrival_alone() -> None:
    assert order(queue(*PRIORITIES)) == "bdca"
    assert order(queue(*PRIORITIES, name="fcfs")) == "abcd"
    assert order(queue(*PRIORITIES, name="mlfq")) == "abcd"


def test_among_equals_the_earliest_deadline_is_first() -> None:
    asked = [Asked(name, SchedulingParams(0, "", late)) for name, late in zip("abc", (None, 9.0, 3.0), strict=True)]
    assert order(queue(*asked)) == "cba"
    assert order(queue(*asked, name="fcfs")) == "abc"


def test_who_has_not_begun_by_the_deadline_is_handed_back_late_and_nobody_else() -> None:
    asked = [Asked(name, SchedulingParams(deadline_s=late)) for name, late in zip("abc", (2.0, 1.0, 3.0), strict=True)]
    waiting = queue(*asked)
    begun = begin(waiting)
    waiting.put_back(begun)  # preempted
    assert begun.id == "b"
    assert waiting.next_alarm_s <= 2.0
    assert [request.id for request in waiting.wake(2.5)] == ["a"]
    assert order(waiting) == "bc"


def test_a_removed_request_is_gone_and_the_rest_keeps_its_order() -> None:
    waiting = queue(*PRIORITIES)
    assert waiting.remove("d") is PRIORITIES[3]
    assert waiting.remove("d") is None
    assert len(waiting) == 3
    assert order(waiting) == "bca"


def test_a_prompt_skips_the_queues_whose_quantum_does_not_cover_it() -> None:
    waiting = queue(name="mlfq", quantum_s=0.1, levels=4)
    waiting.account(Service((), (), (), seconds=1.0, ended_s=1.0, prompt_tokens=1000))  # 1 ms a token
    levels = []
    for tokens in (100, 101, 200, 400, 401, 10_000):
        waiting.add(request := Asked(str(tokens), prompt_tokens=tokens), 0.0)
        levels.append(request.standing.level)
    assert levels == [0, 1, 1, 2, 3, 3]


def test_who_used_up_a_quantum_moves_down_a_level_and_starts_anew_there() -> None:
    waiting = queue(request := Asked("a"), name="mlfq", quantum_s=0.1, ratio=2, levels=3)
    begin(waiting)
    levels = []
    for step in range(1, 9):
        waiting.account(served(request, seconds=0.0625, ended_s=step / 16))
        levels.append(request.standing.level)
    assert levels == [0, 1, 1, 1, 1, 2, 2, 2]  # 0.1 s is over in the second step, 0.2 s more in the fourth after it


def test_who_was_not_served_for_too_long_comes_first() -> None:
    waiting = queue(old := Asked("old"), name="mlfq", quantum_s=0.1, levels=3, starvation_s=5)
    begin(waiting)
    waiting.account(served(old, seconds=1.0, ended_s=1.0))
    waiting.put_back(old)
    waiting.add(Asked("new", SchedulingParams(deadline_s=99)), 1.0)
    first = waiting.first()
    assert first is not None
    assert first.id == "new"
    assert waiting.wake(6.0) == []
    assert order(waiting) == "oldnew"
    running = Asked("idle")
    waiting.add(running, 0.0)
    begin(waiting)
    assert waiting.account(served(seconds=0.1, ended_s=5.0, idle=(running,)))
    assert running.standing.is_promoted


def test_users_are_served_by_their_weights() -> None:
    """Of three users who always wait, each gets tokens in proportion to its weight."""
    waiting: RequestQueue[Asked] = RequestQueue(SharingOptions(schedule=ScheduleOptions("fcfs", {"a": 3.0, "*": 1.0})))
    tokens = dict.fromkeys("abc", 0)
    for user in "abc":
        for _ in range(2):
            waiting.add(Asked(user, SchedulingParams(user=user), prompt_tokens=10), 0.0)
    for _ in range(500):
        request = begin(waiting)
        tokens[request.id] += 1
        waiting.account(served(request, seconds=0.0, ended_s=0.0))
        waiting.add(Asked(request.id, SchedulingParams(user=request.id), prompt_tokens=10), 0.0)
    assert all(abs(tokens[user] - expected) <= 3 for user, expected in (("a", 300), ("b", 100), ("c", 100)))


def test_a_user_saves_up_nothing_in_a_break() -> None:
    waiting: RequestQueue[Asked] = RequestQueue(SharingOptions(schedule=ScheduleOptions("fcfs", {})))
    busy, rare = SchedulingParams(user="busy"), SchedulingParams(user="rare")
    for index in range(100):
        waiting.add(Asked(f"b{index}", busy, prompt_tokens=10), 0.0)
        begin(waiting)
    for name, scheduling in (("b", busy), ("r", rare)) * 5:
        waiting.add(Asked(name, scheduling, prompt_tokens=10), 0.0)
    assert order(waiting) in {"brbrbrbrbr", "rbrbrbrbrb", "brrbrbrbrb", "rbbrbrbrbr"}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"name": "lifo"}, "`lifo` is not a schedule"),
        ({"shares": {"a": 0.0}}, "the share of `a` is 0"),
        ({"quantum_s": 0.0}, "0 is not a value of `quantum_s`"),
        ({"levels": 0}, "0 is not a value of `levels`"),
    ],
)
def test_options_that_make_no_schedule_are_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        ScheduleOptions(**options)  # type: ignore[arg-type]


def test_a_deadline_that_has_passed_is_refused() -> None:
    with pytest.raises(RequestError, match="a deadline of 0 s has passed"):
        SchedulingParams(deadline_s=0.0)


class Machine:
    """Slots in which requests run a step at a time, as the engine's do: who is on a lower level gives way.

    loses_work: whether they begin again then.
    """

    def __init__(self, waiting: RequestQueue[Asked], slots: int, *, loses_work: bool = False) -> None:
        self.waiting, self.slots, self.loses_work = waiting, slots, loses_work
        self.work: dict[str, int] = {}
        self.left: dict[str, int] = {}
        self.running: list[Asked] = []
        self.now_s = 0.0
        self.done: dict[str, float] = {}

    def step(self) -> None:
        self.waiting.wake(self.now_s)
        while (request := self.waiting.first()) is not None:
            if len(self.running) == self.slots:
                last = max(self.running, key=lambda each: each.standing.order)
                if last.standing.level <= request.standing.level:
                    break
                self.running.remove(last)
                self.waiting.put_back(last)
                if self.loses_work:
                    self.left[last.id] = self.work[last.id]
            self.waiting.begin(request)
            self.running.append(request)
        self.now_s += 1.0
        self.waiting.account(served(*self.running, seconds=1.0, ended_s=self.now_s))
        for request in list(self.running):
            self.left[request.id] -= 1
            if not self.left[request.id]:
                self.running.remove(request)
                self.done[request.id] = self.now_s

    def take(self, request: Asked, steps: int) -> None:
        self.left[request.id] = self.work[request.id] = steps
        self.waiting.add(request, self.now_s)


LOADS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(-2, 2), st.sampled_from("abc")),
    min_size=1,
    max_size=25,
)
SCHEDULES = st.builds(
    ScheduleOptions,
    name=st.sampled_from(["fcfs", "priority", "mlfq"]),
    shares=st.sampled_from([None, {}, {"a": 5.0}]),
    quantum_s=st.sampled_from([0.5, 1.0, 3.0]),
    levels=st.integers(1, 4),
    starvation_s=st.sampled_from([1.0, 5.0, 1000.0]),
)


@settings(max_examples=150, deadline=None)
@given(LOADS, SCHEDULES, st.integers(1, 3), st.booleans())
def test_every_request_of_a_finite_load_ends(
    load: list[tuple[int, int, int, str]], options: ScheduleOptions, slots: int, loses_work: bool
) -> None:
    machine = Machine(RequestQueue(SharingOptions(schedule=options)), slots, loses_work=loses_work)
    for number, (at_s, steps, priority, user) in enumerate(sorted(load)):
        while machine.now_s < at_s:
            machine.step()
        machine.take(Asked(str(number), SchedulingParams(priority, user), prompt_tokens=steps), steps)
    work = sum(machine.left.values())
    for _ in range(100 * work if loses_work else work):
        machine.step()
        if not machine.waiting and not machine.running:
            break
    assert machine.done.keys() == machine.left.keys()
    assert not machine.waiting
    assert not machine.running


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(2, 30), st.sampled_from([1.0, 2.0]), st.integers(1, 4))
def test_under_mlfq_an_endless_stream_of_short_requests_starves_nobody(
    slots: int, steps: int, quantum_s: float, levels: int
) -> None:
    """Each moment `slots` new requests of one step come, which would take all slots forever."""
    starvation_s = 8.0
    waiting: RequestQueue[Asked] = RequestQueue(
        SharingOptions(schedule=ScheduleOptions("mlfq", quantum_s=quantum_s, levels=levels, starvation_s=starvation_s))
    )
    machine = Machine(waiting, slots)
    machine.take(Asked("long", prompt_tokens=10), steps)
    limit = steps * (starvation_s + 2)  # promoted after each wait, it is served for a quantum
    for number in range(int(limit)):
        for index in range(slots):
            machine.take(Asked(f"{number}-{index}"), 1)
        machine.step()
        if "long" in machine.done:
            break
    assert "long" in machine.done


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["fcfs", "priority"]),
    st.sampled_from([None, {}, {"old": 5.0}, {"new": 5.0}]),
    st.integers(1, 3),
    st.lists(st.integers(1, 12), max_size=10),
    st.integers(1, 30),
)
def test_an_endless_stream_of_equal_priority_starves_nobody(
    name: ScheduleName, shares: dict[str, float] | None, slots: int, before: list[int], steps: int
) -> None:
    """It waits for who came before; with shares, also for what others are owed, five requests for one of its own."""
    machine = Machine(RequestQueue(SharingOptions(schedule=ScheduleOptions(name, shares))), slots)
    for number, work in enumerate(before):
        machine.take(Asked(f"before-{number}", SchedulingParams(user="old")), work)
    machine.take(Asked("long", SchedulingParams(user="old")), steps)
    for number in range(6 * sum(before) + 10 + steps):
        for index in range(slots):
            machine.take(Asked(f"{number}-{index}", SchedulingParams(user="new")), 1)
        machine.step()
        if "long" in machine.done:
            break
    assert "long" in machine.done


def test_under_priority_the_same_stream_does_starve() -> None:
    """What the limit is for: the schedule by priority makes no such promise, and says so."""
    machine = Machine(queue(), 1)
    machine.take(Asked("low", SchedulingParams(1)), 2)
    for number in range(100):
        machine.take(Asked(str(number)), 1)
        machine.step()
    assert "low" not in machine.done
