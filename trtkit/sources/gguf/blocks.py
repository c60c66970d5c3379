"""GGUF's quantized blocks as matrices: Q8_0, Q4_0, Q4_1 and MXFP4 of 32 columns, ternary TQ1_0 and TQ2_0 of 256.

A block is its scale in fp16 (Q4_1: and its least value; MXFP4: a power of two) and its codes. Four-bit codes are in
pairs of columns i and i + 16, the first in the lower half. A ternary block ends with its scale. Source: ggml's
`block_q8_0`, `block_q4_0`, `block_q4_1`, `block_mxfp4`, `block_tq1_0`, `block_tq2_0` in ggml-common.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.quantized_matrix import QuantizedMatrix, pack
from trtkit.sources.quantized.bitnet import ternary_matrix
from trtkit.sources.quantized.mxfp4 import powers_of_two

if TYPE_CHECKING:
    from trtkit.arrays import Array

TERNARY = ("TQ1_0", "TQ2_0")
KEPT = ("Q8_0", "Q4_0", "Q4_1", *TERNARY)
"""Types that have a form in TensorRT."""
KEPT_EXPERTS = ("Q8_0", "Q4_0", "Q4_1", "MXFP4")
"""Types that experts of a mixture stay in: also one whose numbers the network computes itself."""
_BLOCK = 32


def block_matrix(raw: Array, type_name: str) -> QuantizedMatrix:
    """Return a matrix of one of the KEPT or KEPT_EXPERTS types. raw: its bytes, a row of the matrix each."""
    if type_name in TERNARY:
        return _ternary(raw, type_name)
    out = len(raw)
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "MXFP4": 17}[type_name]
    blocks = np.ascontiguousarray(raw).reshape(out, -1, size)
    if type_name == "MXFP4":
        return QuantizedMatrix("mxfp4", pack(_in_order(blocks[:, :, 1:])), powers_of_two(blocks[:, :, 0]))
    scales = _halves(blocks, 0)
    if type_name == "Q8_0":
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(out, -1)
        return QuantizedMatrix("int8", codes, scales)
    numbers = _in_order(blocks[:, :, size - _BLOCK // 2 :])
    # Codes from 0 to 15 become -8 to 7; a block's least value is at 0.
    offsets = _halves(blocks, 2) + 8 * scales if type_name == "Q4_1" else None
    return QuantizedMatrix("int4", pack(numbers ^ 8), scales, offsets=offsets)


def _ternary(raw: Array, type_name: str) -> QuantizedMatrix:
    """Return a matrix of -1, 0 and 1 times the scale of each block."""
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.array(raw).reshape(-1, size)
    scales = blocks[:, -2:].copy().view(np.float16).astype(np.float32).reshape(len(raw), -1)
    blocks[:, -2:] = np.array([1], np.float16).view(np.uint8)
    values = gguf.quants.dequantize(blocks, kind).reshape(len(raw), -1)
    assert values.shape[1] == scales.shape[1] * columns
    return ternary_matrix(values, scales)


def _in_order(pairs: Array) -> Array:
    """Return the four-bit codes of blocks [out, n, 16] as numbers [out, 32 n]."""
    return np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(len(pairs), -1)


def _halves(blocks: Array, start: int) -> Array:
    """Return the fp16 number at byte `start` of each block in fp32: [out, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)[:, :, 0].astype(np.float32)
