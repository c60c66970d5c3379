"""One uniform number for each token of each sequence, out of a counter-based generator."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK = 64
_WORDS = 4  # that Philox 4x64 makes at each count


def uniform_block(seed: int, block: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return numbers `block * BLOCK` and on of a seed, in [0, 1). Philox 4x64-10 (Salmon et al., SC 2011)."""
    words = np.random.Philox(key=seed, counter=block * (BLOCK // _WORDS)).random_raw(BLOCK)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Uniform:
    """The numbers that slots draw with; a block of each is kept."""

    def __init__(self, slots: int) -> None:
        self._seeds = [0] * slots
        self._blocks = np.full(slots, -1, np.int64)
        self._numbers = np.zeros((slots, BLOCK))

    def admit(self, slot: int, seed: int) -> None:
        """Give a slot its seed."""
        self._seeds[slot], self._blocks[slot] = seed, -1

    def copy(self, source: int, target: int) -> None:
        """Make `target` draw as `source` does."""
        self.admit(target, self._seeds[source])

    def at(self, slots: np.ndarray[Any, Any], steps: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return [R] numbers: that of `steps` [R], the tokens drawn before, of each of `slots` [R]."""
        blocks = steps // BLOCK
        for row in np.flatnonzero(self._blocks[slots] != blocks):
            slot, block = int(slots[row]), int(blocks[row])
            self._numbers[slot], self._blocks[slot] = uniform_block(self._seeds[slot], block), block
        return self._numbers[slots, steps % BLOCK]  # type: ignore[no-any-return]
