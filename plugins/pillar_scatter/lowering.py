"""Pillar scatter as a scatter of feature rows to cells; empty rows go to an extra cell after all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import PillarScatterAttributes

FORMS = ("scatter",)


def lower(
    o: Ops[T],
    inputs: Sequence[T | None],
    attributes: PillarScatterAttributes,
    form: str,  # noqa: ARG001
) -> list[T]:
    """Scatter features [P, C] to coordinates [P, 4]: point cloud, height (unused), row, column.

    Rows from `count` on are empty.
    """
    features, coordinates, count = inputs
    assert features is not None
    assert coordinates is not None
    (height, width), batch = attributes.grid, attributes.batch
    channels, cells = features.shape[1], batch * height * width
    cloud, _, row, column = o.split(coordinates, 1)  # [P]
    inside = _within(o, cloud, batch) & _within(o, row, height) & _within(o, column, width)
    if count is not None:
        inside = inside & (o.arange(o.size(features, 0), INT32) < count)
    cell = (cloud * height + row) * width + column
    target = o.select(inside, cell, cell * 0 + cells)
    blank = o.constant(np.zeros((cells + 1, channels), np.float32), features.dtype)
    laid = o.take(o.scatter_nd(blank, o.unsqueeze(target, 1), features), 0, 0, cells)
    return [o.transpose(o.reshape(laid, [batch, height, width, channels]), (0, 3, 1, 2))]


def _within(o: Ops[T], cell: T, size: int) -> T:
    """Return whether indices are in [0, size)."""
    return o.binary("and", cell > -1, cell < size)
