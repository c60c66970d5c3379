"""Memory of sequences: slots, pages, and the host; prefixes that any of them has cached are found and reused."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache.host.tier import HostTier
from trtkit.llm.cache.imports import Imports
from trtkit.llm.cache.page_tables import no_pages
from trtkit.llm.cache.prefetch import Prefetches
from trtkit.llm.cache.transfers import CopyPages, CopyTokens, DropSequence
from trtkit.llm.scheduler.slots import Slots
from trtkit.llm.sequences import UNKNOWN, keyed
from trtkit.llm.soft_tokens import shared_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtkit.errors import ExecutionError
    from trtkit.llm.cache import PageTables
    from trtkit.llm.cache.host.blocks import Arrival
    from trtkit.llm.cache.transfers import CacheLayout, Transfer
    from trtkit.llm.scheduler.costs import Statistics, StepCosts
    from trtkit.llm.scheduler.options import SchedulerOptions
    from trtkit.llm.scheduler.request import Schedulable
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

_SPARE_SHARE = 0.01  # of all pages, which new requests leave to those that run


class SequenceMemory:
    """Which slot, pages and host memory hold what: numbers, which become true when `transfers` are carried out.

    layout: of the caches, which decisions only read. finds_by_content: whether prefixes are found as
    pages, not in slots. is_loading: [slots], which of them wait for what the host has of them. transfers: what is to be done with the caches, in order.
    """

    def __init__(
        self,
        layout: CacheLayout,
        options: SchedulerOptions,
        costs: StepCosts,
        statistics: Statistics,
        clock: Callable[[], float],
    ) -> None:
        self.layout, self._options, self._statistics = layout, options, statistics
        self.transfers: list[Transfer] = []
        self.slots = Slots(options.slots, options.max_length, layout.positions if layout.has_states else None)
        self.pages: PageTables | None = layout.pages
        if self.pages is not None:
            self.pages.schedule()
        self.finds_by_content = layout.pages is not None and not layout.has_slot_memory
        self.imports = Imports(options.most_imported_bytes)
        self.host = HostTier(layout, self.slots, options, costs, self.transfers, clock)
        self._arrivals: dict[int, Arrival] = {}
        prefetches = self.pages is not None and self.finds_by_content and self.host.link.is_background
        self.prefetches = Prefetches(self.pages, self.host) if self.pages is not None and prefetches else None
        self.is_loading: Bools = np.zeros(options.slots, np.bool_)

    def longest(self, request: Schedulable) -> int:
        """Return how many tokens a request can come to if it has all pages: beams share those of the prompt only."""
        if self.pages is None:
            return self._options.max_length
        size, count = self.pages.page_tokens, self.pages.pages - 1
        if request.slots == 1:
            return count * size
        prompt = request.prompt_tokens
        of_each = (count - -(-prompt // size)) // request.slots
        return prompt + max(0, of_each - 1) * size  # a beam's first page is a copy of the prompt's last

    def has_pages(self, request: Schedulable, *, is_alone: bool) -> bool:
        """Whether there are pages for a request's known tokens and the next one.

        is_alone: whether nobody else runs; if not, a few pages stay free for those that run.
        """
        has_pages = self._has_pages(request, is_alone=is_alone)
        if not has_pages and self.prefetches is not None and self.prefetches.give_way():
            return self._has_pages(request, is_alone=is_alone)
        return has_pages

    def _has_pages(self, request: Schedulable, *, is_alone: bool) -> bool:
        pages = self.pages
        if pages is None:
            return True
        self.register_running()
        ids = request.known_ids()
        matched: list[int] = []
        if self.finds_by_content and not len(self.imports) and self._is_looked_up(request):
            matched = self._matched(pages, request, ids)
            if len(matched) * pages.page_tokens < self._options.min_shared_tokens:
                matched = []
        needed = -(-(len(ids) + 1) // pages.page_tokens) - len(matched)
        unused = int((pages.references[matched] == 0).sum())  # free pages that would not be free any longer
        return self.make_free(needed + unused + (0 if is_alone else int(_SPARE_SHARE * pages.pages)))

    def begin(self, request: Schedulable) -> tuple[int, int, int]:
        """Give a request a free slot, and pages for its known tokens.

        Return the slot, how many of the tokens were cached, and how many of those the host had.
        """
        ids, prompt, restored = request.known_ids(), request.prompt_tokens, request.metrics.restored
        slot, common = self._take_slot(request, ids)
        self.release(request)
        self.slots.cached[slot] = self.slots.reused[slot] = common
        self.slots.sequences.start(slot, ids[:prompt], ids[prompt:], request.soft, request.adapter_id)
        self._note_reused(request, common)
        if self.pages is not None:
            self.pages.grow(slot, len(ids))
        return slot, common, request.metrics.restored - restored

    def match_again(self, slot: int, request: Schedulable) -> int:
        """Let a slot that has read nothing yet begin with what others have cached since it was taken.

        Return how many tokens more it has now.
        """
        if not self._is_looked_up(request) or self.slots.has_computed(slot) or self.is_loading[slot]:
            return 0
        cached = int(self.slots.cached[slot])
        ids = self.slots.sequences.ids(slot)
        self.register_running()
        source, common = self.shared_prefix(ids, request.soft, request.adapter_id.key)
        if common <= cached or common < self._options.min_shared_tokens:
            return 0
        if self.pages is not None and self.finds_by_content:
            self.pages.replace_prefix(slot, self._matched(self.pages, request, ids), len(ids))
        else:
            self._copy(source, slot, 0, common)
            if self.pages is not None:
                self.pages.grow(slot, len(ids))
        self.slots.cached[slot] = self.slots.reused[slot] = common
        self._note_reused(request, common - cached)
        return common - cached

    def is_computed_by(self, slot: int, request: Schedulable, others: list[int]) -> bool:
        """Whether one of the `others`, which read on in this step, is computing what a slot's sequence begins with.

        It is worth waiting for if it is at least as far: what it has left takes no longer than computing it twice.
        """
        slots, sequences, least = self.slots, self.slots.sequences, self._options.min_shared_tokens
        is_shared = self._options.shares_prefixes and not request.needs_whole_prompt and not slots.has_computed(slot)
        if not is_shared or request.soft is not None or self.layout.has_states:
            return False
        size = self.pages.page_tokens if self.pages is not None and self.finds_by_content else 1
        for other in others:
            if sequences.adapter_keys[other] != sequences.adapter_keys[slot] or other in sequences.soft:
                continue
            length = min(int(sequences.lengths[slot]) - 1, int(sequences.lengths[other]))
            is_other = sequences.tokens[slot, :length] != sequences.tokens[other, :length]
            common = int(is_other.argmax()) if is_other.any() else length
            common -= common % size
            if slots.cached[slot] <= slots.cached[other] < common and common - slots.cached[slot] >= least:
                return True
        return False

    def read(self, slot: int, start: int, stop: int) -> None:
        """Note that a slot has read its tokens from `start` to `stop`; recurrent states are saved now and then."""
        slots, spacing = self.slots, self._options.snapshot_tokens
        slots.cached[slot] = stop
        if self.layout.has_states:
            is_due = stop // spacing != start // spacing and stop < slots.sequences.prompt_lengths[slot]
            if is_due:
                self.host.keep(slot)

    def spare_slot(self) -> int:
        """Return a free slot, emptied."""
        slot = self.slots.take(0, 0)
        self._take_over(slot)
        self.slots.sequences.lengths[slot] = 0
        return slot

    def fork(self, source: int, target: int) -> None:
        """Make `target` the same sequence as `source`: its cache, but for what is the same already."""
        slots, tokens = self.slots, self.slots.sequences.tokens
        length = int(slots.cached[source])
        keys = slots.sequences.adapter_keys
        known = min(length, int(slots.cached[target])) if keys[source] == keys[target] else 0
        start = 0
        if known and tokens[source, 0] == tokens[target, 0]:  # mostly they are not alike at all
            is_other = tokens[source, :known] != tokens[target, :known]
            start = int(is_other.argmax()) if is_other.any() else known
            alike = shared_length(slots.sequences.soft.get(source), slots.sequences.soft.get(target))
            start = start if alike is None else min(start, alike)
        self._copy(source, target, start, length)
        slots.sequences.copy(source, target)
        slots.cached[target] = length

    def move(self, source: int, target: int) -> None:
        """Let the sequence of `source` go on in `target`, a free slot."""
        self._offload(target)
        self.fork(source, target)
        self.slots.is_running[target] = True

    def leave(self, slot: int, *, is_findable: bool = True) -> None:
        """Free a slot. Its sequence can still be shared, in the slot or, if `is_findable`, in its pages."""
        self.await_load(slot)
        if is_findable:
            self.register(slot)
        self.slots.leave(slot, 1 + self._options.guesses)
        if self.finds_by_content:
            self.empty(slot)

    def empty(self, slot: int) -> None:
        """Forget what a slot has cached."""
        self.slots.cached[slot] = 0
        if self.pages is not None:
            self.pages.release(slot)

    def shared_prefix(self, ids: Ints, soft: SoftTokens | None = None, adapter_key: int = 0) -> tuple[int, int]:
        """Return the slot whose cache begins most like a prompt, and for how many tokens; pages are found in none."""
        if self.pages is not None and self.finds_by_content:
            return 0, len(self.pages.match(keyed(ids, adapter_key), soft)) * self.pages.page_tokens
        source, common = self.slots.shared_prefix(ids, soft, adapter_key)
        return source, 0 if self.is_loading[source] else common

    # What is copied while steps run

    @property
    def next_arrival_s(self) -> float:
        """When the next slot has what it waits for; infinite if none waits."""
        return min((arrival.due_s for arrival in self._arrivals.values()), default=math.inf)

    def land(self, now_s: float) -> None:
        """Let slots go on that have what the host had of them, and pages be read that were loaded ahead."""
        if self.prefetches is not None:
            self.prefetches.land(now_s)
        for slot in [slot for slot, arrival in self._arrivals.items() if arrival.due_s <= now_s]:
            self.await_load(slot)

    def await_load(self, slot: int) -> None:
        """Let the next call find what is loaded into a slot, however long that takes."""
        arrival = self._arrivals.pop(slot, None)
        if arrival is not None and self.host.blocks is not None:
            self.is_loading[slot] = False
            self.host.blocks.await_load(arrival)

    def prefetch(self, request: Schedulable) -> None:
        """Load what the host has of a request that waits, if there are pages for it and the link is idle."""
        if self.prefetches is None or not self._is_looked_up(request):
            return
        if self.prefetches.may_begin(request.id, request.prompt_tokens + len(request.generated)):
            ids = keyed(request.known_ids(), request.adapter_id.key)
            self.prefetches.begin(request.id, ids, request.soft, self._options.min_shared_tokens)

    def retain(self, slot: int, most: int | None) -> list[bytes]:
        """Let the host keep what a slot has cached, or its first `most` tokens; return the keys to release."""
        self.await_load(slot)
        return self.host.keep(slot, most, is_retained=True)

    def save_ahead(self, running: Callable[[], list[int]]) -> None:
        """Save what slots and pages lose next. running: gives slots in the order of their requests."""

        def taken_next() -> Iterator[int]:
            self.register_running()
            if not self.finds_by_content:
                yield from self.slots.ended()
            yield from (slot for slot in reversed(running()) if not self.is_loading[slot])

        self.host.save_ahead(taken_next)

    def register(self, slot: int) -> None:
        """Let other requests find what a slot has cached, as far as the host knows its tokens."""
        if self.pages is not None and self.finds_by_content:
            sequences = self.slots.sequences
            ids = sequences.tokens[slot, : self.slots.cached[slot]]
            unknown = (ids == UNKNOWN).nonzero()[0]
            ids = sequences.keyed(slot, ids[: unknown[0]] if unknown.size else ids)
            self.pages.register(slot, ids, sequences.soft.get(slot))

    def register_running(self) -> None:
        """Let other requests find what those that run have cached."""
        if self.pages is not None and self.finds_by_content and self._options.shares_prefixes:
            full = self.slots.cached // self.pages.page_tokens > self.pages.registered[: self.slots.count]
            for slot in (full & self.slots.is_running & ~self.is_loading).nonzero()[0].tolist():
                self.register(slot)

    def make_free(self, needed: int) -> bool:
        """Take pages from ended sequences, the oldest first, until enough are free; return whether they are."""
        pages = self.pages
        assert pages is not None
        while pages.free < needed:
            slot = self.slots.oldest_ended(pages.counts[: self.slots.count])
            if slot is None:
                break
            self._offload(slot)
            self.empty(slot)
        return pages.free >= needed

    def reserve(self, slots: Ints, counts: Ints) -> bool:
        """Take the pages of `counts` [R] more tokens of `slots` [R], copies of those that others read too.

        What nobody reads is evicted. Return whether there were enough; if not, nothing is taken.
        """
        pages = self.pages
        if pages is None or not slots.size:
            return True
        starts = self.slots.cached[slots]
        stops = np.minimum(starts + counts, self._options.max_length)
        most = 2 * len(slots) + int(counts.sum()) // pages.page_tokens  # a partial page on either side of each row
        if pages.free < most and not self.make_free(pages.needed(slots, starts, stops)):
            return self.prefetches is not None and self.prefetches.give_way() and self.reserve(slots, counts)
        copies = pages.reserve(slots, starts, stops)
        if copies.sources:
            self.transfers.append(CopyPages(tuple(copies.sources), tuple(copies.targets)))
        return True

    def lacks(self, slots: Ints, counts: Ints) -> ExecutionError:
        """Return the error for tokens that `reserve` has no pages for."""
        assert self.pages is not None
        starts = self.slots.cached[slots]
        stops = np.minimum(starts + counts, self._options.max_length)
        return no_pages(self.pages.needed(slots, starts, stops), self.pages.free)

    def steps_that_fit(self, slots: Ints, most: int) -> int:
        """Return how many of `most` decode steps of `slots` [R] there are pages for, without copies to the host."""
        pages = self.pages
        if pages is None or not slots.size:
            return most
        free, starts = pages.free - (pages.tree.unused if pages.on_evict is not None else 0), self.slots.cached[slots]

        def fits(steps: int) -> bool:
            return pages.needed(slots, starts, np.minimum(starts + steps, self._options.max_length)) <= free

        return most if fits(most) else bisect_left(range(most), 1, key=lambda steps: not fits(steps + 1))

    def take(self) -> tuple[tuple[Transfer, ...], tuple[tuple[int, int, int], ...]]:
        """Return what was decided since the last call, to be carried out before anything else is decided: transfers,
        and what has changed in page tables.
        """
        transfers: tuple[Transfer, ...] = ()
        if self.transfers:
            transfers = tuple(self.transfers)
            self.transfers.clear()
        self.slots.follow()
        return transfers, () if self.pages is None else tuple(self.pages.changes())

    def release(self, request: Schedulable) -> None:
        """Let go of what the host keeps for a request, and of what was loaded for it."""
        if self.prefetches is not None:
            self.prefetches.release(request.id)
        if request.retained:
            self.host.release(request.retained)
            request.retained = []

    def _take_slot(self, request: Schedulable, ids: Ints) -> tuple[int, int]:
        """Return a free slot, and how many of a request's tokens `ids` its cache begins with."""
        if not self._is_looked_up(request):
            return self.spare_slot(), 0
        by_content, statistics, has_states = self.finds_by_content, self._statistics, self.layout.has_states
        source, common = self.shared_prefix(ids, request.soft, request.adapter_id.key)
        common = common if common >= self._options.min_shared_tokens else 0
        least = max(common + 1, self._options.min_shared_tokens)
        compared = keyed(ids, request.adapter_id.key)
        imported = None if request.soft is not None else self.imports.take(compared, least, is_whole=has_states)
        on_host = None if imported is not None else self.host.find(compared, request.soft, common, least)
        if imported is not None or (on_host is not None and on_host.whole is not None):
            common = 0  # all of it comes from there
        slot = self.slots.take(source, 0 if by_content else common)
        self._take_over(slot, common if slot == source and not by_content else 0)
        if common and by_content and self.pages is not None:
            self.pages.adopt(slot, self._matched(self.pages, request, ids))
            if self.prefetches is not None:
                prefetched = min(common, self.prefetches.tokens_of(request.id))
                request.metrics.restored += prefetched
                statistics.restored_tokens += prefetched
        elif common:
            self._copy(source, slot, 0, common)
        if imported is not None:
            saved, common = imported
            number = self.host.sequences.number(saved)
            self.host.load_whole(slot, number, saved.tokens)
            self.transfers.append(DropSequence(number))
            statistics.imported_tokens += common
        if on_host is not None:
            if self.pages is not None and by_content:
                self.pages.grow(slot, on_host.tokens)
            if (arrival := self.host.load(slot, on_host)) is not None:
                self._arrivals[slot], self.is_loading[slot] = arrival, True
            request.metrics.restored += on_host.tokens - common
            statistics.restored_tokens += on_host.tokens - common
            statistics.file_tokens += on_host.file_tokens
            common = on_host.tokens
        return slot, common

    def _copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let `target` hold the first `stop` tokens of `source`, of which it has the first `start`."""
        if source == target:
            return
        if self.pages is not None:
            self.pages.share(source, target, stop)
        if self.pages is None or self.layout.has_slot_memory:
            self.transfers.append(CopyTokens(source, target, start, stop))
        if self.slots.positions is not None:
            self.slots.set_position(target, int(self.slots.positions[source]))

    def _is_looked_up(self, request: Schedulable) -> bool:
        """Whether anything that is cached can be a request's."""
        shares = self._options.shares_prefixes or request.metrics.preemptions > 0 or len(self.imports) > 0
        return shares and not request.needs_whole_prompt

    @staticmethod
    def _matched(pages: PageTables, request: Schedulable, ids: Ints) -> list[int]:
        """Return the pages that hold the longest cached prefix of a request's tokens `ids`."""
        return pages.match(keyed(ids, request.adapter_id.key), request.soft)

    def _take_over(self, slot: int, common: int = 0) -> None:
        """Let a slot begin with its first `common` tokens; the host keeps what else it had."""
        if common < self.slots.cached[slot]:
            self._offload(slot)
        if not common:
            self.empty(slot)

    def _offload(self, slot: int) -> None:
        """Let the host keep what a slot has, which will be overwritten; pages are kept when they are."""
        if not self.finds_by_content and self._options.shares_prefixes:
            self.host.keep(slot)

    def _note_reused(self, request: Schedulable, tokens: int) -> None:
        request.metrics.reused += tokens
        self._statistics.reused_tokens += tokens
