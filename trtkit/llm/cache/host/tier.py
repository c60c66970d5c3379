"""The host tier: what sequences leave on the host when they lose their memory, and what new ones find there."""

from __future__ import annotations

import math
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from trtkit.jobs.json_form import to_json
from trtkit.llm.cache.held_blocks import Change, block_of, chain, contents
from trtkit.llm.cache.host import BlockTier, FileTier, SavedSequences, SequenceTier
from trtkit.llm.cache.host.link import Link
from trtkit.llm.cache.transfers import LoadSequence, SaveSequence
from trtkit.llm.sequences import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.llm.cache.held_blocks import Block
    from trtkit.llm.cache.host.blocks import Arrival
    from trtkit.llm.cache.host.files import CacheFolder
    from trtkit.llm.cache.transfers import CacheLayout, Transfer
    from trtkit.llm.execution.saved import CacheForm, SavedSequence
    from trtkit.llm.scheduler.costs import StepCosts
    from trtkit.llm.scheduler.options import SchedulerOptions
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens


_CHUNK = 64  # blocks that `close` writes at once
_SAVED_AHEAD = 0.25  # share of the memory for copies of blocks that caches still hold
_RUNNING_BLOCKS = 8  # full blocks of a running sequence that are saved together


class HostPrefix(NamedTuple):
    """What the host has of a prompt: its first `tokens`, as blocks from `first` on, or as a whole sequence.

    keys: of the blocks, which are retained until they are loaded. file_tokens: how many of the tokens were read from
    files. whole: number of the sequence.
    """

    tokens: int
    file_tokens: int = 0
    first: int = 0
    keys: Sequence[bytes] = ()
    whole: int | None = None


