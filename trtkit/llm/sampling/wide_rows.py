"""Wide rows on the CPU: temperature and filters over one row at a time, in the processor's cache, without sorting.

The formulas are those of `filters`, on weights 2^y instead of probabilities: y = score / temperature * log2(e). A row
is computed on its own, so that it depends on no other. In NumPy: for rows of this size, torch's comparisons, `nonzero`
and single calls are several times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.sampling.draw import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.llm.sampling.columns import Columns

_LOG2_E = log2(np.e)
_MOST_EXPONENT = 64  # fp32 ends at 2^128, and V of them are added
_LEAST_EXPONENT = -200.0  # weighs nothing
_FEW = 8  # if at most an eighth of a row is left, it is computed on its own
_NEAR = 1e-6  # relative; scores further apart stay apart when divided
_GROUPS = 64
_SORTED = 6144  # up to this many values are sorted; more are searched by a sample
_SAMPLE = 1024  # size of a sample of keys with weights; of weights alone, which sort faster, twice that
_SIGMAS = 2.5


@dataclass(frozen=True)
class Filters:
    """One row's numbers. below: 1 - top_p in fp32, the mass that may be removed."""

    temperature: float
    top_k: int
    below: float
    min_p: float
    typical_p: float

    @classmethod
    def of(cls, slots: Array, columns: Columns) -> Iterator[Filters]:
        """Yield the numbers of each slot."""
        below = (1 - columns["top_p"][slots]).astype(np.float32)
        names = (columns[name][slots].tolist() for name in ("temperature", "top_k"))
        others = (columns[name][slots].tolist() for name in ("min_p", "typical_p"))
        return map(cls, *names, below.tolist(), *others)

    @property
    def is_used(self) -> bool:
        """Whether any token could be removed."""
        return self.top_k > 0 or self.below > 0 or self.min_p > 0 or self.typical_p < 1


