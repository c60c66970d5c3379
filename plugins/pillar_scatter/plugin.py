"""Pillar scatter as a TensorRT plugin. The count is required."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("features", "coordinates", "count"),
    types=(_DATA, "INT32", "INT32", _DATA),
    data=0,
    shapes=lambda shapes, attributes: [[attributes.batch, shapes[0][1], *attributes.grid]],
)
