"""GridSample of volumes as a TensorRT plugin."""

from __future__ import annotations

from trtkit.network.plugin import Plugin

_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("x", "grid"),
    types=(_DATA, "FP32", _DATA),
    data=0,
    shapes=lambda shapes, _: [[*shapes[0][:2], *shapes[1][1:4]]],
)
