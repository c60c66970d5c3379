"""What sequences leave on the host when they lose their memory, and what new ones find there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtkit.runtime.host_cache import BlockTier, SequenceTier
from trtkit.runtime.paging import block_keys, contents
from trtkit.runtime.sequences import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.decoder import SavedSequence
    from trtkit.runtime.decoder.execution import SequenceCache
    from trtkit.runtime.generation.slots import Slots
    from trtkit.runtime.sequences import Ints
    from trtkit.runtime.soft_tokens import SoftTokens


class HostPrefix(NamedTuple):
    """What the host has of a prompt: its first `tokens`, as blocks from `first` on, or as a whole sequence.

    keys: of the blocks, which stay until they are loaded.
    """

    tokens: int
    first: int = 0
    keys: Sequence[bytes] = ()
    whole: SavedSequence | None = None


class HostTier:
    """Blocks of tokens by content; sequences as a whole, if they have recurrent states. At most `limit_bytes` of them.

    block_tokens: of caches in slots; those in pages are kept by the page.
    """

    def __init__(self, cache: SequenceCache, slots: Slots, limit_bytes: int, block_tokens: int) -> None:
        self._cache, self._slots = cache, slots
        tokens = block_tokens if cache.pages is None else cache.pages.page_tokens
        blocks = cache.blocks(tokens) if limit_bytes else None
        has_blocks = blocks is not None and blocks.size_bytes <= limit_bytes
        self.blocks = BlockTier(blocks, limit_bytes) if blocks is not None and has_blocks else None
        self.sequences = SequenceTier(limit_bytes if cache.has_states else 0)
        if cache.pages is not None and self.blocks is not None:
            cache.pages.on_evict = self._keep_pages

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept."""
        return self.sequences.store.size_bytes + (0 if self.blocks is None else self.blocks.store.size_bytes)

    @property
    def claimed_bytes(self) -> int:
        """Bytes of requests that gave way and have not come back."""
        return self.sequences.store.claimed_bytes + (0 if self.blocks is None else self.blocks.store.claimed_bytes)

    def keep(self, slot: int, most: int | None = None, *, is_claimed: bool = False) -> list[bytes]:
        """Save what a slot has cached, or its first `most` tokens, as far as there is room.

        is_claimed: whether it stays until it is released; returns the keys to release then.
        """
        ids = self._known(slot, most)
        if self.blocks is not None:
            keys = self._keys(ids, self._slots.sequences.soft.get(slot))
            self.blocks.keep(keys, self.blocks.places(slot, 0, len(keys)))
            return self.blocks.store.claim(keys) if is_claimed else []
        key = self._keep_whole(slot, ids)
        return self.sequences.store.claim([key]) if is_claimed and key is not None else []

    def can_claim(self, slot: int) -> bool:
        """Whether there is room for all that a slot has cached."""
        ids = self._known(slot)
        if self.blocks is not None:
            return self.blocks.has_room(self._keys(ids, self._slots.sequences.soft.get(slot)))
        if slot in self._slots.sequences.soft:
            return False
        store, size = self.sequences.store, self._cache.form(len(ids)).size_bytes if len(ids) else 0
        return store.claimed_bytes + size <= store.limit_bytes

    def release(self, keys: Sequence[bytes]) -> None:
        """Let go of what `keep` claimed."""
        (self.sequences if self.blocks is None else self.blocks).store.release(keys)

    def find(self, ids: Ints, soft: SoftTokens | None, common: int, least: int) -> HostPrefix | None:
        """Return what is kept of a prompt, if that is at least `least` tokens, of which a cache has the first `common`.

        The prompt's last token stays to be computed: its logits are what comes next.
        """
        if self.blocks is None:
            whole = None if soft is not None else self.sequences.find(ids, least)
            return None if whole is None else HostPrefix(whole.tokens, whole=whole)
        if not len(self.blocks.store):
            return None
        keys, first = self._keys(ids[:-1], soft), common // self.blocks.tokens
        stop = self.blocks.held(keys, first)
        if stop * self.blocks.tokens < least:
            return None
        return HostPrefix(stop * self.blocks.tokens, first, self.blocks.store.claim(keys[first:stop]))

    def load(self, slot: int, on_host: HostPrefix) -> None:
        """Bring what the host has into a slot, which has memory for it."""
        if on_host.whole is not None:
            self._cache.load(slot, on_host.whole)
        elif self.blocks is not None:
            places = self.blocks.places(slot, on_host.first, len(on_host.keys))
            self.blocks.load(on_host.keys, places)
            self.blocks.store.release(on_host.keys)

    def _keep_whole(self, slot: int, ids: Ints) -> bytes | None:
        """Save a sequence whose states have read all of `ids`; images are not told apart by it."""
        is_whole = self._cache.has_states and self._cache.positions[slot] == len(ids) and len(ids) > 0
        if not is_whole or slot in self._slots.sequences.soft:
            return None
        key = self.sequences.key(ids)
        if key not in self.sequences.store:
            size = self._cache.form(len(ids)).size_bytes
            if not self.sequences.store.make_room(size):
                return None
            return self.sequences.add(ids, self._cache.save(slot, len(ids)))
        return key

    def _keep_pages(self, pages: Sequence[int], keys: Sequence[bytes]) -> None:
        """Save pages that are about to be overwritten, the last of a sequence first."""
        assert self.blocks is not None
        self.blocks.keep(keys[::-1], pages[::-1])

    def _keys(self, ids: Ints, soft: SoftTokens | None) -> list[bytes]:
        assert self.blocks is not None
        return block_keys(contents(ids, self.blocks.tokens, soft))

    def _known(self, slot: int, most: int | None = None) -> Ints:
        """Return the tokens that a slot has cached and the host knows."""
        ids = self._slots.sequences.tokens[slot, : self._slots.cached[slot]][:most].copy()
        unknown = (ids == UNKNOWN).nonzero()[0]
        return ids[: unknown[0]] if unknown.size else ids
