"""Multi-scale deformable attention as a TensorRT plugin."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("value", "locations", "weights"),
    types=(_DATA, "FP32", _DATA, _DATA),
    data=0,
    shapes=lambda shapes, _: [[shapes[0][0], shapes[2][1], shapes[0][2] * shapes[0][3]]],
)
