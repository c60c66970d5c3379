"""Test cases for DETR3D feature sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import Detr3dSampleAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray

    from trtkit.arrays import HeightWidth


def cameras(batch: int, count: int, height: int, width: int) -> ndarray:
    """Return lidar2img matrices [batch, count, 4, 4] of cameras around the vertical axis that look outwards."""
    intrinsics = np.array([[width * 0.8, 0, width / 2, 0], [0, width * 0.8, height / 2, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    matrices = []
    for camera in range(count):
        turn = 2 * np.pi * camera / count
        right, ahead = np.array([np.sin(turn), -np.cos(turn), 0]), np.array([np.cos(turn), np.sin(turn), 0])
        extrinsics = np.eye(4)
        extrinsics[:3, :3] = np.stack([right, np.array([0, 0, -1]), ahead])
        extrinsics[:3, 3] = extrinsics[:3, :3] @ [0, 0, -1.6]
        matrices.append(intrinsics @ extrinsics)
    return np.broadcast_to(np.array(matrices), (batch, count, 4, 4)).copy()


def _maker(
    batch: int,
    count: int,
    queries: int,
    channels: int,
    attributes: Detr3dSampleAttributes,
    levels: tuple[HeightWidth, ...],
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes inputs. count: of cameras."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        points = generator.random((batch, queries, 3))
        points[:, 0] = 0.5  # the origin, which no camera sees
        matrices = cameras(batch, count, attributes.image_height, attributes.image_width)
        weights = generator.random((batch, queries, count, len(levels)))
        features = [generator.standard_normal((batch, count, channels, *level)) for level in levels]
        return [array.astype(np.float32) for array in (points, matrices, weights, *features)]

    return make


_WIDE, _ONE = Detr3dSampleAttributes(232, 400), Detr3dSampleAttributes(33, 47, (-10.0, -10.0, -2.0, 10.0, 10.0, 4.0))
CASES = (
    Case("six cameras, four levels", _WIDE, _maker(1, 6, 37, 8, _WIDE, ((29, 50), (15, 25), (8, 13), (4, 7)))),
    Case(
        "dynamic batch and sizes",
        _ONE,
        _maker(2, 3, 11, 5, _ONE, ((5, 7), (3, 3))),
        ("B", "Q", "H", "W"),
    ),
)

_LEVELS = ((116, 200), (58, 100), (29, 50), (15, 25))
TYPICAL = Typical(
    "DETR3D at 928 x 1600",
    Detr3dSampleAttributes(928, 1600),
    ((1, 900, 3), (1, 6, 4, 4), (1, 900, 6, 4), *((1, 6, 256, *size) for size in _LEVELS)),
)
LARGE = Case("six cameras, 116 x 200 to 15 x 25", TYPICAL.attributes, _maker(1, 6, 900, 8, TYPICAL.attributes, _LEVELS))
