"""The pages of beginnings that an engine could share, as blocks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.deployment.dynamo.held_blocks import Removed, Stored, block_hashes
from trtkit.deployment.dynamo.worker_options import BLOCK_SIZE
from trtkit.runtime.paging import ROOT
from trtkit.runtime.sequences import TOKEN_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.deployment.dynamo.held_blocks import Event
    from trtkit.runtime.host_cache import BlockTier
    from trtkit.runtime.paging import PageChange


class HeldPages:
    """Follows which pages of `page_tokens` tokens can be found, a multiple of blocks, or brought back from the host.

    Pages with images hold nothing here, nor do those after them: their tokens do not say what is cached. The same is
    true of pages of LoRA adapters.
    """

    def __init__(self, page_tokens: int, block_size: int = BLOCK_SIZE) -> None:
        self._page_tokens, self._size = page_tokens, block_size
        self._hashes: dict[int, list[int]] = {}
        self._on_host: dict[int, tuple[bytes, list[int]]] = {}  # by the last hash
        self._drops = 0

    def changes(self, changes: Iterable[PageChange], host: BlockTier | None = None) -> list[Event]:
        """Return pages that came and went as blocks that are stored and removed; on the host they are stored, too."""
        events: list[Event] = []
        has_moved = False
        for change in changes:
            if change.content is None:
                if hashes := self._hashes.pop(change.page, None):
                    self._on_host[hashes[-1]], has_moved = (change.key, hashes), True
            elif change.parent == ROOT or change.parent in self._hashes:
                stored = self._stored(change, change.content)
                events += [] if stored is None else [stored]
        drops = 0 if host is None else host.store.drops
        has_lost = has_moved or drops != self._drops or host is None
        gone, self._drops = self._lost(host) if has_lost else [], drops
        return [*events, Removed(type="removed", block_hashes=gone)] if gone else events

    def all_gone(self) -> list[Event]:
        """Return everything that is held as removed."""
        on_host = (hashes for _, hashes in self._on_host.values())
        hashes = [each for page in (*self._hashes.values(), *on_host) for each in page]
        return [Removed(type="removed", block_hashes=hashes)] if hashes else []

    def _lost(self, host: BlockTier | None) -> list[int]:
        """Forget the blocks that neither the caches nor the host have any longer; return their hashes."""
        lost = [last for last, (key, _) in self._on_host.items() if host is None or not host.holds(key)]
        return [each for last in lost for each in self._on_host.pop(last)[1]]

    def _stored(self, change: PageChange, content: bytes) -> Stored | None:
        parent = None if change.parent == ROOT else self._hashes[change.parent][-1]
        tokens = np.frombuffer(content, np.int64)
        if len(tokens) != self._page_tokens or tokens[0] >> TOKEN_BITS:
            return None
        hashes = self._hashes[change.page] = block_hashes(tokens, self._size, parent)
        if self._on_host.pop(hashes[-1], None) is not None:
            return None  # the router knows
        return Stored(
            type="stored",
            token_ids=tokens.tolist(),
            num_block_tokens=[self._size] * len(hashes),
            block_hashes=hashes,
            parent_hash=parent,
        )
