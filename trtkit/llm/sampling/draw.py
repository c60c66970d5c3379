"""Tokens from scores: the largest, or one drawn with one random number per token of each sequence.

A draw does not accumulate probabilities along the vocabulary, where rounding would move each token's bounds. Instead
tokens race: each has exponential noise, a hash of the number and the token, and the largest weight / noise wins, which
happens with the token's probability (Gumbel-max). Groups of tokens race first, by their sums, then the winner's tokens,
so that few hashes are needed. Rounding can change a token only if the two best are nearly equal.
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

    # Arrays for rows that the host computes one by one: a NumPy call takes a quarter of the time of a torch call.
    Numbers = TypeVar("Numbers", Array, Tensor)

GROUP = 512
"""Number of tokens in a group; groups race first, then the winner's tokens."""
FIRST_GROUP = 1 << 32
"""Number of the first group's noise; a token's noise has the token's own number."""
# SplitMix64's constants, as signed integers.
_GAMMA, _LAST_SHIFT = 0x9E3779B97F4A7C15 - (1 << 64), 31
_MIX = (30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64))
BLOCK = 64
_WORDS = 4  # numbers that Philox 4x64 generates per count


def largest_there(scores: Tensor) -> Tensor:
    """Return the largest score's first index in each row of [R, V], on its device; FAILED or NOTHING if a row has none.

    Does not wait. A row whose largest score is not finite has no token.
    """
    if is_on_host(scores):
        host = scores.numpy()  # NumPy's argmax is several times faster than torch's
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
    """Return FAILED or NOTHING for rows without a token, from their largest scores [R]."""
    return FAILED + (NOTHING - FAILED) * (best == -torch.inf).long()


def draw(scores: Tensor, uniform: Array) -> Tensor:
    """Return an index per row of scores [R, W], drawn with numbers `uniform` [R]; FAILED or NOTHING if there is none.

    A row's index depends on nothing but the row and its number. Scores of -inf are never drawn.
    """
    weights, rows = scores.softmax(-1).double(), len(scores)
    groups, width = -(-scores.shape[1] // GROUP), min(scores.shape[1], GROUP)
    wide = torch.nn.functional.pad(weights, (0, groups * width - scores.shape[1])).view(rows, groups, width)
    sums = wide.cumsum(-1)[:, :, -1]  # a reduction's order would depend on the number of rows
    keys = to_device(keys_of(uniform), scores.device)
    places = torch.arange(max(groups, width), device=scores.device)
    group = (sums / noise(keys, FIRST_GROUP + places[:groups])).argmax(-1)
    inside = wide[torch.arange(rows, device=scores.device), group]
    chosen = winner(inside, group, keys, places[:width])
    return torch.where(sums.sum(-1) > 0, chosen, failures(scores.amax(-1)))


def winner(weights: Numbers, group: Numbers, keys: Numbers, places: Numbers) -> Numbers:
    """Return the token [R] that wins among weights [R, n] of the first n tokens of groups [R]; weight 0 never wins.

    keys: [R, 1], of the rows' numbers. places: 0 to n - 1.
    """
    start = group * GROUP
    tokens: Numbers = start + (weights / noise(keys, start[:, None] + places)).argmax(-1)
    return tokens


def keys_of(uniform: Array) -> Array:
    """Return numbers [R] in [0, 1) as integers [R, 1], in units of 2^-53."""
    return (uniform[:, None] * 2.0**53).astype(np.int64)


def noise(keys: Numbers, numbers: Numbers) -> Numbers:
    """Return exponential noise [R, n] or [n] fp64 for keys [R, 1] or [1] and integers below 2^63.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), seeded with the key, at each integer. The bits are the same
    everywhere, since products of signed integers wrap like those of unsigned ones.
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
    """Return a seed's numbers from `block * BLOCK` on, in [0, 1). Philox 4x64-10 (Salmon et al., SC 2011)."""
    words = np.random.Philox(key=seed, counter=block * (BLOCK // _WORDS)).random_raw(BLOCK)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Uniform:
    """The random numbers of slots; one block of each is kept."""

    def __init__(self, slots: int) -> None:
        self._seeds = [0] * slots
        self._blocks = np.full(slots, -1, np.int64)
        self._numbers = np.zeros((slots, BLOCK))

    def admit(self, slot: int, seed: int) -> None:
        """Set a slot's seed."""
        self._seeds[slot], self._blocks[slot] = seed, -1

    def copy(self, source: int, target: int) -> None:
        """Copy the seed of `source` to `target`."""
        self.admit(target, self._seeds[source])

    def at(self, slots: Array, positions: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return numbers [R], one for each of `slots` [R] at `positions` [R], its count of earlier tokens."""
        blocks = positions // BLOCK
        for row in np.flatnonzero(self._blocks[slots] != blocks):
            slot, block = int(slots[row]), int(blocks[row])
            self._numbers[slot], self._blocks[slot] = uniform_block(self._seeds[slot], block), block
        return self._numbers[slots, positions % BLOCK]  # type: ignore[no-any-return]
