"""Tokens out of scores: the largest, or by inverse CDF at one uniform number for each token of each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.runtime.device import to_device
from trtkit.runtime.sampling.sampled import FAILED, NOTHING

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array

BLOCK = 64
_WORDS = 4  # that Philox 4x64 makes at each count


def largest_there(scores: Tensor) -> Tensor:
    """Return the first of the largest scores in each row of [R, V], FAILED or NOTHING for a row without one.

    It is where the scores are, which nobody waits for. A row whose largest score is not finite has no token.
    """
    if scores.device.type == "cpu":
        host = scores.numpy()  # NumPy's argmax is several times as fast as torch's
        tokens = host.argmax(-1)
        values = host[np.arange(len(host)), tokens]
        is_there = np.isfinite(values)
        if not is_there.all():
            tokens = np.where(is_there, tokens, np.where(values == -np.inf, NOTHING, FAILED))
        return torch.from_numpy(tokens)
    there = scores.argmax(-1)
    best = scores.gather(-1, there[:, None])[:, 0]
    return torch.where(best.isfinite(), there, failures(best))


def failures(best: Tensor) -> Tensor:
    """Return FAILED or NOTHING for rows without a token by their largest scores [R]."""
    return FAILED + (NOTHING - FAILED) * (best == -torch.inf).long()


def draw(scores: Tensor, uniform: Array) -> Tensor:
    """Return for each row of scores [R, W] the place where its CDF passes `uniform` [R], FAILED or NOTHING for none.

    The CDF is summed in fp64, in the order of the row, so that a row's
    place depends on nothing but the row. Scores of -inf are never drawn, whatever the number.
    """
    cdf = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    end = cdf[:, -1:].contiguous()
    target = to_device(uniform, scores.device).unsqueeze(-1) * end
    # Rounding may bring the product to the end itself, past every token.
    target = target.minimum(torch.nextafter(end, torch.zeros_like(end)))
    places = torch.searchsorted(cdf, target, right=True).clamp(max=scores.shape[-1] - 1)
    return torch.where(end > 0, places, failures(scores.amax(-1, keepdim=True))).squeeze(-1)


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

    def at(self, slots: Array, positions: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return [R] numbers: that of `positions` [R], the tokens before, of each of `slots` [R]."""
        blocks = positions // BLOCK
        for row in np.flatnonzero(self._blocks[slots] != blocks):
            slot, block = int(slots[row]), int(blocks[row])
            self._numbers[slot], self._blocks[slot] = uniform_block(self._seeds[slot], block), block
        return self._numbers[slots, positions % BLOCK]  # type: ignore[no-any-return]
