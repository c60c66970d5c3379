"""Tokens out of scores: the largest, or one drawn with one number for each token of each sequence.

A draw does not add probabilities up along the vocabulary, where rounding would move each token's bounds. Tokens race:
each has exponential noise, a hash of the number and the token, and the largest weight / noise wins, which happens with
its probability (Gumbel-max). Groups of tokens race first, by their sums, then the winner's tokens, so few hashes are
needed. Rounding can change a token only if the two best are nearly equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.llm.sampling.sampled import FAILED, NOTHING
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array

GROUP = 512
"""Tokens that race as one, then against each other."""
FIRST_GROUP = 1 << 32
"""What a group's noise is numbered from; a token's has the token's own number."""
_GAMMA, _MIX, _LAST_SHIFT = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31  # SplitMix64
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
    """Return a place in each row of scores [R, W], drawn with numbers `uniform` [R]; FAILED or NOTHING for none.

    A row's place depends on nothing but the row and its number. Scores of -inf are never drawn.
    """
    weights, rows = scores.softmax(-1).double(), len(scores)
    groups, width = -(-scores.shape[1] // GROUP), min(scores.shape[1], GROUP)
    wide = torch.nn.functional.pad(weights, (0, groups * width - scores.shape[1])).view(rows, groups, width)
    sums = wide.cumsum(-1)[:, :, -1]  # a reduction's order would depend on how many rows there are
    keys = to_device(_keys(uniform), scores.device)[:, None]
    numbers = torch.arange(max(groups, width), device=scores.device)
    group = (sums / _noise_there(keys, FIRST_GROUP + numbers[:groups])).argmax(-1, keepdim=True)
    inside = wide[torch.arange(rows, device=scores.device), group[:, 0]]
    indices = group * width + numbers[:width]
    chosen = indices.gather(-1, (inside / _noise_there(keys, indices)).argmax(-1, keepdim=True))
    return torch.where(sums.sum(-1, keepdim=True) > 0, chosen, failures(scores.amax(-1, keepdim=True))).squeeze(-1)


def pick(weights: Array, ids: Array | None, uniform: float, space: Array) -> int:
    """Return the token that `draw` draws, for one row: weights [n] of the tokens `ids` [n], or of all if None.

    space: fp64 scratch for all tokens, in whole groups.
    """
    key, count = _keys(np.array([uniform])), len(weights)
    if ids is None:
        wide = space[: -(-count // GROUP) * GROUP]
        wide[:count], wide[count:] = weights, 0
        sums = np.einsum("ij->i", wide.reshape(-1, GROUP))
    else:
        sums = np.bincount(ids // GROUP, weights)
    start = GROUP * int((sums / noise(key, FIRST_GROUP + np.arange(len(sums)))).argmax())
    first, last = (start, start + GROUP) if ids is None else np.searchsorted(ids, (start, start + GROUP)).tolist()
    tokens = np.arange(first, min(last, count)) if ids is None else ids[first:last]
    return int(tokens[(weights[first:last] / noise(key, tokens)).argmax()])


def noise(keys: Array, numbers: Array) -> Array:
    """Return exponential noise [R, n] or [n] fp64 of keys [R, 1] or [1] and whole numbers below 2^63.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), seeded with the key, at each number: the same bits everywhere.
    """
    bits = keys.astype(np.uint64) + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(_LAST_SHIFT)
    return -np.log(((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _noise_there(keys: Tensor, numbers: Tensor) -> Tensor:
    """Return `noise` where the keys are, in torch's signed integers, whose products wrap to the same bits."""
    bits = keys + (numbers + 1) * _signed(_GAMMA)
    for shift, factor in _MIX:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    bits = bits ^ _shifted(bits, _LAST_SHIFT)
    return -((_shifted(bits, 12).double() + 0.5) * 2.0**-52).log()


def _keys(uniform: Array) -> Array:
    """Return numbers in [0, 1) as the whole numbers that they are 2^53rds of."""
    return (uniform * 2.0**53).astype(np.int64)


def _signed(bits: int) -> int:
    return bits - (bits >> 63 << 64)


def _shifted(bits: Tensor, count: int) -> Tensor:
    return (bits >> count) & ((1 << (64 - count)) - 1)


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
