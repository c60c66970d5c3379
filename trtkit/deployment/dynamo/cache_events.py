"""Tells Dynamo's router after each step which blocks a worker holds in any tier, and how full its caches are.

Events that a worker pushes to Dynamo 1.6.1 have no tier. For the router, a block is therefore stored as long as any
tier has it: device, host memory, files or imports. The host keeps only what loads faster than it computes.
"""

from __future__ import annotations

import logging
import weakref
from hashlib import shake_128
from typing import TYPE_CHECKING, Literal, NotRequired, Protocol, TypedDict, TypeVar

from dynamo.common.backend.publisher import ComponentSnapshot

from trtkit.deployment.dynamo.options import BLOCK_SIZE
from trtkit.deployment.engine_metrics import hit_rate
from trtkit.llm.cache import HeldBlocks
from trtkit.llm.cache.held_blocks import START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache import Block
    from trtkit.llm.engine import LLMEngine
    from trtkit.llm.execution import DecoderExecution

_RANK = 0  # the only data-parallel rank of a worker
log = logging.getLogger("trtkit.dynamo")
T = TypeVar("T")


class EventPublisher(Protocol):
    """Dynamo's KvEventPublisher."""

    def publish_batch(self, events: Sequence[Event]) -> None:
        """Send events in order."""
        ...


class LoadPublisher(Protocol):
    """Dynamo's SnapshotPublisher."""

    def publish(self, dp_rank: int, snapshot: ComponentSnapshot) -> None:
        """Send how full a cache is."""
        ...


class CacheEvents:
    """An EngineThread's `on_step`. Publishers may be set at any time, from any thread, and first get all that is held.

    A publisher that fails is dropped: requests continue, and are routed without it.
    """

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.events: EventPublisher | None = None
        self.load: LoadPublisher | None = None
        self._size = block_size
        self._blocks: HeldBlocks | None = None
        self._engine: Callable[[], LLMEngine | None] = lambda: None
        self._snapshot: ComponentSnapshot | None = None

    def update(self, engine: LLMEngine) -> None:
        """Publish what has changed since the last call; called in the engine's thread."""
        if self.events is not None or self._blocks is not None:  # once recording has started, changes must be taken
            changes = self._changes(engine)
            if self.events is not None and changes:
                self.events = _told(self.events, lambda to: to.publish_batch(changes))
        if self.load is not None:
            snapshot = load_of(engine, self._size)
            if snapshot != self._snapshot:
                self._snapshot = snapshot
                self.load = _told(self.load, lambda to: to.publish(_RANK, snapshot))

    def _changes(self, engine: LLMEngine) -> list[Event]:
        gone: list[Block] = []
        if self._engine() is not engine:  # the first engine, or one that a woken model has created, with empty caches
            self._engine = weakref.ref(engine)
            gone = [] if self._blocks is None else self._blocks.reachable
            self._blocks = None
        if self._blocks is None:
            self._blocks = HeldBlocks(engine.prefixes.block_tokens)
        lost, new = self._blocks.update(engine.prefixes.changes())
        return [*removed(gone, self._size), *removed(lost, self._size), *stored(new, self._size)]


def blocks_of(execution: DecoderExecution, block_size: int = BLOCK_SIZE) -> int:
    """Return how many blocks a decoder's caches hold."""
    pages = execution.cache.pages
    tokens = execution.slots * execution.max_length if pages is None else (pages.pages - 1) * pages.page_tokens
    return tokens // block_size


def load_of(engine: LLMEngine, block_size: int = BLOCK_SIZE) -> ComponentSnapshot:
    """Return how full an engine's caches are. Ended slots count as free, since their contents are evicted on demand."""
    slots = engine.slots
    used = int((-(-slots.cached[slots.is_running] // block_size)).sum())
    pages, total = engine.execution.cache.pages, blocks_of(engine.execution, block_size)
    if pages is not None:
        used = pages.held * pages.page_tokens // block_size
    used = min(used, total)
    return ComponentSnapshot(used, total, used / max(total, 1), _RANK, hit_rate(engine))


def _told(publisher: T, tell: Callable[[T], None]) -> T | None:
    """Return the publisher; None if it failed."""
    try:
        tell(publisher)
    except Exception:
        log.exception("the router is told nothing more of this worker's cache: its publisher failed")
        return None
    return publisher


class StoredBlocks(TypedDict):
    """Consecutive blocks that a worker now holds. parent_hash: of the block before; None at the start of a sequence."""

    type: Literal["stored"]
    token_ids: list[int]
    num_block_tokens: list[int]
    block_hashes: list[int]
    parent_hash: NotRequired[int | None]


class Removed(TypedDict):
    """Blocks that a worker no longer holds."""

    type: Literal["removed"]
    block_hashes: list[int]


Event = StoredBlocks | Removed


def stored(blocks: Sequence[Block], size: int) -> list[Event]:
    """Return the events of new blocks, each after its parent, for a router whose blocks have `size` tokens."""
    events: list[StoredBlocks] = []
    last = None
    for block in blocks:
        tokens = block.token_ids
        hashes = block_hashes(block.key, len(tokens) // size)
        if events and block.parent == last:
            events[-1]["token_ids"] += tokens
            events[-1]["num_block_tokens"] += [size] * len(hashes)
            events[-1]["block_hashes"] += hashes
        else:
            parent = None if block.parent == START else block_hashes(block.parent, len(hashes))[-1]
            events.append(
                StoredBlocks(
                    type="stored",
                    token_ids=tokens,
                    num_block_tokens=[size] * len(hashes),
                    block_hashes=hashes,
                    parent_hash=parent,
                )
            )
        last = block.key
    return list(events)


def removed(blocks: Sequence[Block], size: int) -> list[Event]:
    """Return the event of blocks that are no longer held, if there are any."""
    hashes = [block_hash for block in blocks for block_hash in block_hashes(block.key, len(block.token_ids) // size)]
    return [Removed(type="removed", block_hashes=hashes)] if hashes else []


def block_hashes(key: bytes, count: int) -> list[int]:
    """Return signed 64-bit names for the router's `count` blocks within one block of the cache."""
    names = shake_128(key).digest(8 * count)
    return [int.from_bytes(names[start : start + 8], "little", signed=True) for start in range(0, 8 * count, 8)]
