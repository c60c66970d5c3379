"""The memory of caches in counts: a slot of full length for each sequence, or pages that sequences share."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trtkit.planning.paged import whole_pages

if TYPE_CHECKING:
    from trtkit.simulation.requests import SimulatedRequest


class CacheMemory(Protocol):
    """What a replica asks of its caches. reserved_tokens: places that sequences with a slot hold, used or not."""

    reserved_tokens: int

    def shared_tokens(self, request: SimulatedRequest) -> int:
        """Return how many of a prompt's tokens are cached already."""

    def holds(self, request: SimulatedRequest) -> bool:
        """Whether a request fits if it is alone."""

    def has_room(self, request: SimulatedRequest, freed_pages: int = 0) -> bool:
        """Whether there is room for a request's known tokens, with so many pages more."""

    def take(self, request: SimulatedRequest, cached: int) -> None:
        """Hold a request's known tokens, `cached` of which need not be computed."""

    def pages_of(self, request: SimulatedRequest) -> int:
        """Return the pages that come back when a request gives way."""

    def keep_prompt(self, request: SimulatedRequest) -> None:
        """Let others share a prompt that is computed."""

    def release(self, request: SimulatedRequest) -> None:
        """Give back what a request holds."""

    def begin(self, request: SimulatedRequest, cached: int, tick: int) -> None:
        """Note that a request decodes from here on."""

    def end(self, request: SimulatedRequest, cached: int, tick: int) -> None:
        """Note that it decodes no longer."""

    def fitting(self, tick: int, steps: int) -> int:
        """Return how many of `steps` decode steps there are pages for."""

    def growth(self, tick: int, steps: int) -> int:
        """Return how many tokens more are reserved after so many decode steps."""

    def grow(self, tick: int, steps: int) -> None:
        """Take the pages that so many decode steps need."""


class LinearMemory:
    """A slot of full length for each sequence: having a slot is all it takes."""

    def __init__(self, slot_tokens: int) -> None:
        self._slot_tokens, self.reserved_tokens = slot_tokens, 0

    def shared_tokens(self, request: SimulatedRequest) -> int:  # noqa: ARG002
        """Return 0: what slots hold is known to the slots."""
        return 0

    def holds(self, request: SimulatedRequest) -> bool:
        """Whether a request's prompt fits a slot; its answer ends at the slot's end."""
        return request.prompt_tokens <= self._slot_tokens

    def has_room(self, request: SimulatedRequest, freed_pages: int = 0) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def take(self, request: SimulatedRequest, cached: int) -> None:  # noqa: ARG002
        """Hold a slot."""
        self.reserved_tokens += self._slot_tokens

    def pages_of(self, request: SimulatedRequest) -> int:  # noqa: ARG002
        """Return 0: there are none."""
        return 0

    def keep_prompt(self, request: SimulatedRequest) -> None:
        """Do nothing."""

    def release(self, request: SimulatedRequest) -> None:  # noqa: ARG002
        """Give a slot back."""
        self.reserved_tokens -= self._slot_tokens

    def begin(self, request: SimulatedRequest, cached: int, tick: int) -> None:
        """Do nothing."""

    def end(self, request: SimulatedRequest, cached: int, tick: int) -> None:
        """Do nothing."""

    def fitting(self, tick: int, steps: int) -> int:  # noqa: ARG002
        """Return `steps`."""
        return steps

    def growth(self, tick: int, steps: int) -> int:  # noqa: ARG002
        """Return 0: slots have their full length."""
        return 0

    def grow(self, tick: int, steps: int) -> None:
        """Do nothing."""


