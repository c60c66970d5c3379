"""What is done with cached tokens between calls, as data: copies, saves to the host, and loads from there.

Numbers only, so that a scheduler can decide them without the memory, and who has the memory can carry them out later.
Slots, pages and rows are reused, so their order matters: what is saved before its memory is overwritten, and what is
copied after it was loaded. JSON tells the kinds apart by the names of their fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trtkit.llm.cache.page_tables import PageTables
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True)
class CopyTokens:
    """Copy the cached tokens from `start` to `stop` of a slot to another, and all that the slot holds besides."""

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True)
class CopyPages:
    """Copy pages that others read too, or can find, to those that a slot is about to write to."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class SaveBlocks:
    """Copy blocks of the caches to rows of host memory."""

    places: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class LoadBlocks:
    """Copy rows of host memory to blocks of the caches: before the next call, or under a number until it is awaited."""

    kept: tuple[int, ...]
    places: tuple[int, ...]
    number: int = 0


@dataclass(frozen=True)
class AwaitBlocks:
    """Let the next call find what is loaded under a number, and all that was loaded before it."""

    awaited: int


@dataclass(frozen=True)
class FillRows:
    """Write what was read from files to rows of host memory."""

    filled: tuple[int, ...]


@dataclass(frozen=True)
class SaveSequence:
    """Save the first `tokens` of a slot as a whole under a number. pages: the slot's, if caches are paged."""

    saved: int
    slot: int
    tokens: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadSequence:
    """Begin a slot with the `tokens` of a sequence that was saved under a number. pages: as in SaveSequence."""

    loaded: int
    slot: int
    tokens: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class DropSequence:
    """Forget what was saved under a number."""

    dropped: int


Copy = CopyTokens | CopyPages
"""A transfer within the caches, which every rank does with its own."""
HostTransfer = SaveBlocks | LoadBlocks | AwaitBlocks | FillRows | SaveSequence | LoadSequence | DropSequence
"""A transfer between the caches and the host, or on the host."""
Transfer = Copy | HostTransfer


class Sized(Protocol):
    """What a number of cached tokens takes."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        ...


class CacheLayout(Protocol):
    """What decisions about caches depend on; the memory itself stays out of them.

    positions: [slots], how many tokens the recurrent states of each slot have read, if there are some.
    """

    positions: Ints

    @property
    def pages(self) -> PageTables | None:
        """Which pages hold which slot's tokens; None if each slot has memory of its own."""
        ...

    @property
    def has_slot_memory(self) -> bool:
        """Whether a slot holds parts of its sequence besides keys and values."""
        ...

    @property
    def has_states(self) -> bool:
        """Whether layers keep recurrent states, with which a sequence can only go on after all tokens they read."""
        ...

    @property
    def block_multiple(self) -> int:
        """What divides the tokens of blocks that are saved on their own."""
        ...

    def form(self, tokens: int) -> Sized:
        """Return what `tokens` of a sequence are when they are saved."""
        ...
