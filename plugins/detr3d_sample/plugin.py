"""DETR3D feature sampling as a TensorRT plugin, for four feature levels."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("points", "lidar2img", "weights", "features0", "features1", "features2", "features3"),
    types=("FP32", "FP32", *(_DATA,) * 6),
    data=3,
    shapes=lambda shapes, _: [[shapes[0][0], shapes[0][1], shapes[3][2]]],
)
