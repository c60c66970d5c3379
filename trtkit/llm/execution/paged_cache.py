"""KV caches in pages of one pool, which slots are given as their tokens need them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.cache import PageCopies, PageTables
from trtkit.llm.cache.page_groups import like_lengths
from trtkit.llm.execution.cache_size import bytes_of_page, copies_pages, page_tokens_of, with_speculator
from trtkit.llm.execution.cached_places import codes
from trtkit.llm.execution.call import CallPages
from trtkit.llm.execution.host_blocks import LocalBlocks
from trtkit.llm.execution.kv_cache import KvCache
from trtkit.llm.execution.pool_size import AS_LINEAR, PoolSize
from trtkit.models.share import WHOLE
from trtkit.network.input_spec import kv_window
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtkit.llm.execution.cached_places import NewTokens, Place
    from trtkit.llm.execution.call import Call
    from trtkit.llm.sequences import Ints
    from trtkit.models.share import Share
    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.device import Stream


_READS = 3  # of a cached token where pages are gathered: it is read, written to contiguous memory, and read again


class PagedCache(KvCache):
    """A KvCache whose keys and values are in pools of pages [P, K, page_tokens, H]; states stay in slots.

    All layers use the same page numbers: page p of each pool holds the same tokens. A slot's tokens are in the pages of
    its row of `table` [slots, n]. `pages` allocates them, here or in a scheduler, which then sends changes of `table`,
    as rank 0 does to other ranks. Page 0 takes padding, and new tokens that other ranks hold: with shared positions,
    each rank holds a part of every page.
    """

    def __init__(
        self,
        specs: Iterable[InputSpec],
        slots: int,
        max_length: int,
        dtype_of: Callable[[InputSpec], torch.dtype],
        stream: Stream | None = None,
        pool: PoolSize = AS_LINEAR,
        context: Share = WHOLE,
    ) -> None:
        specs = list(specs)
        self._page_size = page_tokens_of(specs, context) or 1
        self._page_count = 1 + slots * -(-max_length // self._page_size) if pool.pages is None else pool.pages
        self._copies_pages = copies_pages(specs)
        self._call_tokens = pool.weight_bytes * self._page_size // (_READS * bytes_of_page(specs))
        tables = PageTables(slots + 1, self._page_count, self._page_size, max_length)  # a row for a prefix of no slot
        length = min(max_length, (self._page_count - 1) * self._page_size)
        super().__init__(specs, slots, length, dtype_of, stream, context)
        self.pages, self.table = tables, tables.table

    def follow(self) -> None:
        """Let another rank allocate pages; it sends changes of `table`."""
        self.pages = None

    def view(self, rows: slice) -> dict[str, torch.Tensor]:
        """Return the pools, and the states [R, ...] of consecutive slots, by input name."""
        return {name: array[rows] if name in self._state_names else array for name, array in self._arrays.items()}

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Record the pages that hold a slot's tokens; they are allocated elsewhere."""
        self.table[slot, : len(pages)] = pages

    def set_pages(self, changes: Ints) -> None:
        """Apply changes of page tables: slots, indices in their rows, and pages, [N, 3]."""
        slots, places, pages = changes.T
        self.table[slots, places] = pages

    def prepare(self, call: Call) -> Call:
        """Return a call with the pages of its rows, after copying shared pages that it writes.

        Raises ExecutionError if there are not enough pages.
        """
        call = self.assign(call)
        assert call.pages is not None
        self.copy_pages(call.pages.copies)
        return call

    def assign(self, call: Call) -> Call:
        """Return what `prepare` does, but leave page copies to the ranks that run the call."""
        if call.pages is not None or self.pages is None:
            return call
        stops, slots = call.starts + call.counts, call.slots
        copies = PageCopies([], [])
        if self.pages.is_scheduled:
            pass  # the scheduler has done it
        elif not self.follows:
            copies = self.pages.reserve(slots, call.starts, stops)
        else:  # a draft head may overwrite what others read: that changes guesses, never tokens
            for row in (call.counts > 0).nonzero()[0].tolist():
                self.pages.grow(int(slots[row]), int(stops[row]))
        window = kv_window(max(1, int(stops[call.counts > 0].max(initial=0))), self.max_length)
        table = self.table[slots, : -(-window // self._page_size)]
        groups = None
        if self._copies_pages and call.scattered is None and not (self.has_slot_memory or self.follows):
            groups = like_lengths(np.where(call.counts > 0, stops, 0), self._call_tokens)
        return replace(call, pages=CallPages(table, self._page_size, copies, groups))

    def make_room(self, slot: int, tokens: int) -> None:
        """Allocate a slot's own pages for tokens. Raises ExecutionError if there are too few."""
        if self.pages is not None and not self.pages.is_scheduled:
            self.pages.release(slot)
            self.pages.grow(slot, tokens)

    def blocks(self, tokens: int) -> LocalBlocks | None:
        """Return what copies pages to and from the host; None if slots hold more than tokens."""
        if self._state_names:
            return None
        assert tokens == self._page_size
        arrays = {name: codes(array) for name, array in self._arrays.items()}
        return LocalBlocks(self.form(tokens), arrays, self._stream, self.table)

    def _shape(self, spec: InputSpec) -> tuple[int, ...]:
        first = self._page_count if spec.feeder == "cache" else self.slots
        return (first, *spec.shape[1:])

    def _read(self, name: str, slot: int, count: int) -> torch.Tensor:
        array = self._arrays[name]
        by_page = codes(array)[to_device(self._page_numbers(slot, count), array.device)]  # [n, K, page_tokens, H]
        return by_page.transpose(0, 1).flatten(1, 2)[:, : self.context.count(count)].view(array.dtype)

    def _write(self, name: str, slot: int, values: torch.Tensor) -> None:
        array = codes(self._arrays[name])
        heads, own_tokens = array.shape[1:3]  # tokens of a page that this rank holds
        pages = self.table[slot, : -(-values.shape[1] // own_tokens)].astype(np.int64)
        whole = torch.zeros(heads, len(pages) * own_tokens, values.shape[2], dtype=array.dtype)
        whole[:, : values.shape[1]] = codes(values)
        by_page = whole.view(heads, len(pages), own_tokens, values.shape[2]).transpose(0, 1)
        self._run(
            lambda: array.__setitem__(to_device(pages, array.device), to_device(by_page.contiguous(), array.device))
        )

    def _copy_tokens(self, source: int, target: int, tokens: slice) -> None:
        """Let `target` share the pages of `source`; it copies those that it later writes."""
        if self.pages is not None and not self.pages.is_scheduled:
            self.pages.share(source, target, tokens.indices(self.max_length)[1])

    def copy_pages(self, copies: PageCopies) -> None:
        """Copy pages in all layers."""
        if not copies.sources:
            return
        arrays = [codes(self._arrays[spec.name]) for spec in self.specs]
        self._run(partial(_copy_rows, arrays, *(np.array(pages, np.int64) for pages in copies)))

    def _places(self, tokens: NewTokens, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return pages and indices in them, [R, S]; padding goes to page 0."""
        assert tokens.table is not None
        new = torch.arange(size, device=tokens.starts.device)
        positions = tokens.starts[:, None] + new
        at = (positions // self._page_size).clamp(max=tokens.table.shape[1] - 1)
        pages, is_new = tokens.table.long().gather(1, at), new < tokens.counts[:, None]
        if self.context.is_whole:
            return torch.where(is_new, pages, 0), positions % self._page_size
        return torch.where(is_new & self.context.is_here(positions), pages, 0), positions % self.context.block

    def _place_of(self, slots: Ints, positions: Ints) -> Place:
        """Return the pages of cached tokens, and the indices in them."""
        assert self.context.is_whole
        return self.table[slots, positions // self._page_size].astype(np.int64), positions % self._page_size

    def _page_numbers(self, slot: int, count: int) -> Ints:
        return self.table[slot, : -(-count // self._page_size)].astype(np.int64)


def open_cache(
    specs: Iterable[InputSpec],
    slots: int,
    max_length: int,
    dtype_of: Callable[[InputSpec], torch.dtype],
    stream: Stream | None = None,
    pool: PoolSize = AS_LINEAR,
    context: Share = WHOLE,
) -> KvCache:
    """Return the caches for a network's inputs. pool: size of paged ones. context: see KvCache."""
    specs = list(specs)
    if pool.model is not None:
        return pool.model.part(specs, follows=True)
    specs = with_speculator(specs, pool.speculator)
    if page_tokens_of(specs) is not None:
        return PagedCache(specs, slots, max_length, dtype_of, stream, pool, context)
    return KvCache(specs, slots, max_length, dtype_of, stream, context)


def _copy_rows(arrays: Sequence[torch.Tensor], sources: Ints, targets: Ints) -> None:
    """Copy pages within each array, with indices on the stream that runs this."""
    source, target = (to_device(numbers, arrays[0].device) for numbers in (sources, targets))
    for array in arrays:
        array[target] = array[source]
