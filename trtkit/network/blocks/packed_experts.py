"""Experts' matrices in few bits: a step gathers the codes of the chosen ones and computes their numbers.

TensorRT takes codes of its own narrow types nowhere but right before they are dequantized. As 32-bit words they are
integers like others: those of chosen experts are gathered, divided into bytes, and each byte is looked up in a table of
what it stands for. So a plan holds formats that TensorRT lacks (MXFP4) as they are stored, and runs on every GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT32
from trtkit.network.ops.gather import embedding, entries
from trtkit.network.ops.shape import concat, reshape, unsqueeze
from trtkit.quantized_matrix import QuantizedMatrix, numbers_of_bytes
from trtkit.quantized_model import form_of, reads_chosen_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor
    from trtkit.network.host_array import Array
    from trtkit.quantization_methods import Format

_WORD_BYTES, _VALUES = 4, 256


def is_packed(weights: Weights, matrices: Sequence[Array]) -> bool:
    """Whether the codes of a layer's experts, [out, in] each, are read as words: all of one form that fills them."""
    first = matrices[0]
    if not isinstance(first, QuantizedMatrix) or first.shape[1] * first.dtype.bits % (8 * _WORD_BYTES):
        return False
    if not all(isinstance(each, QuantizedMatrix) and form_of(each) == form_of(first) for each in matrices):
        return False
    return all(
        reads_chosen_codes(weights.experts, each.format, changes_inputs=each.changes_inputs) for each in matrices
    )


def packed_matrices(weights: Weights, module: str, experts: range, read: Tensor) -> Tensor:
    """Return the matrices `module` of experts [1, M, out, in]. read: their numbers [M]."""

    def of_each(role: str, parts: Callable[[QuantizedMatrix], Array]) -> Tensor:
        return entries(concat([_constant(weights, f"{module}/{role}", index, parts) for index in experts], 1), 1, read)

    with weights.graph.scope(f"experts/{experts.start}/{module}"):
        first = weights.array("weight")
    codes, scales = of_each("weight", _words), of_each("scale", QuantizedMatrix.block_scales)
    offsets = None if first.offsets is None else of_each("offsets", lambda matrix: matrix.offsets)
    with weights.graph.scope(f"experts/{module}"):
        blocks = reshape(_numbers(weights, codes, first.format), (0, 0, 0, scales.shape[-1], -1))
        blocks = blocks * unsqueeze(scales, 4)
        blocks = blocks if offsets is None else blocks + unsqueeze(offsets, 4)
        return reshape(blocks, (0, 0, 0, first.shape[1]))


def _constant(weights: Weights, path: str, index: int, part: Callable[[QuantizedMatrix], Array]) -> Tensor:
    """Return a part of one expert's matrix as a constant [1, 1, out, n]."""
    graph = weights.graph
    module, _, role = path.partition("/")
    with graph.scope(f"experts/{index}/{module}"):
        matrix = weights.array("weight")
        graph.quantized[graph.path().replace("/", ".")] = replace(form_of(matrix), is_packed=True)
        array = part(matrix)
        if array.dtype == np.int32:
            return graph.packed(array, INT32, (1, 1, *array.shape), role)
        return weights.quantized.checked(array.reshape(1, 1, *array.shape), role)


def _words(matrix: QuantizedMatrix) -> Array:
    """Return a matrix's codes as words [out, n], the first in the lowest bits."""
    return np.ascontiguousarray(matrix.codes).view("<i4")


def _numbers(weights: Weights, words: Tensor, kind: Format) -> Tensor:
    """Return what the codes in words [1, M, out, n] stand for: [1, M, out, n, bytes, codes in a byte]."""
    graph = words.graph
    table = graph.constant(numbers_of_bytes(kind), "values", weights.dtype)
    parts = []
    for _ in range(_WORD_BYTES):
        rest = graph.elementwise("FLOOR_DIV", words, _VALUES)
        parts.append(unsqueeze(words - rest * _VALUES, 4))
        words = rest
    return embedding(concat(parts, 4), table)
