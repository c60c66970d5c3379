"""An engine's cached prefixes: looked up, exported to other engines, and imported from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.llm.cache.held_blocks import Change
    from trtkit.llm.cache.prefix_store import PrefixStore
    from trtkit.llm.execution import SavedSequence
    from trtkit.llm.execution.execution import SequenceCache
    from trtkit.llm.scheduler.slots import Slots


class Prefixes:
    """An engine's cached prefixes of prompts without adapters. min_tokens: the shortest prefix worth exporting."""

    def __init__(self, store: PrefixStore, slots: Slots, cache: SequenceCache, min_tokens: int) -> None:
        self.store, self._slots, self._cache, self._min_tokens = store, slots, cache, min_tokens

    def export(self, ids: Sequence[int]) -> SavedSequence | None:
        """Return the longest cached prefix of a prompt, except its last token; None if it is too short."""
        count, cache, pages = self.tokens_of(ids), self._cache, self.store.pages
        if count < self._min_tokens:
            return None
        if not self.store.finds_by_content or pages is None:
            return cache.save(self._slots.shared_prefix(ids)[0], count)
        spare = self._slots.count  # a row of the table without a request
        cache.tell(spare, pages.match(np.asarray(ids, np.int64)))
        return cache.save(spare, count)

    def tokens_of(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt, except its last, are cached."""
        return self.store.shared_prefix(np.asarray(ids, np.int64))[1]

    @property
    def are_pages(self) -> bool:
        """Whether prefixes are in pages rather than slots."""
        return self.store.finds_by_content

    @property
    def block_tokens(self) -> int:
        """Tokens per block in `changes`."""
        return self.store.host.block_tokens

    def changes(self) -> Iterator[Change]:
        """Yield what all tiers have gained and lost since the last call; the first time, everything they hold."""
        return self.store.changes()

    def has_whole(self, ids: Sequence[int]) -> bool:
        """Whether everything of a prompt that can be cached is: all but its last token, or the full pages of that."""
        pages, most = self.store.pages, len(ids) - 1
        if pages is not None and self.store.finds_by_content:
            most -= most % pages.page_tokens
        return self.tokens_of(ids) == most

    def add(self, ids: Sequence[int], saved: SavedSequence) -> bool:
        """Keep a prefix that another engine has computed, for the next prompt that starts with it.

        ids: the cached tokens, or more. Returns False if there is no memory for it; the prompt is then computed here.
        Raises ExecutionError for a sequence of another model or of other caches, and for fewer ids than it has tokens.
        """
        self._cache.check(saved)
        if len(ids) < saved.tokens:
            what = f"{len(ids)} token ids are too few for {saved.tokens} cached tokens"
            raise ExecutionError(what, "KV cache", "give the ids of all cached tokens")
        return self.store.host.imports.put(np.asarray(ids[: saved.tokens], np.int64), saved)
