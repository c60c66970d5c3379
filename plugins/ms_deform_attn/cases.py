"""Test cases for multi-scale deformable attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import MsDeformAttnAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _case(
    name: str, shapes: tuple[int, ...], sizes: tuple[int, ...], dynamic: tuple[str, ...] = (), reach: float = 0.6
) -> Case:
    """Return a case. sizes: B, Q, M, P, D. reach: locations' distance from 0.5; above 0.5, some are outside."""
    attributes = MsDeformAttnAttributes(shapes)
    return Case(name, attributes, _maker(attributes, sizes, reach), dynamic, keeps_fp32=("locations",))


def _maker(
    attributes: MsDeformAttnAttributes, sizes: tuple[int, ...], reach: float
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    batch, queries, heads, points, size = sizes
    levels = len(attributes.sizes())

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        value = generator.standard_normal((batch, attributes.length(), heads, size))
        locations = generator.uniform(0.5 - reach, 0.5 + reach, (batch, queries, heads, levels, points, 2))
        weights = generator.random((batch, queries, heads, levels * points))
        weights /= weights.sum(-1, keepdims=True)
        arrays = (value, locations, weights.reshape(batch, queries, heads, levels, points))
        return [array.astype(np.float32) for array in arrays]

    return make


CASES = (
    _case("three levels", (9, 11, 5, 6, 3, 3), (1, 7, 2, 4, 8)),
    _case("dynamic batch and queries", (6, 4, 3, 2), (3, 13, 4, 3, 5), ("B", "Q")),
    _case("one level, one point, far outside", (1, 7), (2, 5, 1, 1, 3), ("B",), reach=3.0),
)

TYPICAL = Typical(
    "RT-DETR at 640 x 640",
    MsDeformAttnAttributes((80, 80, 40, 40, 20, 20)),
    ((1, 8400, 8, 32), (1, 300, 8, 3, 4, 2), (1, 300, 8, 3, 4)),
)
LARGE = _case("80 x 80, 40 x 40, 20 x 20", (80, 80, 40, 40, 20, 20), (1, 300, 8, 4, 32))
