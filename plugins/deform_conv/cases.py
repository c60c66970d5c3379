"""Test cases for modulated deformable convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.custom_op import Case, Native, Typical

from .op import DeformConvAttributes, output_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray

_BATCH = ("N",)
_SIZES = ("N", "H", "W", "Ho", "Wo")


def _make(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: DeformConvAttributes,
    *,
    reach: float = 1.0,
    has_mask: bool = True,
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes inputs. reach: the largest offset in pixels; large ones sample outside the image."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        size = output_size(x, weight, attributes)
        points = attributes.offset_groups * weight[2] * weight[3]
        offset = generator.standard_normal((x[0], 2 * points, *size)) * reach
        mask = generator.random((x[0], points, *size)) if has_mask else None
        bias = generator.standard_normal(weight[0]) if has_mask else None
        arrays = (generator.standard_normal(x), generator.standard_normal(weight), offset, bias, mask)
        return [None if value is None else value.astype(np.float32) for value in arrays]

    return make


def _native(attributes: DeformConvAttributes, kernel: tuple[int, ...]) -> Native:
    return Native(
        "",
        "DeformConv",
        ("x", "weight", "offset", "bias", "mask"),
        {
            "strides": attributes.stride,
            "pads": (*attributes.padding, *attributes.padding_end),
            "dilations": attributes.dilation,
            "group": attributes.groups,
            "offset_group": attributes.offset_groups,
            "kernel_shape": kernel,
        },
    )


def _case(
    name: str,
    x: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: DeformConvAttributes,
    dynamic: tuple[str, ...] = (),
    **how: Any,
) -> Case:
    make = _make(x, weight, attributes, **how)
    return Case(name, attributes, make, dynamic, native=_native(attributes, weight[2:]))


_ONE = ((1, 1),) * 4
CASES = (
    _case("3x3, padding 1", (1, 8, 9, 11), (6, 8, 3, 3), DeformConvAttributes(*_ONE)),
    _case(
        "groups 2, offset groups 4, stride, dilation, dynamic batch",
        (2, 8, 13, 10),
        (6, 4, 3, 3),
        DeformConvAttributes((2, 1), (1, 2), (1, 2), (1, 2), 2, 4),
        _BATCH,
    ),
    _case("no mask, dynamic sizes", (2, 4, 7, 9), (5, 4, 2, 3), DeformConvAttributes(), _SIZES, has_mask=False),
    _case("offsets far outside", (1, 4, 6, 5), (4, 4, 3, 3), DeformConvAttributes(*_ONE), _BATCH, reach=8.0),
    _case("1x1, uneven padding", (1, 3, 5, 4), (2, 3, 1, 1), DeformConvAttributes((2, 3), (1, 0), (0, 2))),
)

TYPICAL = Typical(
    "ResNet-101 stage 3 of DETR3D",
    DeformConvAttributes(*_ONE),
    ((6, 256, 58, 100), (256, 256, 3, 3), (6, 18, 58, 100), (256,), (6, 9, 58, 100)),
)
LARGE = _case("116 x 200", (1, 8, 116, 200), (8, 8, 3, 3), DeformConvAttributes(*_ONE))
