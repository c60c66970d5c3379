"""Full pages by what they hold, so that prompts that begin alike read the same pages."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_KEY_BYTES = 32
START = b""
"""The key before the first block."""


def next_key(parent: bytes, content: bytes) -> bytes:
    """Return the key of a block with this content after the block `parent`."""
    return blake2b(len(parent).to_bytes(1, "little") + parent + content, digest_size=_KEY_BYTES).digest()


def block_keys(contents: Iterable[bytes]) -> list[bytes]:
    """Return the keys of a sequence's blocks, in order, by the content of each."""
    keys, parent = [], START
    for content in contents:
        parent = next_key(parent, content)
        keys.append(parent)
    return keys


ROOT = 0
"""The parent of first pages; page 0 holds nobody's tokens."""


class PageChange(NamedTuple):
    """A page that can be found now, after its parent; or no longer, if its content is None. key: of what it held."""

    page: int
    parent: int = ROOT
    content: bytes | None = None
    key: bytes = b""


class PrefixTree:
    """Pages by their own content and their parent, the page of the tokens before.

    Contents are compared, not hashes of them. A page is used as long as a slot reads it. Unused ones stay until their
    memory is needed, oldest first, and a page never outlives those that follow it: whoever uses a page uses its
    parent, and pages fall out of use from the last to the first.

    is_saved: whether the block of a key is somewhere else, too; if not, a page that falls out of use is `next_unsaved`.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[int, bytes], int] = {}
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._chains: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._unsaved: OrderedDict[int, None] = OrderedDict()  # of the unused ones
        self.is_saved: Callable[[bytes], bool] = lambda _key: True
        self._changes: list[PageChange] | None = None

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
        self._chains[page] = next_key(self._chains.get(parent, START), content)
        if self._changes is not None:
            self._changes.append(PageChange(page, parent, content))

    def use(self, page: int) -> None:
        """Note that a slot begins to use a page."""
        self._unused.pop(page, None)
        self._unsaved.pop(page, None)

    def rest(self, page: int) -> None:
        """Note that no slot uses a page any longer; those that follow it are unused already."""
        self._unused[page] = None
        if not self.is_saved(self._chains[page]):
            self._unsaved[page] = None

    @property
    def saved(self) -> int:
        """How many unused pages can be taken without a loss."""
        return len(self._unused) - len(self._unsaved)

    @property
    def has_unsaved(self) -> bool:
        """Whether `next_unsaved` has a page."""
        return bool(self._unsaved)

    def next_unsaved(self) -> tuple[int, bytes]:
        """Return the unsaved page that is evicted first, and the key of what it holds: it will be saved now."""
        page, _ = self._unsaved.popitem(last=False)
        return page, self._chains[page]

    def key(self, page: int) -> bytes:
        """Return the key of what a page holds."""
        return self._chains[page]

    def evict(self) -> tuple[int, bytes]:
        """Forget the page that has been unused for longest; return it, and the key of what it holds."""
        page, _ = self._unused.popitem(last=False)
        self._unsaved.pop(page, None)
        del self._pages[self._keys.pop(page)]
        if self._changes is not None:
            self._changes.append(PageChange(page, key=self._chains[page]))
        return page, self._chains.pop(page)

    def keys(self) -> dict[int, bytes]:
        """Return the keys of what pages hold, by page, each after its parent's."""
        return dict(self._chains)

    def changes(self) -> list[PageChange]:
        """Return what has changed since the last call, in order; the first time all pages, parents first."""
        if self._changes is None:
            self._changes = [PageChange(page, *key) for page, key in self._keys.items()]
        changes, self._changes = self._changes, []
        return changes
