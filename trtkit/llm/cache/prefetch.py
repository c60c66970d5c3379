"""Prefixes of the next waiting requests, loaded from host memory into free pages before the requests start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.llm.cache.held_blocks import contents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.cache.host.blocks import Arrival
    from trtkit.llm.cache.host.tier import HostTier
    from trtkit.llm.cache.page_tables import PageTables
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

_MOST_HELD = 0.125  # share of all pages


@dataclass(eq=False)
class _Prefetched:
    """Pages protected from eviction: known ones, and those loaded after them with their future contents.

    arrival: when they arrive; None once they have. is_wanted: whether the request still waits.
    """

    known: Sequence[int]
    loaded: Sequence[int]
    contents: Sequence[bytes]
    arrival: Arrival | None
    tokens: int
    is_wanted: bool = True

    @property
    def pages(self) -> list[int]:
        return [*self.known, *self.loaded]


class Prefetches:
    """What was loaded for waiting requests, by request id. Once it has arrived, all requests can find it."""

    def __init__(self, pages: PageTables, host: HostTier) -> None:
        self._pages, self._host = pages, host
        self._known: dict[str, _Prefetched | None] = {}  # None: there was nothing to load
        self._loading: list[_Prefetched] = []

    def may_begin(self, request_id: str, tokens: int) -> bool:
        """Whether to load a request's host blocks.

        The link is idle, and there are free pages for all of the request.
        """
        if request_id in self._known or not self._host.link.is_free:
            return False
        needed = -(-tokens // self._pages.page_tokens)
        most = int(_MOST_HELD * self._pages.pages)
        return len(self.held()) + needed <= most and self._pages.free - needed >= most

    def held(self) -> list[int]:
        """Return the pages protected from eviction."""
        orphans = [prefetched for prefetched in self._loading if not prefetched.is_wanted]
        known = [prefetched for prefetched in self._known.values() if prefetched is not None]
        return [page for prefetched in (*known, *orphans) for page in prefetched.pages]

    def begin(self, request_id: str, ids: Ints, soft: SoftTokens | None, least: int) -> None:
        """Start loading what the host has of a request's `ids`, in the compared form, if at least `least` tokens."""
        pages, size = self._pages, self._pages.page_tokens
        matched = pages.match(ids, soft)
        common, blocks = len(matched) * size, self._host.blocks
        on_host = self._host.find(ids, soft, common, max(common + 1, least))
        self._known[request_id] = None
        if on_host is None or blocks is None:
            return
        loaded = pages.hold(matched, len(on_host.keys))
        arrival = blocks.load(on_host.keys, loaded)
        blocks.store.release(on_host.keys)
        new = list(contents(ids, size, soft, slice(len(matched), on_host.tokens // size)))
        prefetched = _Prefetched(matched, loaded, new, arrival, on_host.tokens - common)
        self._known[request_id] = prefetched
        self._loading.append(prefetched)

    def tokens_of(self, request_id: str) -> int:
        """Return how many tokens were loaded for a request and have arrived."""
        prefetched = self._known.get(request_id)
        return 0 if prefetched is None or prefetched.arrival is not None else prefetched.tokens

    def land(self, now_s: float) -> None:
        """Let prompts find pages that have arrived."""
        for prefetched, arrival in [(prefetched, prefetched.arrival) for prefetched in self._loading]:
            if arrival is None or arrival.due_s > now_s:
                continue
            if self._host.blocks is not None:
                self._host.blocks.await_load(arrival)
            prefetched.arrival = None
            self._loading.remove(prefetched)
            prefetched.loaded = self._pages.register_held(prefetched.known, prefetched.loaded, prefetched.contents)
            if not prefetched.is_wanted:
                self._pages.let_go(prefetched.pages)

    def release(self, request_id: str) -> None:
        """Allow the pages of a request to be evicted once they have arrived."""
        prefetched = self._known.pop(request_id, None)
        if prefetched is not None:
            prefetched.is_wanted = False
            if prefetched.arrival is None:
                self._pages.let_go(prefetched.pages)

    def give_way(self) -> bool:
        """Allow all pages to be evicted, after waiting for pending ones; return whether there were any."""
        self.land(math.inf)
        arrived = [
            prefetched for prefetched in self._known.values() if prefetched is not None and not prefetched.arrival
        ]
        held = [prefetched for prefetched in arrived if prefetched.pages]
        for prefetched in held:
            self._pages.let_go(prefetched.pages)
            prefetched.known = prefetched.loaded = ()
        return bool(held)
