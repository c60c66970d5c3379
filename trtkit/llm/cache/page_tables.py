"""The pages of every slot.

Allocated when tokens need them, shared by reference count, copied before they are written.
"""

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
"""A page that belongs to no slot; padding is written there."""


class PageCopies(NamedTuple):
    """Pages to copy before a call: `sources` [N] to `targets` [N]."""

    sources: list[int]
    targets: list[int]


class PageTables:
    """Which pages hold the tokens of which slot.

    table: [slots, n] int32, each slot's pages in order, then 0. counts: [slots], pages of each slot. registered:
    [slots], how many of them other prompts can find. references: [pages], slots that each page is in. page_tokens:
    tokens per page. on_evict: called with cached pages that are about to be overwritten, and their contents.
    is_scheduled: whether a scheduler allocates the pages and caches only follow; see `schedule`.
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
        """Let a scheduler allocate: from now on `table` is ahead of the caches, which receive `changes`."""
        if not self.is_scheduled:
            self.is_scheduled, self.table = True, self.table.copy()

    def changes(self) -> list[tuple[int, int, int]]:
        """Return the changes of a scheduler's table since the last call: slots, indices in their rows, and pages."""
        changes = [(slot, index, page) for (slot, index), page in self._changes.items()]
        self._changes.clear()
        return changes

    @property
    def free(self) -> int:
        """Number of pages that can be allocated, including cached ones that no slot uses."""
        return len(self._free) + self.tree.unused

    @property
    def held(self) -> int:
        """Number of pages that slots use."""
        return self.pages - 1 - self.free

    def pages_of(self, slot: int) -> list[int]:
        """Return a slot's pages in order."""
        pages: list[int] = self.table[slot, : self.counts[slot]].tolist()
        return pages

    def needed(self, slots: Ints, starts: Ints, stops: Ints) -> int:
        """Return how many pages are needed to write tokens from `starts` to `stops` [R] of slots [R]."""
        new = np.maximum(-(-stops // self.page_tokens) - self.counts[slots], 0)
        return int(new[stops > starts].sum()) + len(self._shared_rows(slots, starts, stops))

    def reserve(self, slots: Ints, starts: Ints, stops: Ints) -> PageCopies:
        """Give each slot pages of its own for its tokens from `starts` to `stops` [R]; return the pages to copy first.

        A page that others use or can find is replaced by a copy, and its successors are no longer found. Raises
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
            slot, index = int(slots[row]), int(starts[row]) // self.page_tokens
            source, target = int(self.table[slot, index]), self._take()
            copies.sources.append(source)
            copies.targets.append(target)
            self._cut(slot, index)
            self._append(slot, target)
        for row in growing.tolist():
            self._grow(int(slots[row]), int(stops[row]))
        self._tell_evicted()
        return copies

    def grow(self, slot: int, tokens: int) -> None:
        """Give a slot pages for its first `tokens`. Raises ExecutionError if there are not enough."""
        self._grow(slot, tokens)
        self._tell_evicted()

    def share(self, source: int, target: int, tokens: int) -> None:
        """Make `target` share the pages of the first `tokens` of `source`, and nothing else."""
        pages = self.table[source, : -(-tokens // self.page_tokens)].tolist()
        registered = min(int(self.registered[source]), tokens // self.page_tokens)
        self.references[pages] += 1
        self.release(target)
        self._extend(target, pages)
        self.registered[target] = registered

    def release(self, slot: int) -> None:
        """Release a slot's pages. Cached prefixes stay until their memory is needed."""
        self._cut(slot, 0)

    def register(self, slot: int, ids: Ints, soft: SoftTokens | None = None) -> None:
        """Let other prompts find the full pages of a slot, which hold the tokens `ids` [cached].

        If another slot's page has the same content, this slot uses that page from now on.
        """
        first, full = int(self.registered[slot]), len(ids) // self.page_tokens
        if full <= first:
            return
        parent = int(self.table[slot, first - 1]) if first else ROOT
        for index, content in enumerate(contents(ids, self.page_tokens, soft, slice(first, full)), first):
            own_page, known = int(self.table[slot, index]), self.tree.child(parent, content)
            if known is None:
                self.tree.add(parent, content, own_page)
                self._is_known[own_page] = True
            elif known != own_page:
                if self.references[own_page] > 1:  # others continue from it; its successors must not be found
                    return
                self._use(known)
                self._put(slot, index, known)
                self._drop([own_page])
            parent, self.registered[slot] = int(self.table[slot, index]), index + 1

    def match(self, ids: Ints, soft: SoftTokens | None = None) -> list[int]:
        """Return the pages of a prompt's longest cached prefix, not counting its last token."""
        return self.tree.match(contents(ids[:-1], self.page_tokens, soft))

    def adopt(self, slot: int, pages: Sequence[int]) -> None:
        """Make an empty slot start with known pages."""
        assert self.counts[slot] == 0
        for page in pages:
            self._use(page)
        self._extend(slot, pages)
        self.registered[slot] = len(pages)

    def hold(self, known: Sequence[int], count: int) -> list[int]:
        """Protect known pages from eviction until `let_go`; allocate and return `count` more, which must be free."""
        for page in known:
            self._use(page)
        pages = [self._take() for _ in range(count)]
        self._tell_evicted()
        return pages

    def register_held(self, known: Sequence[int], new: Sequence[int], contents_of_new: Iterable[bytes]) -> list[int]:
        """Let prompts find held pages after known ones; pages with equal contents are returned and held instead."""
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
        """Undo `hold`."""
        self._drop(pages[::-1])

    def replace_prefix(self, slot: int, pages: Sequence[int], tokens: int) -> None:
        """Make a slot start with known pages instead of its own, and give it pages for its first `tokens`.

        There are enough if it had pages for as many tokens, and `pages` start with those that it shared.
        """
        self.release(slot)
        self.adopt(slot, pages)
        self.grow(slot, tokens)

    def _shared_rows(self, slots: Ints, starts: Ints, stops: Ints) -> list[int]:
        """Return the rows whose first page to write exists and is used or can be found by others."""
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
        """Append pages to a slot."""
        self.table[slot, : len(pages)], self.counts[slot] = pages, len(pages)
        if self.is_scheduled:
            self._changes.update(((slot, index), page) for index, page in enumerate(pages))

    def _put(self, slot: int, index: int, page: int) -> None:
        self.table[slot, index] = page
        if self.is_scheduled:
            self._changes[slot, index] = page

    def _cut(self, slot: int, count: int) -> None:
        """Release all but a slot's first pages."""
        pages = self.pages_of(slot)
        self._drop(pages[: count - 1 if count else None : -1])
        self.table[slot, count:] = NOBODY
        if self.is_scheduled:
            self._changes.update(((slot, index), NOBODY) for index in range(count, len(pages)))
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
        """Report evicted pages to `on_evict` before anything is written to them."""
        if self._evicted and self.on_evict is not None:
            evicted, self._evicted = self._evicted, {}
            self.on_evict(list(evicted), list(evicted.values()))

    def _use(self, page: int) -> None:
        self.references[page] += 1
        self.tree.use(page)

    def _drop(self, pages: Sequence[int]) -> None:
        """Decrement the reference counts of pages, from the last of a sequence to the first."""
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