class Workspace:
    """Memory that rows of one width use in turn: arrays in fp32, one in fp64 for sums."""

    def __init__(self, width: int) -> None:
        self.values, self.spare, self.keys = np.empty((3, width), np.float32)
        self.sums = np.empty(-(-width // GROUP) * GROUP)


class TokenWeights:
    """What can be drawn from a row of scores [V]: weights [n] fp32, 0 for removed tokens.

    ids: [n], the tokens, in order; all V if None. Valid until the workspace is used again.
    """

    def __init__(self, scores: Array, ids: Array | None, numbers: Filters, top: float, space: Workspace) -> None:
        self.ids, self.space = ids, space
        self.scores = scores if ids is None else scores[ids]
        self._top, self._scale = np.float32(top), np.float32(_LOG2_E / numbers.temperature)
        self.values = space.values[: len(self.scores)]
        self.exponents(self.values)
        np.exp2(self.values, out=self.values)

    def exponents(self, out: Array) -> None:
        """Write log2 of the weights as they were before any was removed."""
        if abs(self._top * self._scale) <= _MOST_EXPONENT:
            np.multiply(self.scores, self._scale, out=out)
        else:
            np.subtract(self.scores, self._top, out=out)
            out *= self._scale

    def keep(self, indices: Array) -> None:
        """Keep only the tokens at some indices, in order."""
        self.ids = indices if self.ids is None else self.ids[indices]
        self.scores, self.values = self.scores[indices], self.values[indices]

    def remove_below(self, least: float) -> None:
        """Remove tokens with a weight below `least`."""
        under = float(np.nextafter(np.float32(least), np.float32(0)))
        values = torch.from_numpy(self.values)
        torch.threshold(values, under, 0.0, out=values)

    def tokens(self, indices: Array) -> Array:
        """Return the ids of the tokens at some indices."""
        return indices if self.ids is None else self.ids[indices]

    def race(self, noise: Array, out: Array) -> int:
        """Return the group that wins against noise [G], and write its weights to out [GROUP], which holds zeros."""
        count, ids = len(self.values), self.ids
        if ids is None:
            wide = self.space.sums.reshape(-1, GROUP)
            self.space.sums[:count], self.space.sums[count:] = self.values, 0
            group = int((np.einsum("ij->i", wide) / noise).argmax())
            out[:] = wide[group]
        else:
            sums = np.bincount(ids // GROUP, self.values)
            group = int((sums / noise[: len(sums)]).argmax())
            first, last = np.searchsorted(ids, (GROUP * group, GROUP * (group + 1))).tolist()
            out[ids[first:last] - GROUP * group] = self.values[first:last]
        return group


def row_weights(scores: Array, numbers: Filters, space: Workspace) -> TokenWeights | None:
    """Return what a row of scores [V] fp32 draws from; None if it contains NaN or infinity, or nothing but -inf."""
    top = float(scores.max())
    if not np.isfinite(top):
        return None
    least, ids = _top_k(scores, numbers.top_k, space) if 0 < numbers.top_k < len(scores) else (None, None)
    weights = TokenWeights(scores, ids, numbers, top, space)
    if least is not None:
        # Scores that become equal when divided by the temperature are kept together.
        temperature = np.float32(numbers.temperature)
        divided = np.divide(weights.scores, temperature, out=space.spare[: len(weights.scores)])
        weights.values *= divided >= np.float32(least) / temperature
    if numbers.below > 0:
        _top_p(weights, numbers.below)
    if numbers.min_p > 0:
        weights.remove_below(float(np.float32(numbers.min_p) * weights.values.max()))
    if numbers.typical_p < 1:
        _typical(weights, numbers.typical_p)
    return weights


def _if_few(values: Array, least: float) -> Array | None:
    """Return the indices of values [n] that are not below `least`, if they are few."""
    chosen = values >= np.float32(least)
    return np.flatnonzero(chosen) if np.count_nonzero(chosen) * _FEW <= len(chosen) else None


def _top_k(scores: Array, k: int, space: Workspace) -> tuple[float, Array | None]:
    """Return the k-th largest score, and the indices of scores that are not clearly less, if they are few.

    If k is small, they are among those not below the k-th largest of the groups' largest scores.
    """
    even = len(scores) // _GROUPS * _GROUPS
    tops = scores[:even].reshape(_GROUPS, -1).max(0)
    if 2 * k <= len(tops):
        indices = _if_few(scores, _slightly_less(np.partition(tops, len(tops) - k)[len(tops) - k]))
        if indices is not None:
            candidates = scores[indices]
            return float(np.partition(candidates, len(indices) - k)[len(indices) - k]), indices
    space.spare[:] = scores
    space.spare.partition(len(scores) - k)
    least = float(space.spare[len(scores) - k])
    return least, _if_few(scores, _slightly_less(least))


def _slightly_less(score: float) -> float:
    return float(score - abs(score) * _NEAR)


def _top_p(weights: TokenWeights, below: float) -> None:
    """Remove the least likely tokens that together have at most `below`; of equal ones, the first in order.

    Sums are compared as fp32 numbers, as transformers does: half a unit in the last place above counts as equal.
    """
    total = mass(weights.values)
    target = total * (below + float(np.spacing(np.float32(below))) / 2)
    # All tokens below this weight together have less than the target.
    certain = _if_few(weights.values, 0.98 * target / len(weights.values))
    if certain is not None:
        weights.keep(certain)
        target = max(target - (total - float(weights.values.sum(dtype=np.float64))), 0.0)
    least, before = boundary(weights.values, weights.values, target, weights.space.spare)
    equal = np.flatnonzero(weights.values == np.float32(least))
    weights.remove_below(least)
    if len(equal) > 1:
        count = min(int((target - before) / least), len(equal) - 1)
        scores = weights.scores[equal]
        if scores.min() < scores.max():
            equal = equal[scores.argsort(kind="stable")]
        weights.values[equal[:count]] = 0


def _typical(weights: TokenWeights, share: float) -> None:
    """Keep the tokens whose surprise is closest to the entropy, up to a share of the mass.

    A token's surprise less the entropy is the mean of the exponents less its own.
    """
    count = len(weights.values)
    keys, spare, total = weights.space.keys[:count], weights.space.spare[:count], mass(weights.values)
    weights.exponents(keys)
    torch.from_numpy(keys).clamp_(min=_LEAST_EXPONENT)
    mean = np.float32(mass(np.multiply(keys, weights.values, out=spare)) / total)
    likely = _if_few(weights.values, _unlikely(weights, mean, (1 - share) * total))
    if likely is not None:
        weights.keep(likely)
        keys = keys[likely]
    keys -= mean
    np.abs(keys, out=keys)
    target = total * (share - float(np.spacing(np.float32(share))) / 2)
    weights.values *= keys <= np.float32(boundary(keys, weights.values, target, spare)[0])


def _unlikely(weights: TokenWeights, mean: np.float32, may_go: float) -> float:
    """Return a weight so small that all tokens below it are removed; 0 if there is none.

    Tokens of less than twice that weight together have less than `may_go`, and none is closer to the mean than the
    likeliest.
    """
    least = 0.98 * may_go / len(weights.values)
    is_far = least > 0 and 2 * mean - log2(least) >= log2(float(weights.values.max()))
    return least / 2 if is_far else 0.0


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
    if weights is keys:
        stride = len(keys) // (2 * _SAMPLE) + 1
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
