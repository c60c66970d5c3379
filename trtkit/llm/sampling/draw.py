"""Tokens out of scores: the largest, or one drawn with one number for each token of each sequence.

A draw does not add probabilities up along the vocabulary, where rounding would move each token's bounds. Tokens race:
each has exponential noise, a hash of the number and the token, and the largest weight / noise wins, which happens with
its probability (Gumbel-max). Groups of tokens race first, by their sums, then the winner's tokens, so few hashes are
needed. Rounding can change a token only if the two best are nearly equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from trtkit.llm.sampling.sampled import FAILED, NOTHING
from trtkit.runtime.device import is_on_host, to_device

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array

    # Arrays for rows that the host computes one by one, since a call of NumPy takes a quarter of the time of torch's.
    Numbers = TypeVar("Numbers", Array, Tensor)

GROUP = 512
"""Tokens that race as one, then against each other."""
FIRST_GROUP = 1 << 32
"""What a group's noise is numbered from; a token's has the token's own number."""
# SplitMix64's constants, as signed integers.
_GAMMA, _LAST_SHIFT = 0x9E3779B97F4A7C15 - (1 << 64), 31
_MIX = (30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64))
BLOCK = 64
_WORDS = 4  # that Philox 4x64 makes at each count


def largest_there(scores: Tensor) -> Tensor:
    """Return the first of the largest scores in each row of [R, V], FAILED or NOTHING for a row without one.

    It is where the scores are, which nobody waits for. A row whose largest score is not finite has no token.
    """
    if is_on_host(scores):
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
    keys = to_device(keys_of(uniform), scores.device)
    places = torch.arange(max(groups, width), device=scores.device)
    group = (sums / noise(keys, FIRST_GROUP + places[:groups])).argmax(-1)
    inside = wide[torch.arange(rows, device=scores.device), group]
    chosen = winner(inside, group, keys, places[:width])
    return torch.where(sums.sum(-1) > 0, chosen, failures(scores.amax(-1)))


def winner(weights: Numbers, group: Numbers, keys: Numbers, places: Numbers) -> Numbers:
    """Return the token [R] that wins among weights [R, n] of the first n tokens of groups [R]; one of 0 never does.

    keys: [R, 1], of the rows' numbers. places: 0 to n - 1.
    """
    start = group * GROUP
    tokens: Numbers = start + (weights / noise(keys, start[:, None] + places)).argmax(-1)
    return tokens


def keys_of(uniform: Array) -> Array:
    """Return numbers [R] in [0, 1) as the whole numbers [R, 1] that they are 2^53rds of."""
    return (uniform[:, None] * 2.0**53).astype(np.int64)


def noise(keys: Numbers, numbers: Numbers) -> Numbers:
    """Return exponential noise [R, n] or [n] fp64 of keys [R, 1] or [1] and whole numbers below 2^63.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), seeded with the key, at each number: the same bits everywhere,
    since products of signed integers wrap to those of unsigned ones.
    """
    bits = keys + (numbers + 1) * _GAMMA
    for shift, factor in _MIX:
        bits = (bits ^ _shifted(bits, shift)) * factor
    bits = _shifted(bits ^ _shifted(bits, _LAST_SHIFT), 12)
    drawn: Numbers
    if isinstance(bits, np.ndarray):
        drawn = -np.log((bits + 0.5) * 2.0**-52)
    else:
        drawn = -((bits.double() + 0.5) * 2.0**-52).log()
    return drawn


def _shifted(bits: Numbers, count: int) -> Numbers:
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
