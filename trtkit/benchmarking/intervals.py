"""How sure a ratio of medians is: bootstrap intervals that account for neighbouring samples being alike.

A machine is slow for a while, not for one sample. So whole blocks of neighbours are drawn (the circular block
bootstrap, Politis and Romano 1992), of about the cube root of the sample count: single samples would promise too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A ratio of medians, and where it lies with the stated confidence."""

    ratio: float
    low: float
    high: float
    confidence: float = CONFIDENCE


def ratio_of_medians(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    is_paired: bool = False,
    block: int | None = None,
    seed: int = 0,
) -> Interval:
    """Return the ratio of two medians with its bootstrap interval.

    is_paired: sample i of both was taken in the same round, so that both are drawn together and what slowed a round
    down cancels out. block: neighbours drawn together. Raises ValueError where samples are missing or pairs do not
    match.
    """
    above, below = np.asarray(numerator, float), np.asarray(denominator, float)
    if not above.size or not below.size or (is_paired and above.size != below.size):
        raise ValueError(f"{above.size} and {below.size} samples make no ratio")
    generator = np.random.default_rng(seed)
    drawn = _indices(above.size, block, generator)
    other = drawn if is_paired else _indices(below.size, block, generator)
    ratios = np.median(above[drawn], axis=1) / np.median(below[other], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(float(np.median(above) / np.median(below)), float(low), float(high))


def _indices(count: int, block: int | None, generator: np.random.Generator) -> Array:
    """Return indices [RESAMPLES, count] in blocks of neighbours, the last sample's being the first."""
    length = min(count, block or max(1, round(count ** (1 / 3))))
    starts = generator.integers(0, count, (RESAMPLES, -(-count // length)))
    indices: Array = (starts[:, :, None] + np.arange(length)) % count
    return indices.reshape(RESAMPLES, -1)[:, :count]
