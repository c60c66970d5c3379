"""The value at which a running sum in sorted order passes a target, found without sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array

_SORTED = 4096  # so many values are sorted
_SAMPLE = 768
_GROUPS = 64
_SIGMAS = 2


def mass(weights: Array) -> float:
    """Return the sum of weights [n]: groups of 64 in fp32, which whole vectors add, and these in fp64."""
    even = len(weights) // _GROUPS * _GROUPS
    total = weights[:even].reshape(_GROUPS, -1).sum(0).sum(dtype=np.float64)
    return float(total + weights[even:].sum(dtype=np.float64) if even < len(weights) else total)


def boundary(keys: Array, weights: Array | None, target: float, spare: Array) -> tuple[float, float]:
    """Return the least key up to which the weights [n] add up to more than `target`, and the weight of lesser keys.

    The keys of a sample bracket the answer; what is outside the bracket is summed and left, until few remain. The
    sample decides only how fast that is: every sum is of all keys. weights: all 1 if None. spare: [n] fp32, scratch.
    """
    before = 0.0
    while len(keys) > _SORTED:
        low, high = _bracket(keys, weights, target - before)
        below = keys < low
        lesser = _masked(weights, below, spare)
        if before + lesser > target:
            place = np.flatnonzero(below)
        else:
            before += lesser
            if low == high:
                place = np.flatnonzero(keys == low)
            else:
                np.greater_equal(keys, low, out=below)
                below &= keys <= high
                place = np.flatnonzero(below)
            inside = float(len(place)) if weights is None else mass(weights[place])
            if before + inside <= target:
                before, place = before + inside, np.flatnonzero(keys > high)
            elif low == high:
                return low, before
        if not len(place):  # rounding of the sums: the target is their end
            return high, before
        is_same = weights is keys
        keys = keys[place]
        weights = None if weights is None else keys if is_same else weights[place]
    return _sorted_boundary(keys, weights, target, before)


def _bracket(keys: Array, weights: Array | None, target: float) -> tuple[float, float]:
    """Return two keys that the answer is probably between; one twice if there are many keys between any two."""
    stride = len(keys) // _SAMPLE + 1
    sample = keys[::stride]
    if weights is None:
        sample, place = np.sort(sample), int(target / stride)
    elif weights is keys:
        sample = np.sort(sample)
        place = int(np.searchsorted(sample.cumsum(dtype=np.float64), target / stride))
    else:
        sample, sums = _weighted_sample(keys, weights, stride)
        place = int(np.searchsorted(sums, target))
    count = len(sample)
    place = min(max(place, 0), count - 1)
    margin = int(_SIGMAS * (place * (count - place) / count) ** 0.5) + 4
    low, high = sample[max(place - margin, 0)], sample[min(place + margin, count - 1)]
    inside = np.searchsorted(sample, high, "right") - np.searchsorted(sample, low, "left")
    if inside * 2 > count:
        low = high = sample[place]
    return float(low), float(high)


def _weighted_sample(keys: Array, weights: Array, stride: int) -> tuple[Array, Array]:
    """Return keys in order with the sums that they stand for: of a stride each, and the heaviest for themselves."""
    heavy = np.flatnonzero(weights > mass(weights) / _SAMPLE)
    light = weights[::stride].astype(np.float64)
    light[heavy[heavy % stride == 0] // stride] = 0
    sample = np.concatenate([keys[::stride], keys[heavy]])
    order = sample.argsort()
    return sample[order], np.concatenate([light * stride, weights[heavy]])[order].cumsum()


def _masked(weights: Array | None, chosen: Array, spare: Array) -> float:
    if weights is None:
        return float(np.count_nonzero(chosen))
    return mass(np.multiply(weights, chosen, out=spare[: len(weights)]))


def _sorted_boundary(keys: Array, weights: Array | None, target: float, before: float) -> tuple[float, float]:
    if weights is None or weights is keys:
        ordered = np.sort(keys)
        sums = np.ones(len(keys)) if weights is None else ordered
    else:
        order = keys.argsort()
        ordered, sums = keys[order], weights[order]
    sums = before + sums.cumsum(dtype=np.float64)
    at = ordered[min(int(np.searchsorted(sums, target, "right")), len(keys) - 1)]
    first = int(np.searchsorted(ordered, at))
    return float(at), float(sums[first - 1]) if first else before
