"""Test cases for GridSample of volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.custom_op import Case, Native, Typical

from .op import GridSample3dAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


def _maker(
    x: tuple[int, ...], out: tuple[int, ...] = (3, 5, 4)
) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes inputs; some sampling positions are outside."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        grid = generator.uniform(-1.3, 1.3, (x[0], *out, 3))
        return [array.astype(np.float32) for array in (generator.standard_normal(x), grid)]

    return make


def _case(name: str, attributes: GridSample3dAttributes, x: tuple[int, ...], dynamic: tuple[str, ...] = ()) -> Case:
    native = {
        "mode": attributes.mode,
        "padding_mode": attributes.padding,
        "align_corners": int(attributes.align_corners),
    }
    return Case(
        name,
        attributes,
        _maker(x),
        dynamic,
        keeps_fp32=("grid",),
        native=Native("", "GridSample", ("x", "grid"), native),
    )


CASES = (
    _case("linear, zeros", GridSample3dAttributes(), (1, 5, 4, 7, 6)),
    _case("linear, border, aligned, dynamic batch", GridSample3dAttributes("linear", "border", True), (2, 3, 5, 3, 7),
          ("N",)),
    _case("nearest, reflection, dynamic sizes", GridSample3dAttributes("nearest", "reflection"), (2, 4, 3, 6, 5),
          ("N", "D", "H", "W", "Do", "Ho", "Wo")),
    _case("linear, reflection, aligned, one plane", GridSample3dAttributes("linear", "reflection", True),
          (1, 2, 1, 4, 5), ("N",)),
)  # fmt: skip

TYPICAL = Typical(
    "a cost volume of 48 disparities", GridSample3dAttributes(), ((1, 32, 48, 64, 128), (1, 48, 64, 128, 3))
)
LARGE = Case("20 x 200 x 100", GridSample3dAttributes(), _maker((1, 4, 20, 200, 100), (10, 40, 40)))
