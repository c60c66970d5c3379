"""Full pages by content, so that prompts with a common prefix share pages."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from trtkit.llm.cache.held_blocks import START, Block, ChangeLog, block_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = 0
"""The parent of first pages; page 0 belongs to no sequence."""


class PrefixTree:
    """Pages by content and parent, the page of the tokens before.

    Contents are compared, not their hashes. A page is in use as long as a slot reads it. Unused pages stay until their
    memory is needed, oldest first, and no page is evicted before its successors: whoever uses a page uses its parent,
    and a sequence's pages fall out of use from the last to the first.

    is_saved: whether the block of a key is also elsewhere; if not, a page that falls out of use is `next_unsaved`.
    changes: the pages that can be found.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, bytes], int] = {}
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._blocks: dict[int, Block] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._unsaved: OrderedDict[int, None] = OrderedDict()  # among the unused ones
        self.is_saved: Callable[[bytes], bool] = lambda _key: True
        self.changes = ChangeLog(lambda: ((block.key, [block]) for block in self._blocks.values()))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def unused(self) -> int:
        """Number of pages that could be evicted."""
        return len(self._unused)

    def match(self, contents: Iterable[bytes]) -> list[int]:
        """Return the pages of the longest cached prefix, in order."""
        pages, parent = [], ROOT
        for content in contents:
            page = self._pages.get((parent, content))
            if page is None:
                break
            pages.append(page)
            parent = page
        return pages

    def child(self, parent: int, content: bytes) -> int | None:
        """Return the page with this content that follows `parent`; None if there is none."""
        return self._pages.get((parent, content))

    def add(self, parent: int, content: bytes, page: int) -> None:
        """Let prompts find a page that a slot uses."""
        self._pages[parent, content] = page
        self._keys[page] = parent, content
        block = self._blocks[page] = block_after(START if parent == ROOT else self._blocks[parent].key, content)
        self.changes.note_held(block.key, lambda: [block])

    def use(self, page: int) -> None:
        """Record that a slot starts using a page."""
        self._unused.pop(page, None)
        self._unsaved.pop(page, None)

    def rest(self, page: int) -> None:
        """Record that no slot uses a page any longer; its successors are unused already."""
        self._unused[page] = None
        if not self.is_saved(self._blocks[page].key):
            self._unsaved[page] = None

    @property
    def saved(self) -> int:
        """Number of unused pages that can be evicted without loss."""
        return len(self._unused) - len(self._unsaved)

    @property
    def has_unsaved(self) -> bool:
        """Whether `next_unsaved` has a page."""
        return bool(self._unsaved)

    def next_unsaved(self) -> tuple[int, Block]:
        """Return the unsaved page that will be evicted first, and its block; it now counts as saved."""
        page, _ = self._unsaved.popitem(last=False)
        return page, self._blocks[page]

    def block(self, page: int) -> Block:
        """Return the block that a page holds."""
        return self._blocks[page]

    def evict(self) -> tuple[int, Block]:
        """Evict the page that has been unused longest; return it and its block."""
        page, _ = self._unused.popitem(last=False)
        self._unsaved.pop(page, None)
        del self._pages[self._keys.pop(page)]
        block = self._blocks.pop(page)
        self.changes.note_lost(block.key)
        return page, block

    def blocks(self) -> dict[int, Block]:
        """Return the blocks by page, parents first."""
        return dict(self._blocks)
