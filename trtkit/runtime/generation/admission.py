"""Who gets a slot: in turn, on the cached beginning that suits best, and from whom of less priority."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.runtime.generation.beams import BeamSearch
from trtkit.runtime.generation.request import check_prompt
from trtkit.runtime.generation.running import Group

if TYPE_CHECKING:
    from trtkit.runtime.decoder import DecoderExecution
    from trtkit.runtime.generation.request import Request
    from trtkit.runtime.generation.state import State
    from trtkit.runtime.generation.waiting import Waiting
    from trtkit.runtime.sequences import Ints


def check_request(request: Request, execution: DecoderExecution) -> None:
    """Raise RequestError for a request that no run could serve."""
    params = request.settings.params
    check_prompt(request.prompt_ids, execution.vocab_size, execution.max_length, request.id)
    if request.slots > execution.slots:
        what = f"{request.slots} beams need as many slots, there are {execution.slots}"
        raise RequestError(what, "num_beams", "ask for fewer, or open more slots")
    if params.prompt_logprobs is not None and not execution.has_all_logits:
        what = "the engine gives logits of the last token only"
        raise RequestError(what, "prompt_logprobs", "build with `--set llm.logits=all`")


def admit_waiting(state: State, waiting: Waiting, min_shared_tokens: int) -> None:
    """Give slots to waiting requests, from others of less priority where none is free."""
    while (request := waiting.first()) is not None:
        if state.slots.free < request.slots and not _make_room(state, waiting, request):
            return
        waiting.pop()
        _admit(state, request, min_shared_tokens)


def _make_room(state: State, waiting: Waiting, request: Request) -> bool:
    """Preempt requests of less priority; return whether enough slots are free now."""
    candidates = state.running.giving_way(request.priority)
    if state.slots.free + len(candidates) < request.slots:
        return False
    while state.slots.free < request.slots:
        waiting.put_back(_preempt(state, candidates.pop()))
    return True


def _preempt(state: State, slot: int) -> Request:
    """Take a request's slot; it keeps its tokens, and goes on from them when its turn comes again."""
    generated = state.slots.sequences.generated(slot).tolist()
    request = state.leave(slot)
    request.generated = generated
    request.prompt_logprobs.clear()
    request.metrics.preemptions += 1
    state.statistics.preemptions += 1
    return request


def _admit(state: State, request: Request, min_shared_tokens: int) -> None:
    """Let a request run, on free slots that there are."""
    slots, prompt = state.slots, request.prompt_ids
    ids = [*prompt, *request.generated]
    is_whole = request.settings.params.prompt_logprobs is not None
    source, common = (0, 0) if is_whole else slots.shared_prefix(ids, request.soft)
    common = common if common >= min_shared_tokens else 0
    slot = slots.take(source, common)
    if common:
        state.execution.cache.share(source, slot, common)
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
