"""The ways to quantize linear layers, and the types that they need. Vision models have some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.quantized_matrix import Format

Json = dict[str, Any]

_INT8: Json = {"num_bits": 8, "axis": None}
_INT8_ROWS: Json = {"num_bits": 8, "axis": 0}
_FP8: Json = {"num_bits": (4, 3), "axis": None}
_FP8_ROWS: Json = {"num_bits": (4, 3), "axis": 0}
_NVFP4: Json = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
_MXFP8: Json = {"num_bits": (4, 3), "block_sizes": {-1: 32, "type": "dynamic", "scale_bits": (8, 0)}}


@dataclass(frozen=True)
class LlmMethod:
    """One way to quantize linear layers.

    format: of the codes. weights, inputs: ModelOpt's quantizer attributes; weights are None where trtkit rounds them
    itself, inputs where they are not quantized. has_blocks: weights share
    scales by block. reads_data: it needs calibration.
    """

    format: Format
    weights: Json | None = None
    inputs: Json | None = None
    has_blocks: bool = False
    reads_data: bool = False


METHODS = {
    "int8_wo": LlmMethod("int8", _INT8_ROWS),
    "int8": LlmMethod("int8", _INT8_ROWS, _INT8, reads_data=True),
    "int8_sq": LlmMethod("int8", _INT8_ROWS, _INT8, reads_data=True),
    "int4_wo": LlmMethod("int4", has_blocks=True),
    "int4_awq": LlmMethod("int4", has_blocks=True, reads_data=True),
    "int4_gptq": LlmMethod("int4", has_blocks=True, reads_data=True),
    "fp8": LlmMethod("fp8", _FP8, _FP8, reads_data=True),
    "fp8_pc": LlmMethod("fp8", _FP8_ROWS, _FP8, reads_data=True),
    "nvfp4": LlmMethod("fp4", _NVFP4, _NVFP4, reads_data=True),
    "mxfp8": LlmMethod("mxfp8", _MXFP8, _MXFP8),
}
"""By name. Recipes: https://github.com/NVIDIA/Model-Optimizer (modelopt_recipes)."""

FALLBACKS = tuple(
    name for name, method in METHODS.items() if not method.has_blocks and method.format in ("int8", "fp8")
)
"""Methods for layers that a budget leaves."""


def type_of(method: str) -> str:
    """Return the type that a method's weights have, by trtkit's name."""
    kind = METHODS[method].format
    return "fp8" if kind == "mxfp8" else kind


def types_of(options: QuantizeOptions, fallback: str | None = None) -> set[str]:
    """Return the types that quantized layers and caches have. fallback: the method of layers that a budget leaves."""
    names = {options.method, *options.layers.values(), fallback} & METHODS.keys()
    caches = {options.kv_cache} if options.kv_cache else set()
    return {type_of(str(name)) for name in names} | caches


def largest_block(sizes: Sequence[int]) -> int:
    """Return the largest block of 128, 64 and 32 columns that divides all sizes; 0 where none does."""
    return next((block for block in (128, 64, 32) if all(size % block == 0 for size in sizes)), 0)
