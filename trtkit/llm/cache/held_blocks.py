"""Blocks of cached tokens by key, and which of them an engine holds in any tier: the source of a router's events."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkit.llm.sequences import TOKEN_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

_KEY_BYTES = 32
START = b""
"""The parent key of a sequence's first block."""


class Block(NamedTuple):
    """A block of a sequence. key: digest of the content and of `parent`, the key of the previous block.

    content: token ids in the form in which they are compared, and the keys of vectors that replace some of them.
    """

    key: bytes
    parent: bytes
    content: bytes

    @property
    def preimage(self) -> bytes:
        """The bytes whose digest is the key."""
        return _preimage(self.parent, self.content)

    @property
    def token_ids(self) -> list[int]:
        """The token ids of a block without vectors."""
        ids: list[int] = np.frombuffer(self.content, np.int64).tolist()
        return ids


def digest(preimage: bytes) -> bytes:
    """Return the key of a preimage."""
    return blake2b(preimage, digest_size=_KEY_BYTES).digest()


def block_after(parent: bytes, content: bytes) -> Block:
    """Return the block with this content that follows the block `parent`."""
    return Block(digest(_preimage(parent, content)), parent, content)


def block_of(preimage: bytes) -> Block:
    """Return the block whose key is the digest of `preimage`."""
    stop = 1 + preimage[0]
    return Block(digest(preimage), preimage[1:stop], preimage[stop:])


def chain(contents: Iterable[bytes], parent: bytes = START) -> list[Block]:
    """Return a sequence's blocks that follow the block `parent`, in order, from their contents."""
    blocks = []
    for content in contents:
        blocks.append(block_after(parent, content))
        parent = blocks[-1].key
    return blocks


