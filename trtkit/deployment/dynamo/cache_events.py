"""Tells Dynamo's router after each step which blocks a worker's cache holds and how full it is."""

from __future__ import annotations

import logging
import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NotRequired, Protocol, TypedDict, TypeVar

import numpy as np
from dynamo.common.backend.publisher import ComponentSnapshot

from trtkit.deployment.dynamo.options import BLOCK_SIZE
from trtkit.deployment.engine_metrics import hit_rate
from trtkit.llm.cache import ROOT
from trtkit.llm.sequences import TOKEN_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trtkit.llm.cache import PageChange
    from trtkit.llm.cache.host import BlockTier
    from trtkit.llm.engine import LLMEngine
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints

_RANK = 0  # of data-parallel ranks, of which a worker has one
log = logging.getLogger("trtkit.dynamo")
T = TypeVar("T")


class EventPublisher(Protocol):
    """Dynamo's KvEventPublisher."""

    def publish_batch(self, events: Sequence[Event]) -> None:
        """Send events in their order."""
        ...


class LoadPublisher(Protocol):
    """Dynamo's SnapshotPublisher."""

    def publish(self, dp_rank: int, snapshot: ComponentSnapshot) -> None:
        """Send how full a cache is."""
        ...


class CacheEvents:
    """An EngineThread's `on_step`. Publishers may be set at any time, from any thread: what is held then is sent first.

    A publisher that fails is told nothing more: requests go on, and are routed without it.
    """

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.events: EventPublisher | None = None
        self.load: LoadPublisher | None = None
        self._size = block_size
        self._blocks: HeldBlocks | None = None
        self._pages: HeldPages | None = None
        self._engine: Callable[[], LLMEngine | None] = lambda: None
        self._snapshot: ComponentSnapshot | None = None

    def update(self, engine: LLMEngine) -> None:
        """Publish what has changed since the last call; called in the engine's thread."""
        if self.events is not None and (changes := self._changes(engine)):
            self.events = _told(self.events, lambda to: to.publish_batch(changes))
        if self.load is not None:
            snapshot = load_of(engine, self._size)
            if snapshot != self._snapshot:
                self._snapshot = snapshot
                self.load = _told(self.load, lambda to: to.publish(_RANK, snapshot))

    def _changes(self, engine: LLMEngine) -> list[Event]:
        gone: list[Event] = []
        if self._engine() is not engine:  # the first, or one that a model made when it woke up, with empty caches
            self._engine = weakref.ref(engine)
            gone = [event for held in (self._blocks, self._pages) if held is not None for event in held.all_gone()]
            self._blocks = self._pages = None
        return [*gone, *self._changes_of(engine)]

    def _changes_of(self, engine: LLMEngine) -> list[Event]:
        if engine.prefixes.are_pages and (pages := engine.execution.cache.pages) is not None:
            self._pages = self._pages or HeldPages(pages.page_tokens, self._size)
            return self._pages.changes(engine.prefixes.changes(), engine.host.blocks)
        self._blocks = self._blocks or HeldBlocks(engine.slots.count, self._size)
        return self._blocks.changes(engine.slots)


def blocks_of(execution: DecoderExecution, block_size: int = BLOCK_SIZE) -> int:
    """Return how many blocks a decoder's caches hold."""
    pages = execution.cache.pages
    tokens = execution.slots * execution.max_length if pages is None else (pages.pages - 1) * pages.page_tokens
    return tokens // block_size


