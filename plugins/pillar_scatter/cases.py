"""Test cases for pillar scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import PillarScatterAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _maker(
    attributes: PillarScatterAttributes, pillars: int, channels: int, count: int | None
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes pillars in distinct cells; two are outside the canvas."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        height, width = attributes.grid
        cell = generator.permutation(attributes.batch * height * width)[:pillars]
        cloud, row, column = np.unravel_index(cell, (attributes.batch, height, width))
        coordinates = np.stack([cloud, cloud * 0, row, column], 1).astype(np.int32)
        coordinates[1, 2], coordinates[2, 0] = height, -1
        features = generator.standard_normal((pillars, channels)).astype(np.float32)
        return [features, coordinates, None if count is None else np.array([count], np.int32)]

    return make


_ONE, _TWO = PillarScatterAttributes((7, 5)), PillarScatterAttributes((5, 6), 2)
_LARGE = PillarScatterAttributes((190, 181))
CASES = (
    Case("one cloud, dynamic number", _ONE, _maker(_ONE, 13, 6, None), ("P",)),
    Case("two clouds, some rows empty", _TWO, _maker(_TWO, 24, 5, 17), ("P",)),
    Case("fixed number", _TWO, _maker(_TWO, 9, 8, 9)),
    Case("more than a program of the kernel takes", _LARGE, _maker(_LARGE, 1100, 5, 1090), ("P",)),
)

TYPICAL = Typical("PointPillars on nuScenes", PillarScatterAttributes((512, 512)), ((30000, 64), (30000, 4), (1,)))