def contents(
    ids: Ints, page_tokens: int, soft: SoftTokens | None = None, pages: slice = slice(None)
) -> Iterator[bytes]:
    """Yield the content of each full page of a sequence.

    Its tokens, and the keys of vectors that replace some of them.
    """
    first, stop, _ = pages.indices(len(ids) // page_tokens)
    for start in range(first * page_tokens, stop * page_tokens, page_tokens):
        content = ids[start : start + page_tokens].tobytes()
        part = slice(0, 0) if soft is None else soft.within(start, start + page_tokens)
        if soft is not None and part.stop > part.start:
            content += (soft.places[part] - start).tobytes() + soft.keys[part].tobytes()
        yield content


def _preimage(parent: bytes, content: bytes) -> bytes:
    return len(parent).to_bytes(1, "little") + parent + content


class Change(NamedTuple):
    """A tier now holds a block or a sequence of blocks under a key; or no longer does, and `blocks` is empty."""

    key: bytes
    is_held: bool
    blocks: Sequence[Block] = ()


class ChangeLog:
    """What a tier has gained and lost since the last `take`; nothing is recorded before the first one.

    held: returns everything the tier holds, by key.
    """

    def __init__(self, held: Callable[[], Iterable[tuple[bytes, Sequence[Block]]]]) -> None:
        self._held = held
        self._changes: list[Change] | None = None

    def note_held(self, key: bytes, blocks: Callable[[], Sequence[Block]]) -> None:
        """Record that the tier now holds something."""
        if self._changes is not None:
            self._changes.append(Change(key, True, blocks()))

    def note_lost(self, key: bytes) -> None:
        """Record that the tier has lost something."""
        if self._changes is not None:
            self._changes.append(Change(key, False))

    def take(self) -> list[Change]:
        """Return the changes in order; the first time, everything that is held."""
        changes = self._changes
        if changes is None:
            changes = [Change(key, True, blocks) for key, blocks in self._held()]
        self._changes = []
        return changes


@dataclass(eq=False)
class _Held:
    """A block, and the number of tiers and slots that hold it.

    is_reachable: whether all blocks before it are held, too.
    """

    block: Block
    holders: int = 0
    is_reachable: bool = False


class HeldBlocks:
    """The blocks that a prompt would find in any tier: held blocks whose predecessors are all held, too.

    Tiers report what they hold and lose. A block that moves from one tier to another stays reachable. Left out are
    blocks of adapters, blocks with images, and all blocks that follow those: their tokens do not identify the content.
    block_tokens: tokens per block.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._held: dict[bytes, _Held] = {}
        self._next: dict[bytes, dict[bytes, None]] = {}
        self._sequences: dict[bytes, tuple[Sequence[Block], int]] = {}  # with the number of tiers that hold each

    @property
    def reachable(self) -> list[Block]:
        """The blocks that a prompt would find, in no particular order."""
        return [held.block for held in self._held.values() if held.is_reachable]

    def update(self, changes: Iterable[Change]) -> tuple[list[Block], list[Block]]:
        """Apply changes in order; return the blocks that are no longer reachable, and new ones, parents first."""
        touched: dict[bytes, None] = {}
        for change in changes:
            for block in self._blocks_of(change):
                if self._has_plain_tokens(block):
                    self._count(block, 1 if change.is_held else -1)
                    touched[block.key] = None
        lost: list[Block] = []
        for key in touched:
            if not self._held[key].holders:
                lost += self._walk(key, is_reachable=False)
                self._forget(self._held.pop(key).block)
        new: list[Block] = []
        for key in touched:
            if (held := self._held.get(key)) is not None and self._has_start(held.block):
                new += self._walk(key, is_reachable=True)
        return lost, new

    def _blocks_of(self, change: Change) -> Sequence[Block]:
        """Return the blocks that a tier holds or held under a key."""
        key, is_held, blocks = change
        if key in self._held or (is_held and len(blocks) == 1 and blocks[0].key == key):
            return blocks or [self._held[key].block]
        blocks, times = self._sequences.pop(key, (blocks, 0))
        times += 1 if is_held else -1
        if times > 0:
            self._sequences[key] = blocks, times
        return blocks

    def _has_plain_tokens(self, block: Block) -> bool:
        """Whether a block's token ids identify its content: without vectors and without an adapter."""
        content = block.content
        return len(content) == 8 * self.block_tokens and not int.from_bytes(content[:8], "little") >> TOKEN_BITS

    def _count(self, block: Block, holders: int) -> None:
        held = self._held.get(block.key)
        if held is None:
            held = self._held[block.key] = _Held(block)
            self._next.setdefault(block.parent, {})[block.key] = None
        held.holders += holders

    def _forget(self, block: Block) -> None:
        siblings = self._next[block.parent]
        del siblings[block.key]
        if not siblings:
            del self._next[block.parent]

    def _has_start(self, block: Block) -> bool:
        """Whether the previous block is reachable."""
        return block.parent == START or (block.parent in self._held and self._held[block.parent].is_reachable)

    def _walk(self, key: bytes, *, is_reachable: bool) -> Iterator[Block]:
        """Set whether a block and the held blocks after it are reachable; yield those that change, parents first."""
        keys = [key]
        while keys:
            held = self._held[keys.pop()]
            if held.is_reachable != is_reachable:
                held.is_reachable = is_reachable
                yield held.block
                keys += self._next.get(held.block.key, ())


class SlotBlocks:
    """Tracks the full blocks of slots, which no tier keeps by key. Only changed slots are examined."""

    def __init__(self, slots: Slots, block_tokens: int) -> None:
        self._slots, self._size = slots, block_tokens
        self._keys: list[list[bytes]] = [[] for _ in range(slots.count)]
        self._counts: Ints = np.zeros(slots.count, np.int64)
        self._versions: Ints = np.zeros(slots.count, np.int64)

    def changes(self) -> Iterator[Change]:
        """Yield the blocks that slots have gained and lost since the last call."""
        counts, versions = self._slots.cached // self._size, self._slots.sequences.versions
        is_replaced = versions != self._versions
        for slot in np.flatnonzero(is_replaced | (counts != self._counts)).tolist():
            yield from self._replace(slot, int(counts[slot]), is_replaced=bool(is_replaced[slot]))
        self._counts, self._versions = counts, versions.copy()

    def _replace(self, slot: int, count: int, *, is_replaced: bool) -> Iterator[Change]:
        old, sequences = self._keys[slot], self._slots.sequences
        same = 0 if is_replaced else min(count, len(old))
        ids = sequences.keyed(slot, sequences.tokens[slot, : count * self._size])
        of_blocks = contents(ids, self._size, sequences.soft.get(slot), slice(same, count))
        blocks = chain(of_blocks, old[same - 1] if same else START)
        self._keys[slot] = [*old[:same], *(block.key for block in blocks)]
        known = 0  # blocks that the slot has again after its tokens were replaced
        while known < len(blocks) and same + known < len(old) and blocks[known].key == old[same + known]:
            known += 1
        yield from (Change(block.key, True, [block]) for block in blocks[known:])
        yield from (Change(key, False) for key in old[same + known :])
