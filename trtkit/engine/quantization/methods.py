"""The ways to quantize an LLM's linear layers, in ModelOpt's terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.quantized import Format

Json = dict[str, Any]

_INT8: Json = {"num_bits": 8, "axis": None}
_INT8_ROWS: Json = {"num_bits": 8, "axis": 0}
_FP8: Json = {"num_bits": (4, 3), "axis": None}
_FP8_ROWS: Json = {"num_bits": (4, 3), "axis": 0}
_NVFP4: Json = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
_MXFP8: Json = {"num_bits": (4, 3), "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": (8, 0)}}
_INT4: Json = {"num_bits": 4}


@dataclass(frozen=True)
class LlmMethod:
    """One way to quantize linear layers.

    format: of the codes. weights, inputs: ModelOpt's quantizer attributes; None where inputs are not quantized.
    algorithm: ModelOpt's, for the whole model. has_blocks: weights share scales by block. reads_data: it needs
    calibration.
    """

    format: Format
    weights: Json
    inputs: Json | None = None
    algorithm: Json = field(default_factory=lambda: {"method": "max"})
    has_blocks: bool = False
    reads_data: bool = False


METHODS = {
    "int8_wo": LlmMethod("int8", _INT8_ROWS),
    "int8": LlmMethod("int8", _INT8_ROWS, _INT8, reads_data=True),
    "int8_sq": LlmMethod("int8", _INT8_ROWS, _INT8, {"method": "smoothquant"}, reads_data=True),
    "int4_wo": LlmMethod("int4", _INT4, has_blocks=True),
    "int4_awq": LlmMethod(
        "int4", _INT4, None, {"method": "awq_lite", "alpha_step": 0.1}, has_blocks=True, reads_data=True
    ),
    "int4_gptq": LlmMethod("int4", _INT4, None, {"method": "gptq"}, has_blocks=True, reads_data=True),
    "fp8": LlmMethod("fp8", _FP8, _FP8, reads_data=True),
    "fp8_pc": LlmMethod("fp8", _FP8_ROWS, _FP8, reads_data=True),
    "nvfp4": LlmMethod("fp4", _NVFP4, _NVFP4, reads_data=True),
    "mxfp8": LlmMethod("mxfp8", _MXFP8, _MXFP8),
}
"""By name. Recipes: https://github.com/NVIDIA/Model-Optimizer (modelopt_recipes)."""

BITS = {"int8": 8.0, "fp8": 8.0, "mxfp8": 8.25, "int4": 4.0, "fp4": 4.5}
"""Bits of a weight with its block's scale; of int4 without it, whose blocks differ."""

SMOOTHING = 0.7
"""SmoothQuant's alpha: on SmolLM2, 0.5 loses 16 % of perplexity, 0.7 4 %, 1.0 10 % before outliers are kept."""

OUTLIERS = 1000.0
"""SmoothQuant leaves inputs alone whose largest channel is so many times the median one: no one scale fits both."""


def quantizer(method: LlmMethod, block: int) -> Json:
    """Return ModelOpt's attributes of a layer's weights. block: columns that share a scale, where the method asks."""
    if not method.has_blocks:
        return dict(method.weights)
    return {**method.weights, "block_sizes": {-1: block, "type": "static"}}


def largest_block(sizes: Sequence[int]) -> int:
    """Return the largest block of 128, 64 and 32 columns that divides all sizes; 0 where none does."""
    return next((block for block in (128, 64, 32) if all(size % block == 0 for size in sizes)), 0)
