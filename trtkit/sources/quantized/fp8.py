"""Checkpoints in fp8 as DeepSeek publishes them and transformers writes them.

A linear layer is `weight` fp8 [out, in] and `weight_scale_inv`, which its codes are multiplied by: one number, or one
for each block of rows and columns. `activation_scale` is that of its inputs; where they are scaled by block while
running, they stay as they are here. Source: `transformers/integrations/finegrained_fp8.py`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.quantized.layers import Parts, layers, number, part, replaced
from trtkit.sources.quantized.scales import row_scales

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import MatrixShape
    from trtkit.sources.quantized.layers import Stored

_PARTS = ("weight", "weight_scale_inv", "activation_scale")


def fp8_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises ProblemsError naming layers that cannot be read.
    """
    rows, columns = quantization.get("weight_block_size") or (0, 0)
    block = (int(rows), int(columns))
    return replaced(stored, layers(stored, "weight_scale_inv", _PARTS), lambda _, parts: _matrix(parts, block))


def _matrix(parts: Parts, block: MatrixShape) -> QuantizedMatrix:
    """Return one layer's matrix."""
    codes = part(parts, "weight")
    if codes.ndim != 2 or codes.dtype.name != "float8_e4m3fn":
        raise SourceError(f"codes are {codes.dtype.name} of {codes.ndim} axes, not float8_e4m3fn of 2", fix="use fp8")
    inputs = QuantizedInputs("fp8", number(parts, "activation_scale")) if "activation_scale" in parts else None
    return QuantizedMatrix("fp8", codes, row_scales(part(parts, "weight_scale_inv"), codes.shape, block), inputs=inputs)
