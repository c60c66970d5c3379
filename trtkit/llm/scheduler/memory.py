"""Memory of sequences: slots, pages and the host tier, with reuse of the prefixes that any of them has cached."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache.page_tables import no_pages
from trtkit.llm.cache.prefix_store import PrefixStore
from trtkit.llm.cache.transfers import CopyPages
from trtkit.llm.scheduler.slots import Slots
from trtkit.llm.sequences import common_length
from trtkit.llm.soft_tokens import shared_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.errors import ExecutionError
    from trtkit.llm.cache import PageTables
    from trtkit.llm.cache.transfers import CacheLayout, Transfer
    from trtkit.llm.scheduler.costs import Statistics, StepCosts
    from trtkit.llm.scheduler.options import SchedulerOptions
    from trtkit.llm.scheduler.request import Schedulable
    from trtkit.llm.sequences import Ints

_SPARE_SHARE = 0.01  # share of all pages that admission leaves to running requests


class SequenceMemory:
    """What slots, pages and host memory hold, as numbers that become true once `transfers` are carried out.

    layout: of the caches; decisions only read it. prefixes: the cached prefixes. finds_by_content: whether prefixes are
    found in pages by content rather than in slots. transfers: the pending copies, in order.
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
        self.prefixes = PrefixStore(layout, self.slots, options, costs, statistics, self.transfers, clock)
        self.host, self.finds_by_content = self.prefixes.host, self.prefixes.finds_by_content

    def longest(self, request: Schedulable) -> int:
        """Return the length a request can reach if it gets all pages; beams share only the prompt's pages."""
        if self.pages is None:
            return self._options.max_length
        size, count = self.pages.page_tokens, self.pages.pages - 1
        if request.slots == 1:
            return count * size
        prompt = request.prompt_tokens
        of_each = (count - -(-prompt // size)) // request.slots
        return prompt + max(0, of_each - 1) * size  # a beam's first page is a copy of the prompt's last

    def has_pages(self, request: Schedulable, *, is_alone: bool) -> bool:
        """Whether there are pages for a request's known tokens and the next one, evicting cached prefixes as needed.

        is_alone: whether no other request runs; otherwise a few pages stay free for the running ones.
        """
        pages, prefetches = self.pages, self.prefixes.prefetches
        if pages is None:
            return True
        self.prefixes.register_running()
        matched: list[int] = []
        if self.finds_by_content and not len(self.host.imports) and self.prefixes.is_looked_up(request):
            matched = list(self.prefixes.match_cached(request).pages)
        known = request.prompt_tokens + len(request.generated)
        needed = -(-(known + 1) // pages.page_tokens) - len(matched)
        unused = int((pages.references[matched] == 0).sum())  # matched pages that now count as free
        if self.make_free(needed + unused + (0 if is_alone else int(_SPARE_SHARE * pages.pages))):
            return True
        return prefetches is not None and prefetches.give_way() and self.has_pages(request, is_alone=is_alone)

    def begin(self, request: Schedulable) -> tuple[int, int, int]:
        """Give a request a free slot and pages for its known tokens.

        Returns the slot, the number of tokens found in a cache, and how many of those the host held.
        """
        ids, prompt, restored = request.known_ids(), request.prompt_tokens, request.metrics.restored
        slot, common = self._take_slot(request)
        self.prefixes.release(request)
        self.slots.cached[slot] = self.slots.reused[slot] = common
        self.slots.sequences.start(slot, ids[:prompt], ids[prompt:], request.soft, request.adapter_id)
        self._note_reused(request, common)
        if self.pages is not None:
            self.pages.grow(slot, len(ids))
        return slot, common, request.metrics.restored - restored

    def match_again(self, slot: int, request: Schedulable) -> int:
        """Look up the prefix of a slot that has read nothing yet again, since others may have cached more of it.

        Returns how many more tokens the slot reuses now.
        """
        prefixes = self.prefixes
        if not prefixes.is_looked_up(request) or self.slots.has_computed(slot) or prefixes.is_loading[slot]:
            return 0
        cached = int(self.slots.cached[slot])
        prefixes.register_running()
        match, known = prefixes.match_cached(request), int(self.slots.sequences.lengths[slot])
        if (common := match.tokens) <= cached:
            return 0
        if self.pages is not None and self.finds_by_content:
            self.pages.replace_prefix(slot, match.pages, known)
        else:
            prefixes.copy(match.source, slot, 0, common)
            if self.pages is not None:
                self.pages.grow(slot, known)
        self.slots.cached[slot] = self.slots.reused[slot] = common
        self._note_reused(request, common - cached)
        return common - cached

    def is_computed_by(self, slot: int, request: Schedulable, others: list[int]) -> bool:
        """Whether one of `others`, slots that read chunks in this step, is computing a prefix of this slot's sequence.

        Waiting pays if the other slot is at least as far: its remaining work takes no longer than computing it twice.
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
            common = common_length(sequences.tokens[slot, :length], sequences.tokens[other, :length])
            common -= common % size
            if slots.cached[slot] <= slots.cached[other] < common and common - slots.cached[slot] >= least:
                return True
        return False

    def read(self, slot: int, start: int, stop: int) -> None:
        """Record that a slot has read its tokens from `start` to `stop`; snapshot recurrent states at intervals."""
        slots, spacing = self.slots, self._options.snapshot_tokens
        slots.cached[slot] = stop
        if self.layout.has_states:
            is_due = stop // spacing != start // spacing and stop < slots.sequences.prompt_lengths[slot]
            if is_due:
                self.host.keep(slot)

    def spare_slot(self) -> int:
        """Take a free slot, empty it and return it."""
        slot = self.slots.take(0, 0)
        self._take_over(slot)
        self.slots.sequences.lengths[slot] = 0
        return slot

    def fork(self, source: int, target: int) -> None:
        """Copy the sequence and cache of `source` to `target`, except for a prefix that they share already."""
        slots, tokens = self.slots, self.slots.sequences.tokens
        length = int(slots.cached[source])
        keys = slots.sequences.adapter_keys
        known = min(length, int(slots.cached[target])) if keys[source] == keys[target] else 0
        start = 0
        if known and tokens[source, 0] == tokens[target, 0]:  # usually they share nothing
            start = common_length(tokens[source, :known], tokens[target, :known])
            alike = shared_length(slots.sequences.soft.get(source), slots.sequences.soft.get(target))
            start = start if alike is None else min(start, alike)
        self.prefixes.copy(source, target, start, length)
        slots.sequences.copy(source, target)
        slots.cached[target] = length

    def move(self, source: int, target: int) -> None:
        """Copy the sequence of `source` to `target`, a free slot, where it continues."""
        self.prefixes.offload(target)
        self.fork(source, target)
        self.slots.is_running[target] = True

    def leave(self, slot: int, *, is_findable: bool = True) -> None:
        """Free a slot. Its cache can still be shared: in the slot or, if `is_findable`, in its pages."""
        self.prefixes.await_load(slot)
        if is_findable:
            self.prefixes.register(slot)
        self.slots.leave(slot, 1 + self._options.guesses)
        if self.finds_by_content:
            self.empty(slot)

    def empty(self, slot: int) -> None:
        """Discard a slot's cache and release its pages."""
        self.slots.cached[slot] = 0
        if self.pages is not None:
            self.pages.release(slot)

    def make_free(self, needed: int) -> bool:
        """Release pages of ended sequences, the oldest first, until enough are free; return whether they are."""
        pages = self.pages
        assert pages is not None
        while pages.free < needed:
            slot = self.slots.oldest_ended(pages.counts[: self.slots.count])
            if slot is None:
                break
            self.prefixes.offload(slot)
            self.empty(slot)
        return pages.free >= needed

    def reserve(self, slots: Ints, counts: Ints) -> bool:
        """Allocate pages for `counts` [R] more tokens of `slots` [R]; shared pages written to are copied first.

        Unused prefixes are evicted. Returns False, with nothing allocated, if there are not enough pages.
        """
        pages = self.pages
        if pages is None or not slots.size:
            return True
        starts = self.slots.cached[slots]
        stops = np.minimum(starts + counts, self._options.max_length)
        most = 2 * len(slots) + int(counts.sum()) // pages.page_tokens  # a partial page on either side of each row
        if pages.free < most and not self.make_free(pages.needed(slots, starts, stops)):
            prefetches = self.prefixes.prefetches
            return prefetches is not None and prefetches.give_way() and self.reserve(slots, counts)
        copies = pages.reserve(slots, starts, stops)
        if copies.sources:
            self.transfers.append(CopyPages(tuple(copies.sources), tuple(copies.targets)))
        return True

    def lacks(self, slots: Ints, counts: Ints) -> ExecutionError:
        """Return the error for tokens that `reserve` found no pages for."""
        assert self.pages is not None
        starts = self.slots.cached[slots]
        stops = np.minimum(starts + counts, self._options.max_length)
        return no_pages(self.pages.needed(slots, starts, stops), self.pages.free)

    def steps_that_fit(self, slots: Ints, most: int) -> int:
        """Return how many decode steps of `slots` [R], at most `most`, have pages without evicting to the host."""
        pages = self.pages
        if pages is None or not slots.size:
            return most
        free, starts = pages.free - (pages.tree.unused if pages.on_evict is not None else 0), self.slots.cached[slots]

        def fits(steps: int) -> bool:
            return pages.needed(slots, starts, np.minimum(starts + steps, self._options.max_length)) <= free

        return most if fits(most) else bisect_left(range(most), 1, key=lambda steps: not fits(steps + 1))

    def take(self) -> tuple[tuple[Transfer, ...], tuple[tuple[int, int, int], ...]]:
        """Return the transfers and page-table changes decided since the last call.

        The caller carries them out before the next decision.
        """
        transfers: tuple[Transfer, ...] = ()
        if self.transfers:  # nothing else changes positions
            transfers = tuple(self.transfers)
            self.transfers.clear()
            self.slots.follow()
        return transfers, () if self.pages is None else tuple(self.pages.changes())

    def _take_slot(self, request: Schedulable) -> tuple[int, int]:
        """Take a free slot; return it and how many of the request's tokens its cache starts with."""
        match, by_content = self.prefixes.match(request), self.finds_by_content
        common = 0 if by_content else match.common
        slot = self.slots.take(match.source, common)
        self._take_over(slot, common if slot == match.source else 0)
        self.prefixes.load(slot, match, request)
        return slot, match.tokens

    def _take_over(self, slot: int, common: int = 0) -> None:
        """Keep the first `common` tokens of a slot's cache; the rest is offloaded to the host."""
        if common < self.slots.cached[slot]:
            self.prefixes.offload(slot)
        if not common:
            self.empty(slot)

    def _note_reused(self, request: Schedulable, tokens: int) -> None:
        request.metrics.reused += tokens
        self._statistics.reused_tokens += tokens
