"""An engine's caches by its own code, without what they hold: slots or pages, and host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache import PageTables, block_keys, contents
from trtkit.llm.scheduler.pages import pages_to_begin
from trtkit.simulation.host import host_tier
from trtkit.simulation.slots import SimulatedSlots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.llm.cache.host.tier import HostPrefix
    from trtkit.llm.scheduler.costs import StepCosts
    from trtkit.llm.sequences import Ints
    from trtkit.simulation.host import Clock
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.requests import SimulatedRequest


class SimulatedCaches:
    """Who has which slot and which pages, and what is found of a prompt. longest: tokens that one sequence can have.

    If prompts share nothing, only preempted requests are looked up, and only they are kept on the host.
    """

    def __init__(self, options: ReplicaOptions, clock: Clock, costs: StepCosts) -> None:
        self._options, self._clock = options, clock
        self.slots = SimulatedSlots(options.slots, options.slot_tokens, options.block_tokens)
        self.pages, self.longest = None, options.slot_tokens
        if options.pages is not None:
            self.pages = PageTables(options.slots, options.pages + 1, options.page_tokens, options.slot_tokens)
            self.longest = min(options.slot_tokens, options.pages * options.page_tokens)
        self.host = host_tier(options, self.slots, self.pages, clock, costs)

    @property
    def reserved_tokens(self) -> int:
        """Places that sequences hold, used or not."""
        if self.pages is None:
            return (self.slots.count - self.slots.free) * self._options.slot_tokens
        return int(self.pages.counts.sum()) * self.pages.page_tokens

    def holds(self, request: SimulatedRequest) -> bool:
        """Whether a prompt fits if it is alone; an answer ends where its memory does."""
        is_short = self.pages is None or request.prompt_tokens < (self.pages.pages - 1) * self.pages.page_tokens
        return is_short and request.prompt_tokens <= self.longest

    def shared(self, request: SimulatedRequest) -> tuple[int, int]:
        """Return the slot whose cache begins most like a request, and for how many tokens; pages are found in none."""
        if not self._is_looked_up(request):
            return 0, 0
        ids = self.slots.tokens_of(request, request.length)
        if self.pages is None:
            source, common = self.slots.shared_prefix(ids)
        else:
            source, common = 0, len(self.pages.match(ids)) * self.pages.page_tokens
        return source, common if common >= self._options.min_shared_tokens else 0

    def known_tokens(self, request: SimulatedRequest) -> int:
        """Return how many of a request's tokens are cached, on the host among them."""
        common, blocks = self.shared(request)[1], self.host.blocks
        if blocks is None or blocks.is_empty or not self._is_looked_up(request):
            return common
        ids, place = self.slots.tokens_of(request, request.length - 1), common // blocks.tokens
        keys = block_keys(contents(ids, blocks.tokens))
        while place < len(keys) and blocks.holds(keys[place]):
            place += 1
        return max(common, place * blocks.tokens)

    def has_room(self, request: SimulatedRequest) -> bool:
        """Whether there are pages for a request's known tokens and the next one."""
        pages = self.pages
        if pages is None:
            return True
        matched = []
        if self._options.block_tokens:
            self._register_running()
        if self._is_looked_up(request):
            matched = pages.match(self.slots.tokens_of(request, request.length))
        is_alone = not self.slots.is_running.any()
        return pages_to_begin(pages, request.length, matched, is_alone=is_alone) <= pages.free

    def take(self, request: SimulatedRequest) -> tuple[int, int]:
        """Give a request a slot and memory; return how many of its tokens are there, and how many the host had."""
        pages, (source, common) = self.pages, self.shared(request)
        on_host = self._on_host(request, common)
        request.slot = slot = self.slots.take(source, common if pages is None else 0)
        self._take_over(slot, common if slot == source and pages is None else 0)
        if pages is not None and common:
            pages.adopt(slot, pages.match(self.slots.tokens_of(request, request.length)))
        cached = common
        if on_host is not None:
            cached = on_host.tokens
            if pages is not None:
                pages.grow(slot, cached)
            self.host.load(slot, on_host)
        self.host.release(request.claims)
        request.claims = []
        restored, cached = cached - common, self._with_imported(request, cached)
        self.slots.start(request, cached)
        if pages is not None:
            pages.grow(slot, request.length)
        return cached, restored

    def keep(self, request: SimulatedRequest) -> None:
        """Let the host keep what a request has cached until it comes back, as far as there is room."""
        request.claims += self.host.keep(request.slot, is_claimed=True)

    def can_keep(self, request: SimulatedRequest) -> bool:
        """Whether the host has room for all that a request has cached."""
        return self.host.can_claim(request.slot)

    def leave(self, request: SimulatedRequest) -> None:
        """Free a request's slot; what it has cached can still be found."""
        if self.pages is not None and self._is_looked_up(request):
            self._register(request.slot)
        self.slots.leave(request.slot, 1)
        if self.pages is not None:
            self._empty(request.slot)

    def fitting(self, decoding: Iterable[int], steps: int) -> int:
        """Return how many of `steps` decode steps there are pages for, without copies to the host but for the first."""
        pages, slots = self.pages, np.array(list(decoding), np.int64)
        if pages is None or not slots.size:
            return steps
        copies = steps > 1 and pages.on_evict is not None
        free = pages.free - (pages.tree.unused if copies else 0)
        if self._needed(slots, steps) <= free:
            return steps
        low, high = 0, steps
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self._needed(slots, middle) <= free else (low, middle)
        return low

    def growth(self, decoding: Iterable[int], steps: int) -> int:
        """Return how many tokens more are reserved after so many decode steps."""
        if self.pages is None or not steps:
            return 0
        return self._needed(np.array(list(decoding), np.int64), steps) * self.pages.page_tokens

    def grow(self, decoding: Iterable[int], steps: int) -> None:
        """Take the pages that so many decode steps need."""
        slots = np.array(list(decoding), np.int64)
        if self.pages is not None and slots.size:
            self.pages.reserve(slots, self.slots.cached[slots], self._stops(slots, steps))

    def _needed(self, slots: Ints, steps: int) -> int:
        assert self.pages is not None
        return self.pages.needed(slots, self.slots.cached[slots], self._stops(slots, steps))

    def _stops(self, slots: Ints, steps: int) -> Ints:
        stops: Ints = np.minimum(self.slots.cached[slots] + steps, self.longest)
        return stops

    def _is_looked_up(self, request: SimulatedRequest) -> bool:
        return self._options.block_tokens > 0 or request.preemptions > 0

    def _on_host(self, request: SimulatedRequest, common: int) -> HostPrefix | None:
        """Return what the host has of a request after its first `common` tokens."""
        if not self._is_looked_up(request):
            return None
        ids, least = self.slots.tokens_of(request, request.length), self._options.min_shared_tokens
        return self.host.find(ids, None, common, max(common + 1, least))

    def _with_imported(self, request: SimulatedRequest, cached: int) -> int:
        """Return how many tokens are cached with what another replica has computed, which is copied."""
        imported = min(request.imported, request.length - 1)
        request.imported = 0
        if imported <= cached:
            return cached
        self._clock.now_s += imported * self._options.times.copy_s_per_token
        return imported

    def _take_over(self, slot: int, common: int) -> None:
        """Let a slot begin with its first `common` tokens; the host keeps what else it had."""
        if self.pages is None and self._options.block_tokens and common < self.slots.cached[slot]:
            self.host.keep(slot)
        if not common:
            self._empty(slot)

    def _empty(self, slot: int) -> None:
        self.slots.cached[slot] = 0
        if self.pages is not None:
            self.pages.release(slot)

    def _register_running(self) -> None:
        """Let requests find what those that run have cached."""
        assert self.pages is not None
        full = self.slots.cached // self.pages.page_tokens > self.pages.registered
        for slot in (full & self.slots.is_running).nonzero()[0].tolist():
            self._register(slot)

    def _register(self, slot: int) -> None:
        assert self.pages is not None
        self.pages.register(slot, self.slots.sequences.tokens[slot, : self.slots.cached[slot]])
