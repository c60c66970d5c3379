"""Cached prefixes of prompts: in slots or pages, in host memory and files, or imported from other workers.

One store covers all tiers: `match` tells how much of a request is cached and where, `load` brings it into a slot,
`save` makes the host keep what a slot has. Decisions are numbers; the copies they need are appended to `transfers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.llm.cache.held_blocks import SlotBlocks
from trtkit.llm.cache.host.tier import HostTier
from trtkit.llm.cache.prefetch import Prefetches
from trtkit.llm.cache.transfers import CopyTokens, DropSequence
from trtkit.llm.sequences import UNKNOWN, keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.llm.cache.held_blocks import Change
    from trtkit.llm.cache.host.blocks import Arrival
    from trtkit.llm.cache.host.tier import HostPrefix
    from trtkit.llm.cache.transfers import CacheLayout, Transfer
    from trtkit.llm.execution import SavedSequence
    from trtkit.llm.scheduler.costs import Statistics, StepCosts
    from trtkit.llm.scheduler.options import SchedulerOptions
    from trtkit.llm.scheduler.request import Schedulable
    from trtkit.llm.scheduler.slots import Bools, Slots
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

Tier = Literal["none", "slot", "pages", "host", "import"]


@dataclass(frozen=True)
class Match:
    """How many tokens of a request are cached, and the farthest tier that holds some of them.

    common: tokens that caches hold, in `pages` or in the slot `source`. on_host: what follows them, or all, on the host
    or in files; kept until it is loaded. imported: all of them, from another worker.
    """

    tokens: int = 0
    tier: Tier = "none"
    common: int = 0
    source: int = 0
    pages: Sequence[int] = ()
    on_host: HostPrefix | None = None
    imported: SavedSequence | None = None


_NO_MATCH = Match()


class PrefixStore:
    """The tiers of one engine's caches.

    finds_by_content: whether prefixes are found in pages by content rather than in slots. is_loading: [slots], whether
    a slot waits for what the host has of it. prefetches: what is loaded ahead of its turn; None without prefetching.
    """

    def __init__(
        self,
        layout: CacheLayout,
        slots: Slots,
        options: SchedulerOptions,
        costs: StepCosts,
        statistics: Statistics,
        transfers: list[Transfer],
        clock: Callable[[], float],
    ) -> None:
        self._layout, self._slots, self._options = layout, slots, options
        self._statistics, self._transfers = statistics, transfers
        self.pages = layout.pages
        self.finds_by_content = layout.pages is not None and not layout.has_slot_memory
        self.host = HostTier(layout, slots, options, costs, transfers, clock)
        self._slot_blocks = SlotBlocks(slots, self.host.block_tokens)
        self.is_loading: Bools = np.zeros(options.slots, np.bool_)
        self._arrivals: dict[int, Arrival] = {}
        loads_ahead = self.finds_by_content and self.host.link.is_background
        self.prefetches = Prefetches(self.pages, self.host) if self.pages is not None and loads_ahead else None

    # Match and load

    def is_looked_up(self, request: Schedulable) -> bool:
        """Whether a request may reuse cached tokens at all."""
        shares = self._options.shares_prefixes or request.metrics.preemptions > 0 or len(self.host.imports) > 0
        return shares and not request.needs_whole_prompt

    def match(self, request: Schedulable) -> Match:
        """Return what is cached of a request's known tokens, except the last. Host blocks are kept until `load`."""
        if not self.is_looked_up(request):
            return _NO_MATCH
        common = self.match_cached(request)
        ids, soft, least = (
            keyed(request.known_ids(), request.adapter_id.key),
            request.soft,
            self._options.min_shared_tokens,
        )
        longer = max(common.tokens + 1, least)
        imported = None if soft is not None else self.host.imports.take(ids, longer, is_whole=self._layout.has_states)
        if imported is not None:
            return Match(imported[1], "import", imported=imported[0])
        on_host = self.host.find(ids, soft, common.tokens, longer)
        if on_host is None:
            return common
        if on_host.whole is not None:
            return Match(on_host.tokens, "host", on_host=on_host)
        return Match(on_host.tokens, "host", common.tokens, common.source, common.pages, on_host)

    def match_cached(self, request: Schedulable) -> Match:
        """Return what slots or pages have of a request's known tokens, if it is worth sharing."""
        ids, soft, key = request.known_ids(), request.soft, request.adapter_id.key
        if self.pages is not None and self.finds_by_content:
            pages, source = self.pages.match(keyed(ids, key), soft), 0
            tokens = len(pages) * self.pages.page_tokens
        else:
            pages, (source, tokens) = [], self.shared_prefix(ids, soft, key)
        if not tokens or tokens < self._options.min_shared_tokens:
            return _NO_MATCH
        return Match(tokens, "pages" if pages else "slot", tokens, source, pages)

    def load(self, slot: int, match: Match, request: Schedulable) -> None:
        """Make a slot that was just taken start with a match."""
        if match.pages and self.pages is not None:
            self.pages.adopt(slot, match.pages)
            prefetched = 0 if self.prefetches is None else min(match.common, self.prefetches.tokens_of(request.id))
            self._note_restored(request, prefetched)
        elif match.common:
            self.copy(match.source, slot, 0, match.common)
        if match.imported is not None:
            number = self.host.saved.number(match.imported.first(match.tokens))
            self.host.load_whole(slot, number, match.tokens)
            self._transfers.append(DropSequence(number))
            self._statistics.imported_tokens += match.tokens
        if match.on_host is not None:
            if self.pages is not None and self.finds_by_content:
                self.pages.grow(slot, match.tokens)
            arrival = self.host.load(slot, match.on_host)
            if arrival is not None:
                self._arrivals[slot], self.is_loading[slot] = arrival, True
            self._note_restored(request, match.tokens - match.common)
            self._statistics.file_tokens += match.on_host.file_tokens

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy the tokens from `start` to `stop` of `source` to `target`, which has those before `start` already."""
        if source == target:
            return
        if self.pages is not None:
            self.pages.share(source, target, stop)
        if self.pages is None or self._layout.has_slot_memory:
            self._transfers.append(CopyTokens(source, target, start, stop))
        if self._slots.positions is not None:
            self._slots.set_position(target, int(self._slots.positions[source]))

    def shared_prefix(self, ids: Ints, soft: SoftTokens | None = None, adapter_key: int = 0) -> tuple[int, int]:
        """Return the slot that shares the longest prefix with a prompt, and its length; 0 if prefixes are in pages."""
        if self.pages is not None and self.finds_by_content:
            return 0, len(self.pages.match(keyed(ids, adapter_key), soft)) * self.pages.page_tokens
        source, common = self._slots.shared_prefix(ids, soft, adapter_key)
        return source, 0 if self.is_loading[source] else common

    def tokens_of(self, ids: Ints) -> int:
        """Return how many tokens of a prompt are cached, host memory included."""
        self.register_running()
        return self.host.tokens_of(ids, self.shared_prefix(ids)[1])

    # Save

    def save(self, slot: int, most: int | None = None) -> list[bytes]:
        """Save what a slot has cached, or its first `most` tokens, to the host; return the keys to release later."""
        self.await_load(slot)
        return self.host.keep(slot, most, is_retained=True)

    def offload(self, slot: int) -> None:
        """Save what a slot has to the host before it is overwritten; pages are saved when they are evicted."""
        if not self.finds_by_content and self._options.shares_prefixes:
            self.host.keep(slot)

    def save_ahead(self, running: Callable[[], list[int]]) -> None:
        """Save what slots and pages would lose next. running: returns slots in the order of their requests."""

        def taken_next() -> Iterator[int]:
            self.register_running()
            if not self.finds_by_content:
                yield from self._slots.ended()
            yield from (slot for slot in reversed(running()) if not self.is_loading[slot])

        self.host.save_ahead(taken_next)

    def register(self, slot: int) -> None:
        """Let other requests find what a slot has cached, as far as the host knows its tokens."""
        if self.pages is not None and self.finds_by_content:
            sequences = self._slots.sequences
            ids = sequences.tokens[slot, : self._slots.cached[slot]]
            unknown = (ids == UNKNOWN).nonzero()[0]
            ids = sequences.keyed(slot, ids[: unknown[0]] if unknown.size else ids)
            self.pages.register(slot, ids, sequences.soft.get(slot))

    def changes(self) -> Iterator[Change]:
        """Yield what all tiers have gained and lost since the last call; the first time, everything they hold."""
        if self.pages is not None and self.finds_by_content:
            self.register_running()
            yield from self.pages.tree.changes.take()
        else:
            yield from self._slot_blocks.changes()
        yield from self.host.changes()

    def register_running(self) -> None:
        """Let other requests find what running requests have cached."""
        if self.pages is not None and self.finds_by_content and self._options.shares_prefixes:
            full = self._slots.cached // self.pages.page_tokens > self.pages.registered[: self._slots.count]
            for slot in self.without_loading(full & self._slots.is_running).nonzero()[0].tolist():
                self.register(slot)

    def release(self, request: Schedulable) -> None:
        """Release what the host keeps for a request and what was prefetched for it."""
        if self.prefetches is not None:
            self.prefetches.release(request.id)
        if request.retained:
            self.host.release(request.retained)
            request.retained = []

    # Arrivals during steps

    def without_loading(self, slots: Bools) -> Bools:
        """Return which of `slots` [slots] are not waiting for a load from the host."""
        return slots & ~self.is_loading if self._arrivals else slots

    @property
    def next_arrival_s(self) -> float:
        """When the next awaited load arrives; infinite if none is awaited."""
        return min((arrival.due_s for arrival in self._arrivals.values()), default=math.inf)

    def land(self, now_s: float) -> None:
        """Let slots continue whose loads have arrived, and let prompts find prefetched pages."""
        if self.prefetches is not None:
            self.prefetches.land(now_s)
        for slot in [slot for slot, arrival in self._arrivals.items() if arrival.due_s <= now_s]:
            self.await_load(slot)

    def await_load(self, slot: int) -> None:
        """Make the next call wait for what is being loaded into a slot."""
        arrival = self._arrivals.pop(slot, None)
        if arrival is not None and self.host.blocks is not None:
            self.is_loading[slot] = False
            self.host.blocks.await_load(arrival)

    def prefetch(self, requests: Sequence[Schedulable]) -> None:
        """Prefetch host blocks of waiting requests in order, if there are pages for them and the link is idle."""
        prefetches = self.prefetches
        for request in requests if prefetches is not None else ():
            known, is_looked_up = request.prompt_tokens + len(request.generated), self.is_looked_up(request)
            if prefetches is not None and is_looked_up and prefetches.may_begin(request.id, known):
                ids = keyed(request.known_ids(), request.adapter_id.key)
                prefetches.begin(request.id, ids, request.soft, self._options.min_shared_tokens)

    def _note_restored(self, request: Schedulable, tokens: int) -> None:
        request.metrics.restored += tokens
        self._statistics.restored_tokens += tokens
