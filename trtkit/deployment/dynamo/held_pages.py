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
    from trtkit.runtime.paging import PageChange


class HeldPages:
    """Follows which pages of `page_tokens` tokens can be found, a multiple of blocks.

    Pages with images hold nothing here, nor do those after them: their tokens do not say what is cached. The same is
    true of pages of LoRA adapters.
    """

    def __init__(self, page_tokens: int, block_size: int = BLOCK_SIZE) -> None:
        self._page_tokens, self._size = page_tokens, block_size
        self._hashes: dict[int, list[int]] = {}

    def changes(self, changes: Iterable[PageChange]) -> list[Event]:
        """Return pages that came and went as blocks that are stored and removed."""
        events: list[Event] = []
        for change in changes:
            if change.content is None:
                if hashes := self._hashes.pop(change.page, None):
                    events.append(Removed(type="removed", block_hashes=hashes))
            elif change.parent == ROOT or change.parent in self._hashes:
                stored = self._stored(change, change.content)
                events += [] if stored is None else [stored]
        return events

    def all_gone(self) -> list[Event]:
        """Return everything that is held as removed."""
        hashes = [each for page in self._hashes.values() for each in page]
        return [Removed(type="removed", block_hashes=hashes)] if hashes else []

    def _stored(self, change: PageChange, content: bytes) -> Stored | None:
        parent = None if change.parent == ROOT else self._hashes[change.parent][-1]
        tokens = np.frombuffer(content, np.int64)
        if len(tokens) != self._page_tokens or tokens[0] >> TOKEN_BITS:
            return None
        hashes = self._hashes[change.page] = block_hashes(tokens, self._size, parent)
        return Stored(
            type="stored",
            token_ids=tokens.tolist(),
            num_block_tokens=[self._size] * len(hashes),
            block_hashes=hashes,
            parent_hash=parent,
        )
