"""Which slot holds what: who runs, what is cached, and which cached beginning a new prompt can share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.sequences import Sequences
from trtkit.runtime.soft_tokens import shared_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.sequences import Ints
    from trtkit.runtime.soft_tokens import SoftTokens

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Slots:
    """The state of every slot, as arrays.

    sequences: the tokens. cached: [slots], how many of them lie in the KV cache; a slot that has ended keeps them
    for others to share. is_running: [slots]. used: [slots], when it was last taken, to reuse the oldest first.
    """

    def __init__(self, count: int, max_length: int) -> None:
        self.count = count
        self.sequences = Sequences(count, max_length)
        self.cached: Ints = np.zeros(count, np.int64)
        self.is_running: Bools = np.zeros(count, np.bool_)
        self._used: Ints = np.zeros(count, np.int64)
        self._clock = 0

    @property
    def free(self) -> int:
        """Slots that nobody runs in."""
        return self.count - int(self.is_running.sum())

    def shared_prefix(self, prompt_ids: Sequence[int] | Ints, soft: SoftTokens | None = None) -> tuple[int, int]:
        """Return the slot whose cache begins most like a prompt, and for how many tokens.

        At least the prompt's last token stays to be computed: its logits are what comes next. Placeholders are alike
        where the vectors in their places are.
        """
        length = len(prompt_ids) - 1
        is_same = self.sequences.tokens[:, :length] == np.asarray(prompt_ids)[:length]
        is_same &= np.arange(length) < self.cached[:, None]
        common = np.where(is_same.all(1), length, is_same.argmin(1) if length else 0)
        for slot in range(self.count) if soft is not None else self.sequences.soft:
            end = shared_length(soft, self.sequences.soft.get(slot))
            common[slot] = common[slot] if end is None else min(int(common[slot]), end)
        # Among equals a slot that has ended comes first: it can be gone on with where it is.
        best = int(np.lexsort((self.is_running, -common))[0])
        return best, int(common[best])

    def take(self, source: int, common: int) -> int:
        """Return a free slot for a prompt that shares `common` tokens with `source`, and mark it as running.

        The source itself where it has ended and most of it is shared, or where no other is free; else an empty slot;
        else the one that was left longest ago.
        """
        is_free = ~self.is_running
        others = np.flatnonzero(is_free & (np.arange(self.count) != source))
        can_go_on = bool(is_free[source]) and common > 0
        if can_go_on and (2 * common >= self.cached[source] or not others.size):
            chosen = source
        else:
            candidates = others if others.size else np.flatnonzero(is_free)
            age = np.where(self.cached[candidates] > 0, self._used[candidates], -1)
            chosen = int(candidates[age.argmin()])
        self.is_running[chosen] = True
        self.touch(chosen)
        return chosen

    def leave(self, slot: int, reserve: int) -> None:
        """End a slot's sequence. What is cached stays, but for the `reserve` last places: idle rows write there."""
        self.is_running[slot] = False
        self.cached[slot] = min(self.cached[slot], self.sequences.tokens.shape[1] - 1 - reserve)
        self.touch(slot)

    def touch(self, slot: int) -> None:
        """Note that a slot is used now."""
        self._clock += 1
        self._used[slot] = self._clock
