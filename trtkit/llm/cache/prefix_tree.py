"""Full pages by what they hold, so that prompts that begin alike read the same pages."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from trtkit.llm.cache.held_blocks import START, Block, ChangeLog, block_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = 0
"""The parent of first pages; page 0 holds nobody's tokens."""


class PrefixTree:
    """Pages by their own content and their parent, the page of the tokens before.

    Contents are compared, not hashes of them. A page is used as long as a slot reads it. Unused ones stay until their
    memory is needed, oldest first, and a page never outlives those that follow it: whoever uses a page uses its
    parent, and pages fall out of use from the last to the first.

    is_saved: whether the block of a key is somewhere else, too; if not, a page that falls out of use is `next_unsaved`.
    changes: the pages that can be found.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, bytes], int] = {}
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._blocks: dict[int, Block] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._unsaved: OrderedDict[int, None] = OrderedDict()  # of the unused ones
        self.is_saved: Callable[[bytes], bool] = lambda _key: True
        self.changes = ChangeLog(lambda: ((block.key, [block]) for block in self._blocks.values()))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def unused(self) -> int:
        """How many pages could be taken for something else."""
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
        """Return the page with this content after `parent`, None if there is none."""
        return self._pages.get((parent, content))

    def add(self, parent: int, content: bytes, page: int) -> None:
        """Let a page that a slot uses be found."""
        self._pages[parent, content] = page
        self._keys[page] = parent, content
        block = self._blocks[page] = block_after(START if parent == ROOT else self._blocks[parent].key, content)
        self.changes.note_held(block.key, lambda: [block])

    def use(self, page: int) -> None:
        """Note that a slot begins to use a page."""
        self._unused.pop(page, None)
        self._unsaved.pop(page, None)

    def rest(self, page: int) -> None:
        """Note that no slot uses a page any longer; those that follow it are unused already."""
        self._unused[page] = None
        if not self.is_saved(self._blocks[page].key):
            self._unsaved[page] = None

    @property
    def saved(self) -> int:
        """How many unused pages can be taken without a loss."""
        return len(self._unused) - len(self._unsaved)

    @property
    def has_unsaved(self) -> bool:
        """Whether `next_unsaved` has a page."""
        return bool(self._unsaved)

    def next_unsaved(self) -> tuple[int, Block]:
        """Return the unsaved page that is evicted first, and what it holds: it will be saved now."""
        page, _ = self._unsaved.popitem(last=False)
        return page, self._blocks[page]

    def block(self, page: int) -> Block:
        """Return what a page holds."""
        return self._blocks[page]

    def evict(self) -> tuple[int, Block]:
        """Forget the page that has been unused for longest; return it, and what it holds."""
        page, _ = self._unused.popitem(last=False)
        self._unsaved.pop(page, None)
        del self._pages[self._keys.pop(page)]
        block = self._blocks.pop(page)
        self.changes.note_lost(block.key)
        return page, block

    def blocks(self) -> dict[int, Block]:
        """Return what pages hold, by page, each after its parent."""
        return dict(self._blocks)