def load_of(engine: LLMEngine, block_size: int = BLOCK_SIZE) -> ComponentSnapshot:
    """Return how full an engine's cache is. A slot that has ended is free: what it holds gives way."""
    slots = engine.slots
    used = int((-(-slots.cached[slots.is_running] // block_size)).sum())
    pages, total = engine.execution.cache.pages, blocks_of(engine.execution, block_size)
    if pages is not None:
        used = pages.held * pages.page_tokens // block_size
    used = min(used, total)
    return ComponentSnapshot(used, total, used / max(total, 1), _RANK, hit_rate(engine))


def _told(publisher: T, tell: Callable[[T], None]) -> T | None:
    """Return the publisher, None if it failed."""
    try:
        tell(publisher)
    except Exception:
        log.exception("the router is told nothing more of this worker's cache: its publisher failed")
        return None
    return publisher


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
        on_host = (hashes for _, hashes in self._on_host.values())
        hashes = [page_hash for page in (*self._hashes.values(), *on_host) for page_hash in page]
        return [Removed(type="removed", block_hashes=hashes)] if hashes else []

    def _lost(self, host: BlockTier | None) -> list[int]:
        """Forget the blocks that neither the caches nor the host have any longer; return their hashes."""
        lost = [last for last, (key, _) in self._on_host.items() if host is None or not host.holds(key)]
        return [block_hash for last in lost for block_hash in self._on_host.pop(last)[1]]

    def _stored(self, change: PageChange, content: bytes) -> StoredBlocks | None:
        parent = None if change.parent == ROOT else self._hashes[change.parent][-1]
        tokens = np.frombuffer(content, np.int64)
        if len(tokens) != self._page_tokens or tokens[0] >> TOKEN_BITS:
            return None
        hashes = self._hashes[change.page] = block_hashes(tokens, self._size, parent)
        if self._on_host.pop(hashes[-1], None) is not None:
            return None  # the router knows
        return StoredBlocks(
            type="stored",
            token_ids=tokens.tolist(),
            num_block_tokens=[self._size] * len(hashes),
            block_hashes=hashes,
            parent_hash=parent,
        )


class StoredBlocks(TypedDict):
    """Blocks that follow each other and that a cache holds now. parent_hash: of the block before; None at a start."""

    type: Literal["stored"]
    token_ids: list[int]
    num_block_tokens: list[int]
    block_hashes: list[int]
    parent_hash: NotRequired[int | None]


class Removed(TypedDict):
    """Blocks that a cache holds no more."""

    type: Literal["removed"]
    block_hashes: list[int]


Event = StoredBlocks | Removed


def block_hashes(tokens: Ints, size: int, parent: int | None) -> list[int]:
    """Return the hash of each block of `size` tokens, signed, of 64 bits. parent: of the block before, if any."""
    hashes: list[int] = []
    for block in tokens.reshape(-1, size):
        before = b"" if parent is None else parent.to_bytes(8, "little", signed=True)
        parent = int.from_bytes(blake2b(before + block.tobytes(), digest_size=8).digest(), "little", signed=True)
        hashes.append(parent)
    return hashes


class HeldBlocks:
    """Counts who holds each full block: several slots may, and the block is gone with the last of them.

    A block's hash is signed, of 64 bits, and covers all tokens before it. Slots with images or with a LoRA adapter hold
    nothing here: their tokens do not say what is cached.
    """

    def __init__(self, slots: int, block_size: int = BLOCK_SIZE) -> None:
        self._size = block_size
        self._chains: list[list[int]] = [[] for _ in range(slots)]
        self._counts: Ints = np.zeros(slots, np.int64)
        self._versions: Ints = np.zeros(slots, np.int64)
        self._holders: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def changes(self, slots: Slots) -> list[Event]:
        """Return what has changed since the last call. Only slots with other tokens or other blocks are looked at."""
        counts, versions = slots.cached // self._size, slots.sequences.versions
        counts[list(slots.sequences.soft)] = 0
        counts[slots.sequences.adapter_keys != 0] = 0
        is_replaced = versions != self._versions
        was_held: dict[int, bool] = {}
        changed: dict[int, int] = {}
        for slot in np.flatnonzero(is_replaced | (counts != self._counts)).tolist():
            same = 0 if is_replaced[slot] else int(min(counts[slot], self._counts[slot]))
            tokens = slots.sequences.tokens[slot, : counts[slot] * self._size]
            changed[slot] = self._replace(slot, self._chain(tokens, self._chains[slot][:same]), same, was_held)
        self._counts, self._versions = counts, versions.copy()
        new = {block for block, was in was_held.items() if not was and block in self._holders}
        gone = [block for block, was in was_held.items() if was and block not in self._holders]
        removed: list[Event] = [Removed(type="removed", block_hashes=gone)] if gone else []
        return [*removed, *self._stored(slots, changed, new)]

    def all_gone(self) -> list[Event]:
        return [Removed(type="removed", block_hashes=list(self._holders))] if self._holders else []

    def _chain(self, tokens: Ints, chain: list[int]) -> list[int]:
        """Return the hashes of all blocks of `tokens`. chain: those of the first blocks, already known."""
        rest = tokens[len(chain) * self._size :]
        return [*chain, *block_hashes(rest, self._size, chain[-1] if chain else None)]

    def _replace(self, slot: int, chain: list[int], same: int, was_held: dict[int, bool]) -> int:
        """Let a slot hold `chain`; return how many of its first blocks stay.

        same: how many stay for sure. was_held: gets, for each other block, whether it was held before the step.
        """
        old, holders = self._chains[slot], self._holders
        while same < min(len(old), len(chain)) and old[same] == chain[same]:
            same += 1
        for block in chain[same:]:
            was_held.setdefault(block, block in holders)
            holders[block] = holders.get(block, 0) + 1
        for block in old[same:]:
            was_held.setdefault(block, True)
            holders[block] -= 1
            if not holders[block]:
                del holders[block]
        self._chains[slot] = chain
        return same

    def _stored(self, slots: Slots, changed: Mapping[int, int], new: set[int]) -> Iterator[StoredBlocks]:
        """Yield the `new` blocks once each, after those before them. Who holds a block holds all before it.

        changed: the first block of each slot that may be new.
        """
        for slot, first in changed.items():
            chain, start = self._chains[slot], first
            while start < len(chain) and chain[start] not in new:
                start += 1
            if start == len(chain):
                continue
            new.difference_update(chain[start:])
            tokens = slots.sequences.tokens[slot, start * self._size : len(chain) * self._size].tolist()
            yield StoredBlocks(
                type="stored",
                token_ids=tokens,
                num_block_tokens=[self._size] * (len(chain) - start),
                block_hashes=chain[start:],
                parent_hash=chain[start - 1] if start else None,
            )
