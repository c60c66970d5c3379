"""Who gets a slot: in turn, on the cached beginning that suits best, and from whom on a lower level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.engine.beams import BeamSearch
from trtkit.llm.scheduler.pages import adopt_prefix, can_admit, known_ids, longest
from trtkit.llm.scheduler.running import Group
from trtkit.llm.sequences import keyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.engine.state import State
    from trtkit.llm.scheduler import Waiting
    from trtkit.llm.scheduler.request import Request
    from trtkit.llm.sequences import Ints


def admit_waiting(state: State, waiting: Waiting[Request], min_shared_tokens: int, land: Callable[[], None]) -> None:
    """Give slots to waiting requests, from others on lower levels where none is free.

    land: takes the tokens in flight, which states that are saved have read or not.
    """
    while (request := waiting.first()) is not None:
        if not state.can_hold(request):
            _let_pass(state, waiting, request, min_shared_tokens)
            return
        if state.slots.free < request.slots and not _make_room(state, waiting, request, land):
            return
        if not _make_pages(state, waiting, request, land):
            return
        _begin(state, waiting, request, min_shared_tokens)


def _let_pass(state: State, waiting: Waiting[Request], first: Request, min_shared_tokens: int) -> None:
    """Let requests pass the first, which waits for room for its adapter, and take free slots if they cannot delay it.

    Nobody is preempted for them. The first one gets the next slot as soon as there is room for its adapter.
    """
    if not state.slots.free:
        return
    for request in waiting.in_turn():
        if request is first or not state.is_harmless(request, first):
            continue
        if state.slots.free < request.slots or not can_admit(state, request):
            return
        _begin(state, waiting, request, min_shared_tokens)


def _begin(state: State, waiting: Waiting[Request], request: Request, min_shared_tokens: int) -> None:
    """Let a request leave the queue and run."""
    waiting.begin(request)
    state.hold(request)
    _admit(state, request, min_shared_tokens)


def _make_room(state: State, waiting: Waiting[Request], request: Request, land: Callable[[], None]) -> bool:
    """Preempt requests on lower levels; return whether enough slots are free now."""
    if state.slots.free + len(_giving_way(state, waiting, request)) < request.slots:
        return False
    if state.execution.cache.has_states:
        land()  # a state that has read all known tokens could not go on: the last one's logits are lost
    while state.slots.free < request.slots:
        if not _preempt_one(state, waiting, request):
            return False
    return True


def _make_pages(state: State, waiting: Waiting[Request], request: Request, land: Callable[[], None]) -> bool:
    """Preempt requests on lower levels until there are pages for a request; return whether there are."""
    while not can_admit(state, request):
        if state.execution.cache.has_states:
            land()
        if not _preempt_one(state, waiting, request):
            return False
    return True


def _preempt_one(state: State, waiting: Waiting[Request], request: Request) -> bool:
    """Take the slot of who gives way to a request first; return whether anybody does."""
    candidates = _giving_way(state, waiting, request)
    if candidates:
        waiting.put_back(preempt(state, candidates[-1]))
    return bool(candidates)


def _giving_way(state: State, waiting: Waiting[Request], request: Request) -> list[int]:
    """Return the slots of who gives way to a request, the first to do so last."""
    slots = state.running.giving_way(request.turn.level)
    return [slot for slot in slots if state.host.can_claim(slot)] if waiting.policy.keeps_work else slots


def preempt(state: State, slot: int) -> Request:
    """Take a request's slot; it keeps its tokens, and goes on from them when its turn comes again."""
    prompt_length = int(state.slots.sequences.prompt_lengths[slot])
    most = prompt_length if state.running.is_beam[slot] else None  # beams begin again
    claims = state.host.keep(slot, most, is_claimed=True)
    generated = state.slots.sequences.known(slot)
    request = state.leave(slot)
    request.claims += claims
    request.generated = generated
    request.prompt_logprobs.clear()
    request.metrics.preemptions += 1
    state.statistics.preemptions += 1
    state.statistics.swaps += bool(claims)
    return request


def _admit(state: State, request: Request, min_shared_tokens: int) -> None:
    """Let a request run, on free slots that there are."""
    slots, prompt, ids = state.slots, np.asarray(request.prompt_ids, np.int64), known_ids(request)
    slot, common = _take_slot(state, request, ids, min_shared_tokens)
    state.release(request)
    slots.cached[slot] = common
    slots.sequences.start(slot, prompt, request.generated, request.soft, request.adapter_id)
    state.sampler.admit(slot, request.settings)
    request.metrics.reused += common
    state.statistics.reused_tokens += common
    end = min(len(prompt) + request.settings.params.max_tokens, state.execution.max_length + 1)
    if state.pages is not None:
        state.pages.grow(slot, len(ids))
        end = min(end, longest(state.pages, request) + 1)
    if request.slots == 1:
        state.running.add(slot, request, end)
        return
    spare = [_spare_slot(state) for _ in range(request.slots - 1)]
    search = BeamSearch(request.settings, end - len(prompt))
    state.running.add_group(Group(request, [slot, *spare], search), end)


def _take_slot(state: State, request: Request, ids: Ints, min_shared_tokens: int) -> tuple[int, int]:
    """Return a free slot, and how many of a request's tokens `ids` its cache begins with."""
    if request.settings.params.prompt_logprobs is not None:  # of tokens that are computed
        return _spare_slot(state), 0
    cache, by_content = state.execution.cache, state.finds_by_content
    source, common = state.shared_prefix(ids, request.soft, request.adapter_id.key)
    common = common if common >= min_shared_tokens else 0
    least = max(common + 1, min_shared_tokens)
    own = keyed(ids, request.adapter_id.key)
    imported = None if request.soft is not None else state.imports.take(own, least, is_whole=cache.has_states)
    on_host = None if imported is not None else state.host.find(own, request.soft, common, least)
    if imported is not None or (on_host is not None and on_host.whole is not None):
        common = 0  # all of it comes from there
    slot = state.slots.take(source, 0 if by_content else common)
    state.take_over(slot, common if slot == source and not by_content else 0)
    if common and by_content:
        adopt_prefix(state, slot, ids, request)
    elif common:
        cache.share(source, slot, common)
    if imported is not None:
        saved, common = imported
        cache.load(slot, saved)
        state.statistics.imported_tokens += common
    if on_host is not None:
        if state.pages is not None and by_content:
            state.pages.grow(slot, on_host.tokens)
        state.host.load(slot, on_host)
        restored = on_host.tokens - common
        request.metrics.restored += restored
        state.statistics.restored_tokens += restored
        state.statistics.file_tokens += on_host.file_tokens
        common = on_host.tokens
    return slot, common


def _spare_slot(state: State) -> int:
    """Return a free slot, emptied."""
    slot = state.slots.take(0, 0)
    state.take_over(slot)
    state.slots.sequences.lengths[slot] = 0
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
        state.put_away(target)
        state.fork(source, target)
        slots.is_running[target] = True
        state.running.move(source, target)
        state.vacate(source)
        ready = np.sort(np.append(ready[:-1], target))
    return ready
