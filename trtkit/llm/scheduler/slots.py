"""The slots: which are running, what each has cached, and which cached prefix a new prompt can share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.llm.sequences import Sequences
from trtkit.llm.soft_tokens import shared_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens

_FIRST_BLOCK = 8  # prompt tokens that are compared with every slot
_NOT_FREE = 1 << 62  # an age above that of any slot
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Slots:
    """The state of every slot, as arrays.

    sequences: the tokens. cached: [slots], how many of them are in the KV cache; an ended slot keeps them for others to
    share. reused: [slots], how many of the cached tokens a running slot found rather than computed.
    is_running: [slots]. positions: [slots], tokens that recurrent states have read, if the model has any: only a prompt
    that starts with all of them can share a state. The array is the cache's own; once a copy or load of a sequence has
    been decided, it is a copy, until `follow`.
    """

    def __init__(self, count: int, max_length: int, positions: Ints | None = None) -> None:
        self.count, self.max_length = count, max_length
        self.positions, self._of_cache = positions, positions
        self.sequences = Sequences(count, max_length)
        self.cached: Ints = np.zeros(count, np.int64)
        self.reused: Ints = np.zeros(count, np.int64)
        self.is_running: Bools = np.zeros(count, np.bool_)
        self._used: Ints = np.zeros(count, np.int64)
        self._clock = 0

    @property
    def free(self) -> int:
        """Number of slots without a running request."""
        return self.count - int(np.count_nonzero(self.is_running))

    def shared_prefix(
        self, prompt_ids: Sequence[int] | Ints, soft: SoftTokens | None = None, adapter_key: int = 0
    ) -> tuple[int, int]:
        """Return the slot that shares the longest cached prefix with a prompt, and the prefix's length.

        The prompt's last token is never shared: its logits give the next token. Image placeholders match if their
        vectors do. Slots of another adapter share nothing.
        """
        needs_all = soft is not None or bool(self.sequences.soft) or self.positions is not None
        common = self._common(np.asarray(prompt_ids)[:-1], adapter_key, needs_all=needs_all)
        for slot in range(self.count) if soft is not None else self.sequences.soft:
            end = shared_length(soft, self.sequences.soft.get(slot))
            common[slot] = common[slot] if end is None else min(int(common[slot]), end)
        if self.positions is not None:
            common[(common != self.positions) | (common != self.cached)] = 0
        # Among equals an ended slot comes first: it can be continued in place.
        longest = np.flatnonzero(common == common.max())
        best = int(longest[self.is_running[longest].argmin()])
        return best, int(common[best])

    def _common(self, ids: Ints, adapter_key: int, *, needs_all: bool) -> Ints:
        """Return a lower bound of each slot's shared prefix with `ids`; that of the best slot is exact.

        Tokens are compared in blocks of doubling length, among the slots that matched so far: usually none after a few.
        A slot that matches all `ids` ends the search early, unless `needs_all` demands every slot's exact length.
        """
        common: Ints = np.zeros(self.count, np.int64)
        is_alike = (self.cached > 0) & (self.sequences.adapter_keys == adapter_key)
        alike, start, size = np.flatnonzero(is_alike), 0, _FIRST_BLOCK
        while alike.size and start < len(ids):
            stop = min(start + size, len(ids))
            is_same = self.sequences.tokens[alike, start:stop] == ids[start:stop]
            is_same &= np.arange(start, stop) < self.cached[alike, None]
            count = np.where(is_same.all(1), stop - start, is_same.argmin(1))
            common[alike] += count
            alike, start, size = alike[count == stop - start], stop, 2 * size
            if stop == _FIRST_BLOCK and not needs_all and (first := self._first_to_hold(alike, ids)) is not None:
                common[first] = len(ids)
                break
        return common

    def _first_to_hold(self, slots: Ints, ids: Ints) -> int | None:
        """Return the first of `slots` long enough to hold all `ids`, ended slots first, if it does hold them."""
        slots = slots[self.cached[slots] >= len(ids)]
        if not slots.size:
            return None
        first = int(slots[self.is_running[slots].argmin()])
        return first if np.array_equal(self.sequences.tokens[first, : len(ids)], ids) else None

    def take(self, source: int, common: int) -> int:
        """Return a free slot for a prompt that shares `common` tokens with `source`, and mark it as running.

        Preference: the source itself if it has ended and most of it is shared, or if it is the only free slot; then an
        empty slot or one with a few tokens, such as a health check leaves; then the least recently used.
        """
        can_go_on = common > 0 and not self.is_running[source]
        if can_go_on and (2 * common >= self.cached[source] or self.free == 1):
            chosen = source
        else:
            age = self._used * (self.cached > _FIRST_BLOCK)
            age[self.is_running] = _NOT_FREE
            if can_go_on:
                age[source] = _NOT_FREE
            chosen = int(age.argmin())
            assert age[chosen] != _NOT_FREE
        self.is_running[chosen] = True
        self.touch(chosen)
        return chosen

    def has_computed(self, slot: int) -> bool:
        """Whether a running slot has computed tokens itself."""
        return bool(self.cached[slot] != self.reused[slot])

    def leave(self, slot: int, reserve: int) -> None:
        """End a slot's sequence. Its cache stays, except for the last `reserve` positions, where idle rows write."""
        self.is_running[slot] = False
        self.cached[slot] = min(self.cached.item(slot), self.max_length - reserve)
        self.touch(slot)

    def oldest_ended(self, has_memory: Ints) -> int | None:
        """Return the least recently used ended slot that holds memory; None if there is none."""
        slots = np.flatnonzero(~self.is_running & (has_memory > 0))
        return int(slots[self._used[slots].argmin()]) if slots.size else None

    def ended(self) -> list[int]:
        """Return ended slots with a cache, least recently used first."""
        slots = np.flatnonzero(~self.is_running & (self.cached > 0))
        oldest_first: list[int] = slots[self._used[slots].argsort()].tolist()
        return oldest_first

    def cut(self, slot: int, length: int) -> None:
        """Forget the tokens of a slot after the first `length`; the last of those need not have been read.

        If recurrent states have read it, it stays cached: they cannot go back.
        """
        self.sequences.lengths[slot] = length
        has_read_last = self.positions is not None and self.positions[slot] == length
        self.cached[slot] = min(int(self.cached[slot]), length if has_read_last else length - 1)

    def set_position(self, slot: int, tokens: int) -> None:
        """Note how many tokens a slot's states will have read as soon as what was decided is carried out."""
        if self.positions is not None:
            if self.positions is self._of_cache:
                self.positions = self.positions.copy()
            self.positions[slot] = tokens

    def follow(self) -> None:
        """Use the cache's own positions again: pending copies are carried out before the next decision."""
        self.positions = self._of_cache

    def touch(self, slot: int) -> None:
        """Mark a slot as the most recently used."""
        self._clock += 1
        self._used[slot] = self._clock
