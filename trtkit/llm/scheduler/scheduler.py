"""The scheduler: which requests run next, in which slots, with which pages, reading which chunks of their prompts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.scheduler.batch import (
    MOST_PADDING,
    Batch,
    CallForm,
    PrefixMatched,
    SlotChange,
    SlotLeft,
    SlotMoved,
    SlotTaken,
    are_scattered,
    group_chunks,
    in_whole_tiles,
    next_chunk,
    rows_between,
)
from trtkit.llm.scheduler.costs import Statistics, StepCosts
from trtkit.llm.scheduler.memory import SequenceMemory
from trtkit.llm.scheduler.queue import RequestQueue, Service
from trtkit.llm.scheduler.request import Ended, T
from trtkit.llm.scheduler.running import BeamGroup, Running
from trtkit.llm.sequences import ONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.adapters import Adapters
    from trtkit.llm.cache.transfers import CacheLayout
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.llm.scheduler.options import SchedulerOptions
    from trtkit.llm.scheduler.request import FinishReason, Hypothesis
    from trtkit.llm.sequences import Ints


_PREFETCHED = 4
"""Requests in turn for which the host's blocks are loaded before they have a slot."""


class TokensInFlight(Exception):  # noqa: N818 (nothing is wrong: tokens have to be collected first)
    """A request whose last tokens the host does not know yet would be preempted, and its recurrent states saved.

    After they are known, the same question has an answer.
    """


