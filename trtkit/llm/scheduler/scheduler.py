"""The scheduler: which requests run in the next step, in which slots, with which pages and prompt chunks."""

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
"""How many of the next waiting requests have their blocks loaded from the host before they get a slot."""


class TokensInFlight(Exception):  # noqa: N818 (nothing is wrong: tokens have to be collected first)
    """A request with tokens in flight would have to be preempted or its recurrent states saved.

    Collect the tokens, then ask for the step again.
    """


@dataclass(eq=False)
class Scheduler(Generic[T]):
    """Owns the request queue, slots, page tables, the index of cached prefixes and the budgets. It computes nothing.

    `schedule` returns the next step. Whoever carries it out reports back: `read` for each chunk, new tokens appended to
    `slots.sequences`, `finish`, and `end_step` last. `changes` collects slots taken and left; the caller empties it.
    No decision here changes a request's tokens.

    A decision copies nothing and depends on no action's result, with one exception: whether a file of cached blocks is
    intact, since that decides how much of a prompt is cached. Only adapters are written immediately.

    layout: of the caches. clock: returns the time in seconds. adapters: None if the network takes none. costs: measured
    durations of steps.
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
        """Create the queue, the slots and their memory."""
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
        """Whether a request waits, runs or has ended without being returned."""
        return bool(self.running.requests or self.queue or self.ended)

    # Requests

    def submit(self, request: T) -> None:
        """Queue a request. Raises RequestError if its prompt exceeds all pages, OverloadedError for a full queue."""
        self.check(request)
        self.queue.add(request, request.metrics.arrived_s)

    def check(self, request: T) -> None:
        """Raise RequestError if the prompt does not fit into all pages together."""
        pages = self.memory.pages
        if pages is not None and request.prompt_tokens >= self.memory.longest(request):
            held = f"{pages.pages - 1} pages of {pages.page_tokens} tokens"
            what = f"the prompt has {request.prompt_tokens} tokens; the caches have {held}"
            beams = f" for {request.slots} beams" if request.slots > 1 else ""
            raise RequestError(what + beams, request.id, "shorten it, or give the caches more memory")

    def cancel(self, request_id: str) -> bool:
        """Cancel a waiting or running request. Return False for an unknown id."""
        request = self.queue.remove(request_id)
        slots = self.running.slots_of(request_id)
        if request is not None:
            self.report(request, list(request.generated), "abort")
        elif slots:
            self.finish(slots[0], "abort")
        return request is not None or bool(slots)

    def finish(self, slot: int, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the request that runs in a slot; a beam search leaves all its slots."""
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
        """Add an ended request to those that `end_step` returns."""
        request.metrics.finished_s = self.clock()
        self.memory.prefixes.release(request)
        self.ended.append(Ended(request, generated, reason, stop_reason, beams))

    # A step

    def schedule(self, now_s: float, launched: Ints | None = None, *, in_flight: bool = False) -> Batch:
        """Return the next step.

        launched: slots whose decode step was launched already, as returned by `schedule_ahead`. in_flight: whether the
        host does not know all drawn tokens yet. Raises TokensInFlight if it must know them first; decisions made so far
        are kept.
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
            self.memory.prefixes.land(due_s)  # nothing else can run until the blocks arrive
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
        """Return the slots that decode and the prompt chunks to read."""
        decode = self._decoding(self._gather(self.ready())) if launched is None else launched
        all_decode = launched is None and len(decode) == len(self.running.requests)
        chunks = [] if all_decode else self._chunks(len(decode))
        if chunks and self.memory.pages is not None:
            chunks = self._with_pages_of(chunks)
        return decode, chunks

    def schedule_ahead(self, *, in_flight: bool = False) -> Batch:
        """Return a decode step of the slots that are decoding already. Raises as `schedule` does."""
        self._in_flight = in_flight
        return self._batch(self._decoding(self.ready()))

    def copies(self) -> Batch:
        """Return the copies decided outside of a step, as a batch that computes nothing."""
        return self._batch(np.zeros(0, np.int64))

    def ready(self) -> Ints:
        """Return the sorted slots that can decode: all but the last token cached, and more to generate."""
        lengths = self.slots.sequences.lengths
        has_all = self.memory.prefixes.without_loading(self.slots.cached + ONE == lengths)
        ready: Ints = (has_all & (lengths < self.running.ends)).nonzero()[0]
        return ready

    def read(self, chunk: Chunk) -> bool:
        """Record that a chunk is in the cache; return whether its prompt is now complete."""
        self.statistics.prompt_tokens += chunk.count
        self.memory.read(chunk.slot, chunk.start, chunk.start + chunk.count)
        return chunk.start + chunk.count == int(self.slots.sequences.lengths[chunk.slot])

    def end_step(self, batch: Batch, started_s: float, copied_s: float = 0.0, steps: int = 1) -> list[Ended[T]]:
        """Account for a step that began at `started_s`; return the requests that have ended.

        copied_s: the part of its time spent on copies. steps: how many identical decode steps were run in a row; their
        costs are then noted by the caller.
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
        """Return a batch with the preemptions, copies and page changes decided since the last one."""
        transfers, pages = self.memory.take()
        preempted: tuple[int, ...] = ()
        if self._preempted:
            preempted, self._preempted = tuple(self._preempted), []
        return Batch(decode, prefill, preempted, transfers, pages)

    def _in_whole_tiles(self, decode: Ints, groups: list[list[Chunk]]) -> list[list[Chunk]]:
        """Return the chunks of each call, cut so that calls fill whole tiles; decoding slots are in the first call."""
        tile = self.options.token_tile
        if not self.options.is_packed or tile == 1:
            return groups
        rows = rows_between(decode)
        return [in_whole_tiles(group, 0 if number else rows, tile, self.slots) for number, group in enumerate(groups)]

    def _note_service(self, decode: Ints, chunks: list[Chunk]) -> None:
        """Record which requests the step serves, before some of them end; the schedule charges them for it."""
        requests = self.running.requests
        decoding, reading = (
            [requests[slot] for slot in slots if slot in requests]
            for slots in (decode.tolist(), [chunk.slot for chunk in chunks])
        )
        served = {id(request) for request in (*decoding, *reading)}
        idle = [request for request in requests.values() if id(request) not in served]
        self._service = Service(decoding, reading, idle)

    def _chunks(self, decoding: int) -> list[Chunk]:
        """Return the prompt chunks to read while `decoding` slots decode: at least one token, so that prompts progress.

        Slots that have read nothing yet look up their prefix again: other slots may have cached it in the meantime. If
        one is computing it in this very step, the slot waits.
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
            if chunks and self.memory.is_computed_by(
                slot, self.running.requests[slot], [chunk.slot for chunk in chunks]
            ):
                continue
            chunks.append(next_chunk(slots, slot, min(budget, self.options.max_chunk)))
            budget -= chunks[-1].count
        return chunks

    # Admission

    def _admit_waiting(self) -> None:
        """Give slots to waiting requests in schedule order, preempting lower levels if no slot is free."""
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
        """Let requests overtake `first`, which waits for room for its adapter, if they cannot delay it.

        They take free slots only and preempt nothing. `first` gets the next slot once its adapter fits.
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
        """Whether a request's adapter is on the device or fits there."""
        adapter = request.adapter
        return self.adapters is None or adapter is None or self.adapters.can_hold(adapter, self.running.adapters)

    def _is_harmless(self, request: T, first: T) -> bool:
        """Whether a request cannot delay `first`: it has no adapter, or one that fits next to that of `first`."""
        running, adapter = self.running.adapters, first.adapter
        if self.adapters is None or adapter is None or request.adapter is None:
            return True
        return request.adapter.id.number in self.adapters.beside(adapter, running)

    def _make_room(self, request: T) -> bool:
        """Preempt requests on lower levels until enough slots are free; return whether they are."""
        if self.slots.free + len(self._to_preempt(request)) < request.slots:
            return False
        self._need_known_tokens()
        while self.slots.free < request.slots:
            if not self._preempt_for(request):
                return False
        return True

    def _admit(self, request: T) -> None:
        """Move a request from the queue into free slots, of which there are enough."""
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
        """Raise TokensInFlight if recurrent states would be saved while tokens are in flight.

        Such a state has read every known token, so it could not resume: the logits of the last one would be lost.
        """
        if self.layout.has_states and self._in_flight:
            raise TokensInFlight

    def _preempt_for(self, request: T) -> bool:
        """Preempt the latest request on the lowest level below that of `request`; return whether there is one."""
        candidates = self._to_preempt(request)
        if candidates:
            self.queue.put_back(self._preempt(candidates[-1]))
        return bool(candidates)

    def _to_preempt(self, request: T) -> list[int]:
        """Return the slots that may be preempted for a request; the last one is preempted first."""
        slots = self.running.to_preempt(request.standing.level)
        return [slot for slot in slots if self.memory.host.can_retain(slot)] if self.queue.policy.keeps_work else slots

    def _preempt(self, slot: int) -> T:
        """Preempt the request in a slot; it keeps its tokens and resumes from them later."""
        prompt_length = int(self.slots.sequences.prompt_lengths[slot])
        most = prompt_length if self.running.is_beam[slot] else None  # a beam search starts over
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
        """Preempt the request that is last in schedule order, unless it runs alone; return whether it was preempted."""
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
        """Return the sorted slots that get pages for their next tokens; if pages run out, requests are preempted."""
        if self.memory.pages is None:
            return ready
        return self._with_pages(ready, np.full(len(ready), 1 + self.options.guesses))

    def _with_pages(self, slots: Ints, counts: Ints) -> Ints:
        """Return those of `slots` [R] that get pages for `counts` [R] more tokens; preempts requests as needed.

        The first request in schedule order is never preempted, so that it can finish.
        """
        while True:
            kept = self.slots.is_running[slots]
            chosen = slots[kept]
            if self.memory.reserve(chosen, counts[kept]):
                return chosen
            self._need_known_tokens()
            if not self._preempt_last():
                raise self.memory.lacks(chosen, counts[kept])  # no other request has pages

    def _with_pages_of(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks that get pages; preempts as `_with_pages` does."""
        slots, counts = (np.array([getattr(chunk, name) for chunk in chunks]) for name in ("slot", "count"))
        kept = set(self._with_pages(slots, counts).tolist())
        return [chunk for chunk in chunks if chunk.slot in kept]

    def _gather(self, decode: Ints) -> Ints:
        """Move scattered sequences into free slots between them, so that calls span few idle rows; return the slots."""
        while are_scattered(decode) and not self.running.groups:
            source = int(decode[-1])
            first = int(decode[0])
            target = first + int(self.slots.is_running[first:source].argmin())  # the first free slot, if there is one
            if self.slots.is_running[target]:
                break
            if self._in_flight:  # a token in flight arrives in the slot that drew it
                raise TokensInFlight
            self.memory.move(source, target)
            self.running.move(source, target)
            self.changes.append(SlotMoved(source, target))
            self.memory.leave(source)
            index = int(decode.searchsorted(target))
            decode[index + 1 :] = decode[index:-1]
            decode[index] = target
        return decode

    def _leave(self, slot: int, *, is_findable: bool = True) -> T:
        """Free a slot; return the request that ran in it."""
        self.changes.append(SlotLeft(slot))
        self.memory.leave(slot, is_findable=is_findable)
        return self.running.remove(slot)