class PagedMemory:
    """Pages of `page_tokens` tokens, taken as sequences grow.

    Prompts share full blocks of equal beginnings by reference.
    Blocks that nobody uses stay until their pages are needed, the oldest go first.
    """

    def __init__(self, pages: int, page_tokens: int, block_tokens: int = 0) -> None:
        self.pages, self.page_tokens = pages, page_tokens
        self.free, self.reserved_tokens = pages, 0
        self._block_tokens = block_tokens
        self._block_pages = block_tokens // page_tokens
        self._users: dict[int, int] = {}  # of each cached block
        self._idle: OrderedDict[int, None] = OrderedDict()  # blocks without users, the oldest first
        self._shares: dict[int, tuple[int, ...]] = {}  # blocks that a request uses, by its number
        self._held: dict[int, int] = {}  # pages that are a request's own
        self._phases = np.zeros(page_tokens, np.int64)  # decoding requests by (cached - tick) % page_tokens

    @property
    def available(self) -> int:
        """Pages that nobody uses, those of idle blocks among them."""
        return self.free + len(self._idle) * self._block_pages

    def shared_tokens(self, request: SimulatedRequest) -> int:
        """Return the tokens of the blocks that are cached; see CacheMemory. The last token is computed in any case."""
        count = 0
        if self._block_pages:
            most = (request.prompt_tokens - 1) // self._block_tokens
            for block in request.hashes[:most]:
                if block not in self._users:
                    break
                count += 1
        return count * self._block_tokens

    def holds(self, request: SimulatedRequest) -> bool:
        """Whether a request fits if it is alone; see CacheMemory."""
        return self._count(request.prompt_tokens + request.output_tokens) <= self.pages

    def has_room(self, request: SimulatedRequest, freed_pages: int = 0) -> bool:
        """Whether there are pages for a request's known tokens and the next; see CacheMemory."""
        shared = self.shared_tokens(request)
        blocks = request.hashes[: shared // self._block_tokens] if shared else ()
        idle = sum(block in self._idle for block in blocks) * self._block_pages
        return self._count(request.length + 1 - shared) <= self.available - idle + freed_pages

    def take(self, request: SimulatedRequest, cached: int) -> None:
        """Hold pages for a request's known tokens; see CacheMemory."""
        shared = self.shared_tokens(request)
        blocks = request.hashes[: shared // self._block_tokens] if shared else ()
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)
        self._shares[request.number] = blocks
        self._held[request.number] = 0
        tokens = cached if cached == request.length - 1 else request.length  # who decodes at once grows from there
        self._allocate(request.number, self._count(tokens - shared))
        self.reserved_tokens += len(blocks) * self._block_tokens

    def pages_of(self, request: SimulatedRequest) -> int:
        """Return the pages that are a request's own, and those of blocks that nobody else uses."""
        lone = sum(self._users[block] == 1 for block in self._shares[request.number])
        return self._held[request.number] + lone * self._block_pages

    def keep_prompt(self, request: SimulatedRequest) -> None:
        """Make shared blocks of a prompt's full pages; see CacheMemory."""
        if not self._block_pages:
            return
        known = self._shares[request.number]
        most = request.prompt_tokens // self._block_tokens
        new = [block for block in request.hashes[len(known) : most] if block not in self._users]
        self._users |= dict.fromkeys(new, 1)
        self._shares[request.number] = (*known, *new)
        self._held[request.number] -= len(new) * self._block_pages

    def release(self, request: SimulatedRequest) -> None:
        """Give back what a request holds; its blocks stay while there is room; see CacheMemory."""
        blocks, held = self._shares.pop(request.number), self._held.pop(request.number)
        for block in reversed(blocks):  # the end of a prompt goes before its beginning
            self._users[block] -= 1
            if not self._users[block]:
                self._idle[block] = None
        self.free += held
        self.reserved_tokens -= len(blocks) * self._block_tokens + held * self.page_tokens

    def begin(self, request: SimulatedRequest, cached: int, tick: int) -> None:  # noqa: ARG002
        """Count a request among those that grow; see CacheMemory."""
        self._phases[(cached - tick) % self.page_tokens] += 1

    def end(self, request: SimulatedRequest, cached: int, tick: int) -> None:
        """Count it no longer, and note the pages it has grown by; see CacheMemory."""
        self._phases[(cached - tick) % self.page_tokens] -= 1
        shared = len(self._shares[request.number]) * self._block_tokens
        self._held[request.number] = self._count(cached - shared)

    def fitting(self, tick: int, steps: int) -> int:
        """Return how many of `steps` decode steps there are pages for; see CacheMemory."""
        if self._needed(tick, steps) <= self.available:
            return steps
        low, high = 0, steps
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self._needed(tick, middle) <= self.available else (low, middle)
        return low

    def growth(self, tick: int, steps: int) -> int:
        """Return the tokens of the pages that are taken; see CacheMemory."""
        return self._needed(tick, steps) * self.page_tokens

    def grow(self, tick: int, steps: int) -> None:
        """Take the pages that so many decode steps need; see CacheMemory."""
        self._make_free(needed := self._needed(tick, steps))
        self.free -= needed
        self.reserved_tokens += needed * self.page_tokens

    def _needed(self, tick: int, steps: int) -> int:
        """Return the pages that decoding requests need for their next `steps` tokens, at multiples of a page's size."""
        phases = np.arange(self.page_tokens) + tick  # tokens cached now, but for whole pages
        crossings = (phases + steps - 1) // self.page_tokens - (phases - 1) // self.page_tokens
        return int(crossings @ self._phases)

    def _count(self, tokens: int) -> int:
        return whole_pages(tokens, self.page_tokens)

    def _allocate(self, number: int, pages: int) -> None:
        self._make_free(pages)
        self.free -= pages
        self._held[number] += pages
        self.reserved_tokens += pages * self.page_tokens

    def _make_free(self, pages: int) -> None:
        """Evict idle blocks, the oldest first, until so many pages are free."""
        while self.free < pages:
            block, _ = self._idle.popitem(last=False)
            del self._users[block]
            self.free += self._block_pages