class HostTier:
    """Blocks of tokens by content; whole sequences if they have recurrent states.

    Decides what is saved and loaded, and appends that to `transfers`; the owner of the memory carries them out.
    Decisions depend on the durations of earlier copies, and on whether files, which are read immediately, are intact.
    Raises RequestError for a folder that cannot be used. block_tokens: tokens per block. imports: prefixes that other
    engines computed, in memory of their own until a prompt takes them.
    """

    def __init__(
        self,
        cache: CacheLayout,
        slots: Slots,
        options: SchedulerOptions,
        costs: StepCosts,
        transfers: list[Transfer],
        clock: Callable[[], float],
    ) -> None:
        self._cache, self._slots, limit_bytes = cache, slots, options.host_cache_bytes
        self._costs, self._transfers = costs, transfers
        tokens = math.lcm(options.host_block_tokens, cache.block_multiple)
        self.block_tokens = tokens = tokens if cache.pages is None else cache.pages.page_tokens
        size = cache.form(tokens).size_bytes if limit_bytes and not cache.has_slot_memory else 0
        has_blocks = 0 < size <= limit_bytes
        keeps = has_blocks or (cache.has_states and limit_bytes > 0)
        folder = options.cache_folder if keeps else None
        self.files = None if folder is None else _open_files(folder, cache, tokens)
        self.link = Link(clock, is_background=options.copies_in_background)
        self.blocks = BlockTier(tokens, size, limit_bytes, self.files, transfers, self.link) if has_blocks else None
        most_bytes = limit_bytes if cache.has_states else 0
        self.saved = SavedSequences()
        self.sequences = SequenceTier(most_bytes, self.saved, transfers, tokens, self.files, self._of_bytes)
        self.imports = SequenceTier(options.most_imported_bytes, self.saved, transfers, tokens)
        if cache.pages is not None and self.blocks is not None:
            cache.pages.on_evict = self._keep_pages
            if self.link.is_background:
                cache.pages.tree.is_saved = self.blocks.store.__contains__
        self._saved: Ints = np.zeros(slots.count, np.int64)  # leading blocks of each slot that were saved ahead
        self._versions: Ints = np.zeros(slots.count, np.int64)

    def changes(self) -> Iterator[Change]:
        """Yield what memory and files have gained and lost since the last call."""
        yield from self.imports.changes.take()
        yield from self.sequences.changes.take() if self.blocks is None else self.blocks.changes.take()
        for key, preimage in () if self.files is None else self.files.changes():
            yield Change(key, preimage is not None, () if preimage is None else self._blocks_of(preimage))

    @property
    def size_bytes(self) -> int:
        """Bytes in use."""
        return self.sequences.store.size_bytes + (0 if self.blocks is None else self.blocks.store.size_bytes)

    @property
    def retained_bytes(self) -> int:
        """Bytes retained for preempted requests."""
        return self.sequences.store.retained_bytes + (0 if self.blocks is None else self.blocks.store.retained_bytes)

    def keep(self, slot: int, most: int | None = None, *, is_retained: bool = False) -> list[bytes]:
        """Save a slot's cache, or its first `most` tokens, as far as there is room, if computing it takes longer.

        is_retained: keep it until it is released; then returns the keys to release.
        """
        ids = self._known(slot, most)
        if self.blocks is not None:
            blocks = self._chain(ids, self._slots.sequences.soft.get(slot))
            most = None if is_retained and self._cache.pages is None else self._room()
            if self._is_worth(self.blocks, self._copied_bytes(blocks), len(blocks) * self.blocks.tokens):
                self.blocks.keep(blocks, self._places(slot, 0, len(blocks)), most)
            return self.blocks.store.retain(block.key for block in blocks) if is_retained else []
        key = self._keep_whole(slot, ids)
        return self.sequences.store.retain([key]) if is_retained and key is not None else []

    def can_retain(self, slot: int) -> bool:
        """Whether there is room for everything that a slot has cached."""
        ids = self._known(slot)
        if self.blocks is not None:
            return self.blocks.has_room(self._chain(ids, self._slots.sequences.soft.get(slot)))
        if slot in self._slots.sequences.soft:
            return False
        store, size = self.sequences.store, self._cache.form(len(ids)).size_bytes if len(ids) else 0
        return store.retained_bytes + size <= store.limit_bytes

    def release(self, keys: Sequence[bytes]) -> None:
        """Release what `keep` retained."""
        (self.sequences if self.blocks is None else self.blocks).store.release(keys)

    def find(self, ids: Ints, soft: SoftTokens | None, common: int, least: int) -> HostPrefix | None:
        """Return what is kept of a prompt, if that is at least `least` tokens, of which a cache has the first `common`.

        ids: as they are compared. The prompt's last token stays to be computed: its logits are what comes next.
        """
        if self.blocks is None:
            kept = None if soft is not None else self.sequences.find(ids, least)
            if kept is None:
                return None
            return HostPrefix(kept.tokens, kept.tokens if kept.is_from_file else 0, whole=kept.number)
        if self.blocks.is_empty:
            return None
        size, first = self.blocks.tokens, common // self.blocks.tokens
        keys, read = self.blocks.find(self._chain(ids[:-1], soft), first, -(-least // size) - first)
        return HostPrefix((first + len(keys)) * size, read * size, first, keys) if keys else None

    def tokens_of(self, ids: Ints, common: int) -> int:
        """Return how many tokens of a prompt are cached: the first `common` elsewhere, and consecutive blocks here."""
        if self.blocks is None or self.blocks.is_empty:
            return common
        count = common // self.blocks.tokens
        blocks = self._chain(ids[:-1], None)
        while count < len(blocks) and self.blocks.holds(blocks[count].key):
            count += 1
        return max(common, count * self.blocks.tokens)

    def load(self, slot: int, on_host: HostPrefix) -> Arrival | None:
        """Load what the host has into a slot that has memory for it; return the pending load if steps run meanwhile."""
        if on_host.whole is not None or self.blocks is None:
            self.load_whole(slot, on_host.whole or 0, on_host.tokens)
            return None
        arrival = self.blocks.load(on_host.keys, self._places(slot, on_host.first, len(on_host.keys)))
        self.blocks.store.release(on_host.keys)
        return arrival

    def load_whole(self, slot: int, number: int, tokens: int) -> None:
        """Load a numbered sequence into a slot, with pages of its own."""
        pages = self._cache.pages
        if pages is not None:
            pages.release(slot)
            pages.grow(slot, tokens)
        self._slots.set_position(slot, tokens)
        self._transfers.append(LoadSequence(number, slot, tokens, self._pages_of(slot)))

    def save_ahead(self, slots: Callable[[], Iterator[int]]) -> None:
        """Save blocks whose memory will be taken next, if the link is idle, as many as can be staged at once.

        slots: returns slots whose blocks may be taken once no unused pages are left, in the order in which they lose
        them.
        """
        if self.blocks is None or not self.link.is_idle or not self._is_worth_loading(self.blocks):
            return
        most = max(1, self.link.staged_bytes // self.blocks.size_bytes)
        unsaved = list(islice(self._unsaved(self.blocks, slots), most))
        if unsaved:
            self.blocks.keep([block for block, _ in unsaved], [position for _, position in unsaved])

    def next_save(self, decoding: Ints) -> tuple[float, int]:
        """Return the earliest time, and token count of `decoding` slots, at which `save_ahead` has something to do."""
        never = 1 << 60
        if self.blocks is None or not self.link.is_background or self._saved_ahead() >= self._most_ahead:
            return float("inf"), never
        size, pages = self.blocks.tokens, self._cache.pages
        unsaved = self._slots.cached // size - self._first_saved()
        has_unsaved = bool((unsaved >= _RUNNING_BLOCKS).any()) or (pages is not None and pages.tree.has_unsaved)
        at_s = self.link.next_save_s if has_unsaved else float("inf")
        missing = (self._first_saved() + _RUNNING_BLOCKS) * size - self._slots.cached
        missing = missing[decoding][missing[decoding] > 0]
        return at_s, int(missing.min()) if missing.size else never

    def keep_all(self) -> Iterator[None]:
        """Save everything that is cached, part by part; the caller carries out and writes each part before the next."""
        pages = self._cache.pages
        if pages is not None and self.blocks is not None:
            known_blocks = list(pages.tree.blocks().items())
            for start in range(0, len(known_blocks), _CHUNK):
                part = known_blocks[start : start + _CHUNK]
                self.blocks.keep([block for _, block in part], [page for page, _ in part])
                yield
        else:
            for slot in self._slots.cached.nonzero()[0].tolist():
                self.keep(slot)
                yield

    def _of_bytes(self, tokens: int, data: Array) -> SavedSequence | None:
        return cast("CacheForm", self._cache.form(tokens)).saved(data)

    def _keep_whole(self, slot: int, ids: Ints) -> bytes | None:
        """Save a sequence whose states have read all of `ids`; not one with images, which ids do not distinguish."""
        is_whole = self._slots.positions is not None and self._slots.positions[slot] == len(ids) and len(ids) > 0
        if not is_whole or slot in self._slots.sequences.soft:
            return None
        key = self.sequences.key(ids)
        if key not in self.sequences.store:
            size = self._cache.form(len(ids)).size_bytes
            is_worth = self._is_worth(self.sequences, 2 * size, len(ids))
            number = self.sequences.add(key, ids, size) if is_worth else None
            if number is None:
                return None
            self._transfers.append(SaveSequence(number, slot, len(ids), self._pages_of(slot)))
        self.sequences.store.touch([key])
        return key

    def _keep_pages(self, pages: Sequence[int], blocks: Sequence[Block]) -> None:
        """Save pages that are about to be overwritten, the last of a sequence first."""
        assert self.blocks is not None
        if self._is_worth(self.blocks, self._copied_bytes(blocks), len(blocks) * self.blocks.tokens):
            self.blocks.keep(blocks[::-1], pages[::-1], self._room())

    @property
    def _most_ahead(self) -> int:
        """Limit on blocks saved ahead: more would leave no room for preempted sequences."""
        assert self.blocks is not None
        return max(1, int(_SAVED_AHEAD * self.blocks.rows))

    def _saved_ahead(self) -> int:
        """Return how many blocks could be taken from the caches without loss."""
        pages = self._cache.pages
        return int(self._first_saved().sum()) + (0 if pages is None else pages.tree.saved)

    def _first_saved(self) -> Ints:
        """Return how many of each slot's leading blocks were saved ahead; 0 for new sequences."""
        versions, has_ended = self._slots.sequences.versions, self._slots.cached == 0
        self._saved[(versions != self._versions) | has_ended] = 0
        self._versions[:] = versions
        return self._saved

    def _unsaved(self, blocks: BlockTier, slots: Callable[[], Iterator[int]]) -> Iterator[tuple[Block, int]]:
        """Yield blocks that the host lacks, with their places in the caches, in the order in which memory is taken."""
        pages, left = self._cache.pages, self._most_ahead - self._saved_ahead()
        while pages is not None and pages.tree.has_unsaved and left > 0:
            page, block = pages.tree.next_unsaved()
            left -= 1
            if block.key not in blocks.store:
                yield block, page
        for slot in slots() if left > 0 else ():
            if self._slots.cached[slot] // blocks.tokens - self._saved[slot] < _RUNNING_BLOCKS:
                continue
            slot_blocks = self._slot_blocks(slot)
            for number in range(int(self._saved[slot]), len(slot_blocks)):
                if left <= 0:
                    return
                left, self._saved[slot] = left - 1, number + 1
                if slot_blocks[number].key not in blocks.store:
                    yield slot_blocks[number], self._places(slot, number, 1)[0]

    def _slot_blocks(self, slot: int) -> list[Block]:
        """Return a slot's full blocks, as far as its pages can be found."""
        pages = self._cache.pages
        if pages is None:
            return self._chain(self._known(slot), self._slots.sequences.soft.get(slot))
        return [pages.tree.block(page) for page in pages.pages_of(slot)[: pages.registered[slot]]]

    def _room(self) -> int | None:
        """Return how many blocks can be saved without a step waiting; None if steps wait for every save."""
        assert self.blocks is not None
        return self.link.room_bytes // self.blocks.size_bytes if self.link.is_background else None

    def _copied_bytes(self, blocks: Sequence[Block]) -> int:
        """Return the bytes to wait for if blocks are saved and loaded again."""
        assert self.blocks is not None
        return len(blocks) * self.blocks.size_bytes if self.link.is_background else self.blocks.copied_bytes(blocks)

    def _is_worth_loading(self, blocks: BlockTier) -> bool:
        token_s = self._costs.prompt_token_s
        return not token_s or blocks.rate.seconds_per_byte * blocks.size_bytes <= token_s * blocks.tokens

    def _is_worth(self, tier: BlockTier | SequenceTier, copied_bytes: int, tokens: int) -> bool:
        """Whether copying these bytes takes less time than computing these tokens again."""
        token_s = self._costs.prompt_token_s
        if not token_s or tier.rate.seconds_per_byte * copied_bytes <= token_s * tokens:
            return True
        tier.rate.forget()
        return False

    def _places(self, slot: int, first: int, count: int) -> list[int]:
        """Return the places of a slot's blocks in the caches: pages, or indices over all slots."""
        assert self.blocks is not None
        if (pages := self._cache.pages) is not None:
            return pages.pages_of(slot)[first : first + count]
        start = slot * (self._slots.max_length // self.blocks.tokens) + first
        return list(range(start, start + count))

    def _pages_of(self, slot: int) -> tuple[int, ...]:
        return () if self._cache.pages is None else tuple(self._cache.pages.pages_of(slot))

    def _blocks_of(self, preimage: bytes) -> list[Block]:
        """Return the blocks of a file from the preimage of its key."""
        if self.blocks is not None:
            return [block_of(preimage)]
        return chain(contents(np.frombuffer(preimage, np.int64), self.block_tokens))

    def _chain(self, ids: Ints, soft: SoftTokens | None) -> list[Block]:
        assert self.blocks is not None
        return chain(contents(ids, self.blocks.tokens, soft))

    def _known(self, slot: int, most: int | None = None) -> Ints:
        """Return the tokens that a slot has cached and the host knows, in the form in which they are compared."""
        ids = self._slots.sequences.tokens[slot, : self._slots.cached[slot]][:most].copy()
        unknown = (ids == UNKNOWN).nonzero()[0]
        return self._slots.sequences.keyed(slot, ids[: unknown[0]] if unknown.size else ids)


def _open_files(folder: CacheFolder, cache: CacheLayout, tokens: int) -> FileTier:
    """Return the files of this model's caches in blocks of `tokens`."""
    kind = "sequences" if cache.has_states else "blocks"
    facts = f"{folder.model}\n{kind}\n{to_json(cache.form(tokens))}"
    return FileTier(folder.path, folder.limit_bytes, blake2b(facts.encode(), digest_size=32).digest())
