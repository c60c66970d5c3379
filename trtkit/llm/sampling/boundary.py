"""The value at which a running sum in sorted order passes a target, found without sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array

_SORTED = 6144  # so many values are sorted
_SAMPLE = 1024
_GROUPS = 64
_SIGMAS = 2.5


def mass(weights: Array) -> float:
    """Return the sum of weights [n]: groups of 64 in fp32, which whole vectors add, and these in fp64."""
    even = len(weights) // _GROUPS * _GROUPS
    total = weights[:even].reshape(_GROUPS, -1).sum(0).sum(dtype=np.float64)
    return float(total + weights[even:].sum(dtype=np.float64) if even < len(weights) else total)


def boundary(keys: Array, weights: Array, target: float, spare: Array) -> tuple[float, float]:
    """Return the least key up to which the weights [n] add up to more than `target`, and the weight of lesser keys.

    The keys of a sample bracket the answer; what is outside the bracket is summed and left, until few remain. The
    sample decides only how fast that is: every sum is of all keys. spare: [n] fp32, scratch.
    """
    before = 0.0
    while len(keys) > _SORTED:
        low, high = _bracket(keys, weights, target - before)
        below = keys < low
        lesser = _masked(weights, below, spare)
        if before + lesser > target:
            indices = np.flatnonzero(below)
        else:
            before += lesser
            if low == high:
                indices = np.flatnonzero(keys == low)
            else:
                np.greater_equal(keys, low, out=below)
                below &= keys <= high
                indices = np.flatnonzero(below)
            inside = mass(weights[indices])
            if before + inside <= target:
                before, indices = before + inside, np.flatnonzero(keys > high)
            elif low == high:
                return low, before
        if not len(indices):  # rounding of the sums: the target is their end
            return high, before
        is_same = weights is keys
        keys = keys[indices]
        weights = keys if is_same else weights[indices]
    return _sorted_boundary(keys, weights, target, before)


def _bracket(keys: Array, weights: Array, target: float) -> tuple[float, float]:
    """Return two keys that the answer is probably between; one twice if there are many keys between any two."""
    stride = len(keys) // _SAMPLE + 1
    if weights is keys:
        sample = np.sort(keys[::stride])
        index = int(np.searchsorted(sample.cumsum(dtype=np.float64), target / stride))
        margin = int(_SIGMAS * (index * max(len(sample) - index, 0) / len(sample)) ** 0.5) + 4
        first, last = index - margin, index + margin
    else:
        sample, first, last = _weighted_sample(keys, weights, target)
    first, last = (min(max(bound, 0), len(sample) - 1) for bound in (first, last))
    low, high = sample[first], sample[last]
    inside = np.searchsorted(sample, high, "right") - np.searchsorted(sample, low, "left")
    if inside * 2 > len(sample):
        low = high = sample[(first + last) // 2]
    return float(low), float(high)


def _weighted_sample(keys: Array, weights: Array, target: float) -> tuple[Array, int, int]:
    """Return keys in order, and the places that the target is probably between.

    A key of each stride represents the stride's weight, the heaviest for their own, so only the others' sums are
    uncertain. Sums are scaled to the total, which is known.
    """
    total, stride = mass(weights), len(keys) // _SAMPLE + 1
    limit = total / (4 * _SAMPLE)
    heavy = np.flatnonzero(weights > limit) if weights.max() > limit else np.zeros(0, np.int64)
    light = weights[::stride] * np.float64(stride)
    light[heavy[heavy % stride == 0] // stride] = 0
    sample = np.concatenate([keys[::stride], keys[heavy]])
    order = sample.argsort()
    sums = np.concatenate([light, weights[heavy]])[order].cumsum()
    spread = np.concatenate([light * light, np.zeros(len(heavy))])[order].cumsum()
    share, scaled = target / total, target / total * sums[-1]
    below = spread[min(int(np.searchsorted(sums, scaled)), len(sums) - 1)]
    margin = _SIGMAS * ((1 - share) ** 2 * below + share**2 * (spread[-1] - below)) ** 0.5
    first, last = np.searchsorted(sums, [scaled - margin, scaled + margin])
    return sample[order], int(first) - 2, int(last) + 2


def _masked(weights: Array, chosen: Array, spare: Array) -> float:
    """Return the sum of the chosen weights. The mask is widened first: a product of two types is slower than both."""
    product = spare[: len(weights)]
    product[:] = chosen
    product *= weights
    return mass(product)


def _sorted_boundary(keys: Array, weights: Array, target: float, before: float) -> tuple[float, float]:
    if weights is keys:
        sums = ordered = np.sort(keys)
    else:
        order = keys.argsort()
        ordered, sums = keys[order], weights[order]
    sums = before + sums.cumsum(dtype=np.float64)
    at = ordered[min(int(np.searchsorted(sums, target, "right")), len(keys) - 1)]
    first = int(np.searchsorted(ordered, at))
    return float(at), float(sums[first - 1]) if first else before
