"""Beginnings of prompts that an engine has cached: found, given to other engines and taken from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import ExecutionError
from trtkit.llm.scheduler.pages import register_running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.cache import PageChange
    from trtkit.llm.engine.state import State
    from trtkit.llm.execution import SavedSequence


class Prefixes:
    """What an engine has cached of prompts without adapters. min_tokens: of a beginning that is worth to be given."""

    def __init__(self, state: State, min_tokens: int) -> None:
        self._state, self._cache, self._min_tokens = state, state.execution.cache, min_tokens

    def export(self, ids: Sequence[int]) -> SavedSequence | None:
        """Return the longest beginning of a prompt that a slot's cache holds, without the last token; None if short."""
        count, cache = self.tokens_of(ids), self._cache
        if count < self._min_tokens:
            return None
        if not self._state.finds_by_content or cache.pages is None:
            return cache.save(self._state.slots.shared_prefix(ids)[0], count)
        spare = self._state.slots.count  # a row of the table that no request has
        cache.pages.adopt(spare, cache.pages.match(np.asarray(ids, np.int64)))
        saved = cache.save(spare, count)
        cache.pages.release(spare)
        return saved

    def tokens_of(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt's beginning, without its last one, are cached."""
        return self._state.shared_prefix(np.asarray(ids, np.int64))[1]

    @property
    def are_pages(self) -> bool:
        """Whether beginnings of prompts are found as pages, not in slots."""
        return self._state.finds_by_content

    def changes(self) -> list[PageChange]:
        """Return which pages of beginnings have come and gone since the last call, if `are_pages`."""
        assert self._state.pages is not None
        register_running(self._state)
        return self._state.pages.tree.changes()

    def has_whole(self, ids: Sequence[int]) -> bool:
        """Whether all of a prompt that can be cached is: all but its last token, or the full pages of that."""
        pages, most = self._state.pages, len(ids) - 1
        if pages is not None and self._state.finds_by_content:
            most -= most % pages.page_tokens
        return self.tokens_of(ids) == most

    def add(self, ids: Sequence[int], saved: SavedSequence) -> bool:
        """Keep what another engine has computed of a prompt, for the next one that begins so.

        ids: the cached tokens, or more. Return whether there is memory for it; if not, the prompt is computed here.
        Raises ExecutionError for a sequence of another model, or of other caches, and for fewer ids than it has tokens.
        """
        self._cache.check(saved)
        if len(ids) < saved.tokens:
            what = f"{len(ids)} token ids are too few for {saved.tokens} cached tokens"
            raise ExecutionError(what, "KV cache", "give the ids of all cached tokens")
        return self._state.imports.add(np.asarray(ids[: saved.tokens], np.int64), saved)
