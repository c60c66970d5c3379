"""A count as an exact function of batch, new tokens and cached tokens.

Every tensor's volume has each of the three as a factor at most once, so a count is a sum of eight monomials, and eight
measured values give all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

Point = tuple[int, int, int]
"""Batch B, new tokens of each sequence S, cached tokens of each slot T."""

_POWERS: tuple[Point, ...] = tuple((b, s, t) for b, s, t in product((0, 1), repeat=3))


@dataclass(frozen=True)
class Multilinear:
    """Coefficients of 1, T, S, S T, B, B T, B S, B S T."""

    coefficients: tuple[int, ...] = (0,) * 8

    def at(self, point: Point) -> int:
        """Return the value at (B, S, T)."""
        B, S, T = point
        factors = (1, T, S, S * T, B, B * T, B * S, B * S * T)
        return sum(c * factor for c, factor in zip(self.coefficients, factors, strict=True))

    def scaled(self, factor: Fraction) -> Multilinear:
        """Return the count times a factor, each coefficient rounded."""
        return Multilinear(tuple(round(coefficient * factor) for coefficient in self.coefficients))

    def __add__(self, other: Multilinear) -> Multilinear:
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        return Multilinear(tuple(a + b for a, b in pairs))


NOTHING = Multilinear()


def total(parts: Sequence[Multilinear]) -> Multilinear:
    """Return the sum."""
    return Multilinear(tuple(sum(column) for column in zip(*(part.coefficients for part in parts), strict=True)))


def sample_points(first: Point, step: int = 1, new_step: int = 1) -> tuple[Point, ...]:
    """Return the eight corners that `fit` needs.

    step, new_step: how far the second cached length lies from the first, and the second number of new tokens.
    """
    B, S, T = first
    steps = (1, new_step, step)
    corners = [tuple(f + s * p for f, s, p in zip(first, steps, power, strict=True)) for power in _POWERS]
    assert corners[0] == (B, S, T)
    return tuple((corner[0], corner[1], corner[2]) for corner in corners)


def fit(values: Mapping[Point, int]) -> Multilinear:
    """Return the only multilinear function through eight corners. They must be those of one box."""
    axes = [sorted({point[axis] for point in values}) for axis in range(3)]
    table = {power: values[_corner(axes, power)] for power in _POWERS}
    for axis in range(3):
        low, high = axes[axis]
        for power in (power for power in _POWERS if power[axis] == 0):
            other = _raised(power, axis)
            slope, rest = divmod(table[other] - table[power], high - low)
            assert rest == 0, "a count that is not multilinear"
            table[power], table[other] = table[power] - slope * low, slope
    return Multilinear(tuple(table[power] for power in _POWERS))


def fit_batch(values: Mapping[int, int]) -> Multilinear:
    """Return the line through the values at two batch sizes; a constant where there is one."""
    (low, first), *rest = sorted(values.items())
    if not rest:
        return Multilinear((first, *(0,) * 7))
    (high, second) = rest[0]
    slope, remainder = divmod(second - first, high - low)
    assert remainder == 0, "a count that is not linear in the batch"
    return Multilinear((first - slope * low, 0, 0, 0, slope, 0, 0, 0))


def _corner(axes: Sequence[Sequence[int]], power: Point) -> Point:
    assert all(len(axis) == 2 for axis in axes)
    B, S, T = (axis[p] for axis, p in zip(axes, power, strict=True))
    return B, S, T


def _raised(power: Point, axis: int) -> Point:
    B, S, T = (1 if index == axis else p for index, p in enumerate(power))
    return B, S, T
