"""RoI align as a TensorRT plugin, for boxes with a separate input of image numbers."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("x", "rois", "images"),
    types=(_DATA, "FP32", "INT64", _DATA),
    data=0,
    shapes=lambda shapes, attributes: [[shapes[1][0], shapes[0][1], *attributes.output_size]],
)