@dataclass(eq=False)
class Scheduler(Generic[T]):
    """Owns the request queue, slots, page tables, the index of cached prefixes and budgets. It computes nothing.

    `schedule` returns the next step; who carries it out tells what came of it: `read` for chunks, tokens appended to
    `slots.sequences`, `finish`, then `end_step`. `changes` says which slots were taken and left since it was last
    emptied. A request's tokens depend on nothing that is decided here.

    Nothing is copied while it decides, and one result of an action enters a decision as it is made: whether a file of
    cached blocks is sound, since that is how much of a prompt is cached. Adapters alone are written at once.

    layout: of the caches. clock: gives the time in seconds. adapters: None if the network takes none. costs: what steps
    have taken.
    """

    layout: CacheLayout
    options: SchedulerOptions
    clock: Callable[[], float] = time.monotonic
    adapters: Adapters | None = None
    costs: StepCosts = field(default_factory=StepCosts)
    statistics: Statistics = field(default_factory=Statistics)
    changes: list[SlotChange[T]] = field(default_factory=list)
    ended: list[Ended[T]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make what depends on the number of slots."""
        options = self.options
        self.queue: RequestQueue[T] = RequestQueue(options)
        self.running: Running[T] = Running(options.slots)
        self.memory = SequenceMemory(self.layout, options, self.costs, self.statistics, self.clock)
        self.slots = self.memory.slots
        self._budget = options.token_budget or options.max_chunk * (options.slots if options.in_blocks else 1)
        is_packed = options.is_packed
        takes_any_slots = is_packed and self.memory.finds_by_content
        most_tokens = options.max_chunk if is_packed else None
        padding = math.inf if options.in_blocks else MOST_PADDING
        self._call_form = CallForm(options.max_length, most_tokens, padding, needs_neighbors=not takes_any_slots)
        self._in_flight = False
        self._preempted: list[int] = []
        self._service: Service[T] | None = None

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running.requests or self.queue or self.ended)

    # Requests

    def submit(self, request: T) -> None:
        """Take a request. Raises RequestError if all pages cannot hold its prompt, OverloadedError for a full queue."""
        self.check(request)
        self.queue.add(request, request.metrics.arrived_s)

    def check(self, request: T) -> None:
        """Raise RequestError for a prompt that all pages together cannot hold."""
        pages = self.memory.pages
        if pages is not None and request.prompt_tokens >= self.memory.longest(request):
            held = f"{pages.pages - 1} pages of {pages.page_tokens} tokens"
            what = f"the prompt has {request.prompt_tokens} tokens; the caches have {held}"
            beams = f" for {request.slots} beams" if request.slots > 1 else ""
            raise RequestError(what + beams, request.id, "shorten it, or give the caches more memory")

    def cancel(self, request_id: str) -> bool:
        """End a request with what it has. Return whether there was one."""
        request = self.queue.remove(request_id)
        slots = self.running.slots_of(request_id)
        if request is not None:
            self.report(request, list(request.generated), "abort")
        elif slots:
            self.finish(slots[0], "abort")
        return request is not None or bool(slots)

    def finish(self, slot: int, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the request that runs in a slot, in all its slots."""
        group = self.running.groups.get(slot)
        generated, shares = self.slots.sequences.known(slot), self.options.shares_prefixes
        if group is None:
            self.report(self._leave(slot, is_findable=shares), generated, reason, stop_reason)
            return
        for beam in group.all_slots:
            self._leave(beam, is_findable=shares)
        beams = () if group.search is None else group.search.hypotheses
        self.report(group.request, beams[0].token_ids if beams else generated, reason, stop_reason, beams)

    def report(
        self,
        request: T,
        generated: Ints | list[int],
        reason: FinishReason,
        stop_reason: int | str | None = None,
        beams: tuple[Hypothesis, ...] = (),
    ) -> None:
        """Put a request that has ended among those of this step."""
        request.metrics.finished_s = self.clock()
        self.memory.prefixes.release(request)
        self.ended.append(Ended(request, generated, reason, stop_reason, beams))

    # A step

    def schedule(self, now_s: float, launched: Ints | None = None, *, in_flight: bool = False) -> Batch:
        """Return the next step.

        launched: slots that decode already, as `schedule_ahead` has returned them. in_flight: whether tokens were drawn
        that the host does not know. Raises TokensInFlight if they have to be collected first; what was decided stays.
        """
        self._in_flight = in_flight
        for request in self.queue.wake(now_s):
            what = f"its deadline passed after {request.scheduling.deadline_s:g} s in the queue"
            self.report(request, [], "error", what)
        if self.options.copies_in_background:
            self.memory.prefixes.land(now_s)
        self._admit_waiting()
        if self.options.copies_in_background:
            self.memory.prefixes.land(now_s)
        decode, chunks = self._work(launched)
        if not len(decode) and not chunks and (due_s := self.memory.prefixes.next_arrival_s) < math.inf:
            self.memory.prefixes.land(due_s)  # there is nothing else to do
            decode, chunks = self._work(launched)
        if self.queue.counts:
            self._note_service(decode, chunks)
        if launched is None and self._preempted:
            decode = decode[self.slots.is_running[decode]]
        if self.options.copies_in_background:
            if not self.slots.free:
                self.memory.prefixes.prefetch(self.queue.upcoming(_PREFETCHED))
            self.memory.prefixes.save_ahead(
                lambda: self.running.in_order(np.array(list(self.running.requests), np.int64))
            )
        if not chunks:
            return self._batch(decode)
        return self._batch(decode, self._in_whole_tiles(decode, group_chunks(chunks, self._call_form)))

    def _work(self, launched: Ints | None) -> tuple[Ints, list[Chunk]]:
        """Return the slots that decode, and the chunks that are read."""
        decode = self._decoding(self._gather(self.ready())) if launched is None else launched
        all_decode = launched is None and len(decode) == len(self.running.requests)
        chunks = [] if all_decode else self._chunks(len(decode))
        if chunks and self.memory.pages is not None:
            chunks = self._with_pages_of(chunks)
        return decode, chunks

    def schedule_ahead(self, *, in_flight: bool = False) -> Batch:
        """Return a step of those who decode already. Raises as `schedule` does."""
        self._in_flight = in_flight
        return self._batch(self._decoding(self.ready()))

    def copies(self) -> Batch:
        """Return what was decided outside of a step."""
        return self._batch(np.zeros(0, np.int64))

    def ready(self) -> Ints:
        """Return the slots, in order, whose last token alone is not in the cache, and that have more to generate."""
        lengths = self.slots.sequences.lengths
        has_all = self.memory.prefixes.without_loading(self.slots.cached + ONE == lengths)
        ready: Ints = (has_all & (lengths < self.running.ends)).nonzero()[0]
        return ready

    def read(self, chunk: Chunk) -> bool:
        """Note that a chunk is in the cache; return whether its prompt is complete."""
        self.statistics.prompt_tokens += chunk.count
        self.memory.read(chunk.slot, chunk.start, chunk.start + chunk.count)
        return chunk.start + chunk.count == int(self.slots.sequences.lengths[chunk.slot])

    def end_step(self, batch: Batch, started_s: float, copied_s: float = 0.0, steps: int = 1) -> list[Ended[T]]:
        """Count a step that began at `started_s`; return who has ended. copied_s: time of it that copies took.

        steps: decode steps like it, one after the other; who has run several notes their costs.
        """
        ended_s, tokens = self.clock(), batch.prompt_tokens
        if self._service is not None:
            service, self._service = self._service, None
            service = replace(service, seconds=ended_s - started_s, ended_s=ended_s, prompt_tokens=tokens, tokens=steps)
            if self.queue.account(service):
                self.running.order_again()
        if steps == 1:
            self.costs.note(ended_s - started_s - copied_s, tokens, decodes=bool(batch.decode.size))
        if self.adapters is not None:
            self.adapters.evict_unloaded(self.running.adapters)
        ended, self.ended = self.ended, []
        return ended

    def _batch(self, decode: Ints, prefill: Sequence[Sequence[Chunk]] = ()) -> Batch:
        """Return a step with all that was decided since the last one."""
        transfers, pages = self.memory.take()
        preempted: tuple[int, ...] = ()
        if self._preempted:
            preempted, self._preempted = tuple(self._preempted), []
        return Batch(decode, prefill, preempted, transfers, pages)

    def _in_whole_tiles(self, decode: Ints, groups: list[list[Chunk]]) -> list[list[Chunk]]:
        """Return the chunks of each call, cut to whole tiles; slots decode in the first."""
        tile = self.options.token_tile
        if not self.options.is_packed or tile == 1:
            return groups
        rows = rows_between(decode)
        return [in_whole_tiles(group, 0 if number else rows, tile, self.slots) for number, group in enumerate(groups)]

    def _note_service(self, decode: Ints, chunks: list[Chunk]) -> None:
        """Note whom a step serves, since turns depend on it: some of them will have ended when it is over."""
        requests = self.running.requests
        decoding, reading = (
            [requests[slot] for slot in slots if slot in requests]
            for slots in (decode.tolist(), [chunk.slot for chunk in chunks])
        )
        served = {id(request) for request in (*decoding, *reading)}
        idle = [request for request in requests.values() if id(request) not in served]
        self._service = Service(decoding, reading, idle)

    def _chunks(self, decoding: int) -> list[Chunk]:
        """Return the pieces of prompts to read while `decoding` slots decode: at least one token, so that none starves.

        Prefixes are looked up again for slots that have read nothing: others may have cached them meanwhile, or be
        computing them, which is waited for.
        """
        lengths, slots = self.slots.sequences.lengths, self.slots
        has_unread = slots.is_running & (slots.cached + ONE < lengths)
        unread: Ints = self.memory.prefixes.without_loading(has_unread).nonzero()[0]
        budget = max(1, self._budget - decoding)
        chunks: list[Chunk] = []
        for slot in self.running.in_order(unread) if unread.size else ():
            if budget <= 0:
                break
            if reused := self.memory.match_again(slot, self.running.requests[slot]):
                self.changes.append(PrefixMatched(slot, reused))
            if chunks and self.memory.is_computed_by(slot, self.running.requests[slot], [each.slot for each in chunks]):
                continue
            chunks.append(next_chunk(slots, slot, min(budget, self.options.max_chunk)))
            budget -= chunks[-1].count
        return chunks

    # Admission

    def _admit_waiting(self) -> None:
        """Give slots to waiting requests in turn; preempt requests on lower levels if none are free."""
        if self.options.in_blocks and self.running.requests:
            return
        while (request := self.queue.first()) is not None:
            if not self._has_ranks(request):
                self._admit_past(request)
                return
            if self.slots.free < request.slots and not self._make_room(request):
                return
            while not self._has_pages(request):
                self._need_known_tokens()
                if not self._preempt_for(request):
                    return
            self._admit(request)

    def _admit_past(self, first: T) -> None:
        """Let requests pass the first, which waits for room for its adapter, into free slots if they cannot delay it.

        Nobody is preempted for them. The first one gets the next slot as soon as there is room for its adapter.
        """
        if not self.slots.free:
            return
        for request in self.queue.in_order():
            if request is first or not self._is_harmless(request, first):
                continue
            if self.slots.free < request.slots or not self._has_pages(request):
                return
            self._admit(request)

    def _has_pages(self, request: T) -> bool:
        return self.memory.has_pages(request, is_alone=not self.running.requests)

    def _has_ranks(self, request: T) -> bool:
        """Whether a request's adapter is in the device's memory, or has room there."""
        adapter = request.adapter
        return self.adapters is None or adapter is None or self.adapters.can_hold(adapter, self.running.adapters)

    def _is_harmless(self, request: T, first: T) -> bool:
        """Whether a request keeps no ranks that `first` waits for: it has no adapter, or one that may stay in use."""
        running, adapter = self.running.adapters, first.adapter
        if self.adapters is None or adapter is None or request.adapter is None:
            return True
        return request.adapter.id.number in self.adapters.beside(adapter, running)

    def _make_room(self, request: T) -> bool:
        """Preempt requests on lower levels; return whether enough slots are free now."""
        if self.slots.free + len(self._to_preempt(request)) < request.slots:
            return False
        self._need_known_tokens()
        while self.slots.free < request.slots:
            if not self._preempt_for(request):
                return False
        return True

    def _admit(self, request: T) -> None:
        """Let a request leave the queue and run, on free slots that there are."""
        self.queue.begin(request)
        if self.adapters is not None and request.adapter is not None:
            self.adapters.hold(request.adapter, self.running.adapters)
        slot, reused, restored = self.memory.begin(request)
        longest = min(self.options.max_length, self.memory.longest(request))
        end = min(request.prompt_tokens + request.max_new_tokens, longest + 1)
        if request.slots == 1:
            self.running.add(slot, request, end)
        else:
            spare = [self.memory.spare_slot() for _ in range(request.slots - 1)]
            self.running.add_group(BeamGroup(request, [slot, *spare]), end)
        self.changes.append(SlotTaken(slot, request, reused, restored))

    # Preemption

    def _need_known_tokens(self) -> None:
        """A state that has read all known tokens could not go on: the logits of the last one are lost."""
        if self.layout.has_states and self._in_flight:
            raise TokensInFlight

    def _preempt_for(self, request: T) -> bool:
        """Preempt the last request on the lowest level below another's; return whether there is one."""
        candidates = self._to_preempt(request)
        if candidates:
            self.queue.put_back(self._preempt(candidates[-1]))
        return bool(candidates)

    def _to_preempt(self, request: T) -> list[int]:
        """Return the slots that can be preempted for a request, the first to be preempted last."""
        slots = self.running.to_preempt(request.standing.level)
        return [slot for slot in slots if self.memory.host.can_retain(slot)] if self.queue.policy.keeps_work else slots

    def _preempt(self, slot: int) -> T:
        """Take a request's slot; it keeps its tokens, and goes on from them when its turn comes again."""
        prompt_length = int(self.slots.sequences.prompt_lengths[slot])
        most = prompt_length if self.running.is_beam[slot] else None  # beams begin again
        retained = self.memory.prefixes.save(slot, most)
        generated: list[int] = self.slots.sequences.known(slot).tolist()
        request = self._leave(slot)
        self._preempted.append(slot)
        request.retained += retained
        request.generated = generated
        request.metrics.preemptions += 1
        self.statistics.preemptions += 1
        self.statistics.swaps += bool(retained)
        return request

    def _preempt_last(self) -> bool:
        """Preempt the request that is last in turn, unless it is alone; return whether it was preempted."""
        in_order = self.running.in_order(np.array(list(self.running.requests), np.int64))
        group = self.running.groups.get(in_order[-1])
        last = in_order[-1:] if group is None else group.all_slots
        if len(last) == len(in_order):
            return False
        requests = [self._preempt(slot) for slot in last]
        if group is not None:
            requests[0].generated = []
        self.queue.put_back(requests[0])
        return True

    def _decoding(self, ready: Ints) -> Ints:
        """Return those of sorted slots that have pages for their next tokens; others are preempted if pages run out."""
        if self.memory.pages is None:
            return ready
        return self._with_pages(ready, np.full(len(ready), 1 + self.options.guesses))

    def _with_pages(self, slots: Ints, counts: Ints) -> Ints:
        """Return those of `slots` [R] that have pages for `counts` [R] more tokens; preempts others as long as needed.

        The first in turn keeps its pages: it can come to its end.
        """
        while True:
            kept = self.slots.is_running[slots]
            chosen = slots[kept]
            if self.memory.reserve(chosen, counts[kept]):
                return chosen
            self._need_known_tokens()
            if not self._preempt_last():
                raise self.memory.lacks(chosen, counts[kept])  # nobody else has pages

    def _with_pages_of(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks that there are pages for; preempts as `_with_pages` does."""
        slots, counts = (np.array([getattr(chunk, name) for chunk in chunks]) for name in ("slot", "count"))
        kept = set(self._with_pages(slots, counts).tolist())
        return [chunk for chunk in chunks if chunk.slot in kept]

    def _gather(self, decode: Ints) -> Ints:
        """Move sequences that are far apart next to each other, where slots between are free; return their slots."""
        while are_scattered(decode) and not self.running.groups:
            source = int(decode[-1])
            first = int(decode[0])
            target = first + int(self.slots.is_running[first:source].argmin())  # the first that is free, if any is
            if self.slots.is_running[target]:
                break
            if self._in_flight:  # the token that a slot draws is in that slot's place
                raise TokensInFlight
            self.memory.move(source, target)
            self.running.move(source, target)
            self.changes.append(SlotMoved(source, target))
            self.memory.leave(source)
            place = int(decode.searchsorted(target))
            decode[place + 1 :] = decode[place:-1]
            decode[place] = target
        return decode

    def _leave(self, slot: int, *, is_findable: bool = True) -> T:
        """Free a slot; return who ran in it."""
        self.changes.append(SlotLeft(slot))
        self.memory.leave(slot, is_findable=is_findable)
        return self.running.remove(slot)
