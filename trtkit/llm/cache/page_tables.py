"""The pages of every slot: taken when tokens need them, shared by reference, copied before they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtkit.errors import ExecutionError
from trtkit.llm.cache.held_blocks import contents
from trtkit.llm.cache.prefix_tree import ROOT, PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtkit.llm.cache.held_blocks import Block
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

Tables = np.ndarray[Any, np.dtype[np.int32]]
NOBODY = 0
"""A page that no slot has: padding is written there."""


class PageCopies(NamedTuple):
    """Pages to copy before a call: `sources` [N] to `targets` [N]."""

    sources: list[int]
    targets: list[int]


class PageTables:
    """Which pages hold the tokens of which slot.

    table: [slots, n] int32, each slot's pages in order, then 0. counts: [slots], pages of each slot.
    registered: [slots], how many of them others can find. references: [pages], slots that each page is in.
    page_tokens: tokens of a page. on_evict: takes cached pages that are about to be overwritten, and what
    they hold. is_scheduled: whether a scheduler decides on them, so that caches only follow; see `schedule`.
    """

    def __init__(self, slots: int, pages: int, page_tokens: int, max_length: int) -> None:
        self.page_tokens, self.pages = page_tokens, pages
        self.table: Tables = np.zeros((slots, -(-max_length // page_tokens)), np.int32)
        self.counts: Ints = np.zeros(slots, np.int64)
        self.references: Ints = np.zeros(pages, np.int64)
        self.tree = PrefixTree()
        self.registered: Ints = np.zeros(slots, np.int64)
        self._is_known = np.zeros(pages, np.bool_)
        self._free = list(range(pages - 1, NOBODY, -1))
        self.on_evict: Callable[[Sequence[int], Sequence[Block]], None] | None = None
        self._evicted: dict[int, Block] = {}
        self.is_scheduled = False
        self._changes: dict[tuple[int, int], int] = {}

    def schedule(self) -> None:
        """Let a scheduler decide: from now on `table` is ahead of what caches were told; they are told `changes`."""
        if not self.is_scheduled:
            self.is_scheduled, self.table = True, self.table.copy()

    def changes(self) -> list[tuple[int, int, int]]:
        """Return what has changed in the table of a scheduler since the last call: slots, places and their pages."""
        changes = [(slot, place, page) for (slot, place), page in self._changes.items()]
        self._changes.clear()
        return changes

    @property
    def free(self) -> int:
        """Pages that can be allocated, cached ones that nobody reads among them."""
        return len(self._free) + self.tree.unused

    @property
    def held(self) -> int:
        """Pages that slots have."""
        return self.pages - 1 - self.free

    def pages_of(self, slot: int) -> list[int]:
        """Return a slot's pages in order."""
        pages: list[int] = self.table[slot, : self.counts[slot]].tolist()
        return pages

    def needed(self, slots: Ints, starts: Ints, stops: Ints) -> int:
        """Return how many pages it takes to write tokens from `starts` to `stops` [R] of slots [R]."""
        new = np.maximum(-(-stops // self.page_tokens) - self.counts[slots], 0)
        return int(new[stops > starts].sum()) + len(self._shared_rows(slots, starts, stops))

    def reserve(self, slots: Ints, starts: Ints, stops: Ints) -> PageCopies:
        """Let each slot own the pages of its tokens from `starts` to `stops` [R]; return the pages to copy first.

        A page that others read or can find is replaced by a copy, and what followed it is forgotten. Raises
        ExecutionError if there are not enough pages.
        """
        copies = PageCopies([], [])
        shared, last = self._shared_rows(slots, starts, stops), -(-stops // self.page_tokens)
        for row in shared:
            self._cut(int(slots[row]), int(starts[row]) // self.page_tokens + 1)
        missing = last - self.counts[slots]
        growing = ((stops > starts) & (missing > 0)).nonzero()[0]
        if (needed := len(shared) + int(missing[growing].sum())) > self.free:
            raise no_pages(needed, self.free)
        for row in shared:
            slot, place = int(slots[row]), int(starts[row]) // self.page_tokens
            source, target = int(self.table[slot, place]), self._take()
            copies.sources.append(source)
            copies.targets.append(target)
            self._cut(slot, place)
            self._append(slot, target)
        for row in growing.tolist():
            self._grow(int(slots[row]), int(stops[row]))
        self._tell_evicted()
        return copies

    def grow(self, slot: int, tokens: int) -> None:
        """Let a slot have pages for its first `tokens`. Raises ExecutionError if there are not enough."""
        self._grow(slot, tokens)
        self._tell_evicted()

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let `target` read the first tokens of `source`, and have nothing else."""
        pages = self.table[source, : -(-tokens // self.page_tokens)].tolist()
        registered = min(int(self.registered[source]), tokens // self.page_tokens)
        self.references[pages] += 1
        self.release(target)
        self._extend(target, pages)
        self.registered[target] = registered

    def release(self, slot: int) -> None:
        """Take a slot's pages from it. Cached prefixes stay until their memory is needed."""
        self._cut(slot, 0)

    def register(self, slot: int, ids: Ints, soft: SoftTokens | None = None) -> None:
        """Let others find the full pages of a slot, which hold the tokens `ids` [cached].

        Where another slot's page holds the same, this slot reads that one from now on.
        """
        first, full = int(self.registered[slot]), len(ids) // self.page_tokens
        if full <= first:
            return
        parent = int(self.table[slot, first - 1]) if first else ROOT
        for place, content in enumerate(contents(ids, self.page_tokens, soft, slice(first, full)), first):
            own, known = int(self.table[slot, place]), self.tree.child(parent, content)
            if known is None:
                self.tree.add(parent, content, own)
                self._is_known[own] = True
            elif known != own:
                if self.references[own] > 1:  # others go on from this page, and what follows it must not be found
                    return
                self._use(known)
                self._put(slot, place, known)
                self._drop([own])
            parent, self.registered[slot] = int(self.table[slot, place]), place + 1

    def match(self, ids: Ints, soft: SoftTokens | None = None) -> list[int]:
        """Return the pages of the longest cached prefix of a prompt, without its last token."""
        return self.tree.match(contents(ids[:-1], self.page_tokens, soft))

    def adopt(self, slot: int, pages: Sequence[int]) -> None:
        """Let an empty slot begin with known pages."""
        assert self.counts[slot] == 0
        for page in pages:
            self._use(page)
        self._extend(slot, pages)
        self.registered[slot] = len(pages)

    def hold(self, known: Sequence[int], count: int) -> list[int]:
        """Keep known pages from being evicted; return `count` pages more, which there are, until `let_go`."""
        for page in known:
            self._use(page)
        pages = [self._take() for _ in range(count)]
        self._tell_evicted()
        return pages

    def register_held(self, known: Sequence[int], new: Sequence[int], contents_of_new: Iterable[bytes]) -> list[int]:
        """Let others find held pages after known ones; return those that have the same, which are held instead."""
        parent, pages = known[-1] if known else ROOT, []
        for page, content in zip(new, contents_of_new, strict=True):
            same = self.tree.child(parent, content)
            if same is None:
                self.tree.add(parent, content, page)
                self._is_known[page] = True
            else:
                self._use(same)
                self._drop([page])
            parent = page if same is None else same
            pages.append(parent)
        return pages

    def let_go(self, pages: Sequence[int]) -> None:
        """Take back what `hold` did."""
        self._drop(pages[::-1])

    def replace_prefix(self, slot: int, pages: Sequence[int], tokens: int) -> None:
        """Let a slot begin with known pages instead of what it has, and have pages for its first `tokens`.

        There are enough if it had pages for so many, and `pages` begin with those that it shared.
        """
        self.release(slot)
        self.adopt(slot, pages)
        self.grow(slot, tokens)

    def _shared_rows(self, slots: Ints, starts: Ints, stops: Ints) -> list[int]:
        """Return the rows whose first page to write exists, and others read it or can find it."""
        first = starts // self.page_tokens
        pages = self.table[slots, np.minimum(first, self.table.shape[1] - 1)]
        is_shared = (self.references[pages] > 1) | self._is_known[pages]
        rows: list[int] = (is_shared & (stops > starts) & (first < self.counts[slots])).nonzero()[0].tolist()
        return rows

    def _grow(self, slot: int, tokens: int) -> None:
        missing = -(-tokens // self.page_tokens) - int(self.counts[slot])
        if missing > self.free:
            raise no_pages(missing, self.free)
        for _ in range(missing):
            self._append(slot, self._take())

    def _append(self, slot: int, page: int) -> None:
        self._put(slot, int(self.counts[slot]), page)
        self.counts[slot] += 1

    def _extend(self, slot: int, pages: Sequence[int]) -> None:
        """Let an empty slot have pages."""
        self.table[slot, : len(pages)], self.counts[slot] = pages, len(pages)
        if self.is_scheduled:
            self._changes.update(((slot, place), page) for place, page in enumerate(pages))

    def _put(self, slot: int, place: int, page: int) -> None:
        self.table[slot, place] = page
        if self.is_scheduled:
            self._changes[slot, place] = page

    def _cut(self, slot: int, count: int) -> None:
        """Take all but a slot's first pages from it."""
        pages = self.pages_of(slot)
        self._drop(pages[: count - 1 if count else None : -1])
        self.table[slot, count:] = NOBODY
        if self.is_scheduled:
            self._changes.update(((slot, place), NOBODY) for place in range(count, len(pages)))
        self.counts[slot] = min(len(pages), count)
        self.registered[slot] = min(int(self.registered[slot]), count)

    def _take(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, block = self.tree.evict()
            if self.on_evict is not None:
                self._evicted[page] = block
        self.references[page], self._is_known[page] = 1, False
        return page

    def _tell_evicted(self) -> None:
        """Let who keeps evicted pages elsewhere have them, before anything is written to them."""
        if self._evicted and self.on_evict is not None:
            evicted, self._evicted = self._evicted, {}
            self.on_evict(list(evicted), list(evicted.values()))

    def _use(self, page: int) -> None:
        self.references[page] += 1
        self.tree.use(page)

    def _drop(self, pages: Sequence[int]) -> None:
        """Let one slot less read each page, from the last of a sequence to the first."""
        for page in pages:
            self.references[page] -= 1
            if self.references[page] == 0:
                if self._is_known[page]:
                    self.tree.rest(page)
                else:
                    self._free.append(page)


def no_pages(needed: int, free: int) -> ExecutionError:
    """Return the error for tokens that no pages are left for."""
    what = f"{needed} pages are needed, {free} are free"
    return ExecutionError(what, "KV cache", "open the model with more cache memory, or run fewer sequences")
