"""Who waits, and who gets a slot: in turn, on the cached beginning that suits best, and from whom of less priority."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import OverloadedError, RequestError
from trtkit.runtime.generation.beams import BeamSearch
from trtkit.runtime.generation.running import Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.runtime.generation.request import Request
    from trtkit.runtime.generation.state import State
    from trtkit.runtime.sequences import Ints


class Waiting:
    """Requests by priority, then by arrival. A preempted one comes back to its old place."""

    def __init__(self, limit: int | None) -> None:
        self._limit, self._arrivals = limit, 0
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def check_room(self, count: int) -> None:
        """Raise RequestError for more requests than ever fit, OverloadedError for more than fit now."""
        if self._limit is None:
            return
        if count > self._limit:
            what = f"`{count}` answers exceed the queue's limit, {self._limit}"
            raise RequestError(what, "n", "ask for fewer, or raise `max_queue`")
        if len(self._heap) + count > self._limit:
            fix = "wait for answers, or raise `max_queue`"
            raise OverloadedError(f"{len(self._heap)} requests are already waiting", "", fix)

    def add(self, request: Request) -> None:
        """Take a new request. Raises as `check_room` does."""
        self.check_room(1)
        request.arrival = self._arrivals
        self._arrivals += 1
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Take a request that had a slot."""
        heappush(self._heap, (request.priority, request.arrival, request))

    def first(self) -> Request | None:
        """Return the request whose turn it is."""
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Request:
        """Remove the request whose turn it is."""
        return heappop(self._heap)[2]

    def remove(self, request_id: str) -> Request | None:
        """Remove a request, None where it does not wait."""
        for index, (_, _, request) in enumerate(self._heap):
            if request.id == request_id:
                self._heap[index] = self._heap[-1]
                self._heap.pop()
                heapify(self._heap)
                return request
        return None


def admit_waiting(state: State, waiting: Waiting, min_shared_tokens: int, land: Callable[[], None]) -> None:
    """Give slots to waiting requests, from others of less priority where none is free.

    land: takes the tokens in flight, which states that are saved have read or not.
    """
    while (request := waiting.first()) is not None:
        if state.slots.free < request.slots and not _make_room(state, waiting, request, land):
            return
        waiting.pop()
        _admit(state, request, min_shared_tokens)


def _make_room(state: State, waiting: Waiting, request: Request, land: Callable[[], None]) -> bool:
    """Preempt requests of less priority; return whether enough slots are free now."""
    if state.slots.free + len(state.running.giving_way(request.priority)) < request.slots:
        return False
    if state.execution.cache.has_states:
        land()  # a state that has read all known tokens could not go on: the last one's logits are lost
    candidates = state.running.giving_way(request.priority)
    while state.slots.free < request.slots:
        waiting.put_back(_preempt(state, candidates.pop()))
    return True


def _preempt(state: State, slot: int) -> Request:
    """Take a request's slot; it keeps its tokens, and goes on from them when its turn comes again."""
    state.keep(slot)
    generated = state.slots.sequences.known(slot)
    request = state.leave(slot)
    request.generated = generated
    request.prompt_logprobs.clear()
    request.metrics.preemptions += 1
    state.statistics.preemptions += 1
    return request


def _admit(state: State, request: Request, min_shared_tokens: int) -> None:
    """Let a request run, on free slots that there are."""
    slots, prompt = state.slots, np.asarray(request.prompt_ids, np.int64)
    ids = np.append(prompt, request.generated).astype(np.int64) if request.generated else prompt
    slot, common = _take_slot(state, request, ids, min_shared_tokens)
    slots.cached[slot] = common
    slots.sequences.start(slot, prompt, request.generated, request.soft)
    state.sampler.admit(slot, request.settings)
    request.metrics.reused += common
    state.statistics.reused_tokens += common
    end = min(len(prompt) + request.settings.params.max_tokens, state.execution.max_length + 1)
    if request.slots == 1:
        state.running.add(slot, request, end)
        return
    spare = [_spare_slot(state) for _ in range(request.slots - 1)]
    search = BeamSearch(request.settings, end - len(prompt))
    state.running.add_group(Group(request, [slot, *spare], search), end)


def _take_slot(state: State, request: Request, ids: Ints, min_shared_tokens: int) -> tuple[int, int]:
    """Return a free slot, and how many of a request's tokens `ids` its cache begins with."""
    slots, cache = state.slots, state.execution.cache
    is_computed = request.settings.params.prompt_logprobs is not None
    source, common = (0, 0) if is_computed else slots.shared_prefix(ids, request.soft)
    common = common if common >= min_shared_tokens else 0
    stores = () if is_computed or request.soft else (state.imports, state.snapshots)
    least = max(common + 1, min_shared_tokens)
    tries = ((store, store.take(ids, least, is_whole=cache.has_states)) for store in stores)
    store, taken = next(((store, taken) for store, taken in tries if taken is not None), (None, None))
    slot = slots.take(source, common if taken is None else 0)
    if taken is not None:
        saved, common = taken
        cache.load(slot, saved)
        state.statistics.imported_tokens += common * (store is state.imports)
        state.statistics.restored_tokens += common * (store is state.snapshots)
    elif common:
        cache.share(source, slot, common)
    return slot, common


def _spare_slot(state: State) -> int:
    """Return a free slot, emptied, for a beam that is to come."""
    slot = state.slots.take(0, 0)
    state.slots.cached[slot] = state.slots.sequences.lengths[slot] = 0
    return slot


def gather(state: State, ready: Ints) -> Ints:
    """Move sequences that are far apart next to each other, where slots between are free; return their slots."""
    slots = state.slots
    while 2 * len(ready) < ready[-1] - ready[0] + 1:
        source = int(ready[-1])
        free = np.flatnonzero(~slots.is_running[:source])
        free = free[free > ready[0]]
        if not free.size:
            break
        target = int(free[0])
        state.fork(source, target)
        slots.is_running[target] = True
        state.running.move(source, target)
        state.sampler.release(source)
        slots.leave(source, state.reserve)
        ready = np.sort(np.append(ready[:-1], target))
    return ready
