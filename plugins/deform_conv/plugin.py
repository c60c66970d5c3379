"""Modulated deformable convolution v2 as a TensorRT plugin. Bias and mask are required."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("x", "weight", "offset", "bias", "mask"),
    types=(_DATA,) * 6,
    data=0,
    shapes=lambda shapes, _: [[shapes[0][0], shapes[1][0], shapes[2][2], shapes[2][3]]],
)
