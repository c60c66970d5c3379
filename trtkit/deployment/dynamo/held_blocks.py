"""The blocks of tokens that an engine's slots hold, followed from step to step."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

import numpy as np

from trtkit.deployment.dynamo.worker_options import BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints


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
        """Return everything that is held as removed."""
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
