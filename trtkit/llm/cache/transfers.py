"""Operations on cached tokens between calls, as data: copies, saves to the host, and loads from it.

Numbers only: a scheduler decides them without the memory, and the owner of the memory carries them out later. Slots,
pages and rows are reused, so order matters: a save comes before its memory is overwritten, a copy after what it copies
is loaded. JSON distinguishes the kinds by their fields' names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trtkit.llm.cache.page_tables import PageTables
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True)
class CopyTokens:
    """Copy a slot's cached tokens from `start` to `stop` to another slot, with everything else that the slot holds."""

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True)
class CopyPages:
    """Copy shared pages to those that a slot is about to write instead."""

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
    """Make the next call wait for the load of a number, and for all earlier loads."""

    awaited: int


@dataclass(frozen=True)
class FillRows:
    """Write data read from files to rows of host memory."""

    filled: tuple[int, ...]


@dataclass(frozen=True)
class SaveSequence:
    """Save the first `tokens` of a slot as one sequence under a number. pages: the slot's, if caches are paged."""

    saved: int
    slot: int
    tokens: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadSequence:
    """Load the `tokens` of a saved sequence into a slot. pages: as in SaveSequence."""

    loaded: int
    slot: int
    tokens: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class DropSequence:
    """Drop the sequence saved under a number."""

    dropped: int


Copy = CopyTokens | CopyPages
"""A transfer within the caches, which every rank repeats on its own."""
HostTransfer = SaveBlocks | LoadBlocks | AwaitBlocks | FillRows | SaveSequence | LoadSequence | DropSequence
"""A transfer between the caches and the host, or on the host."""
Transfer = Copy | HostTransfer


class Sized(Protocol):
    """The size of a number of cached tokens."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        ...


class CacheLayout(Protocol):
    """The facts about caches that decisions depend on, without their memory.

    positions: [slots], tokens that the recurrent states of each slot have read, if there are any.
    """

    positions: Ints

    @property
    def pages(self) -> PageTables | None:
        """The page tables; None if each slot has memory of its own."""
        ...

    @property
    def has_slot_memory(self) -> bool:
        """Whether a slot holds more of its sequence than keys and values."""
        ...

    @property
    def has_states(self) -> bool:
        """Whether layers keep recurrent states, from which a sequence continues only after all tokens they read."""
        ...

    @property
    def block_multiple(self) -> int:
        """Divisor of the tokens of blocks saved on their own."""
        ...

    def form(self, tokens: int) -> Sized:
        """Return the size of `tokens` saved tokens of a sequence."""
        ...
