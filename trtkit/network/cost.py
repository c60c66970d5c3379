"""Arithmetic and memory traffic of a layer, from its type and shapes.

FLOPs count a multiply-add as two. Bytes moved are each input, weight and output once: the least that a layer on its
own must move; fusion moves less.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Shape = tuple[int, ...]

# Work per output element of element-wise layers; layers that only move data do none.
_PER_OUTPUT = {
    "ACTIVATION": 1, "ELEMENTWISE": 1, "UNARY": 1, "SCALE": 2, "SELECT": 1, "SOFTMAX": 5, "RAGGED_SOFTMAX": 5,
    "NORMALIZATION": 7, "LRN": 5, "PARAMETRIC_RELU": 2, "QUANTIZE": 2, "DEQUANTIZE": 1, "CUMULATIVE": 1,
    "RESIZE": 7, "GRID_SAMPLE": 12, "ROTARY_EMBEDDING": 3, "DYNAMIC_QUANTIZE": 3,
}  # fmt: skip


def layer_flops(kind: str, layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the floating-point operations of a typed layer of LayerType `kind` at these shapes."""
    if kind in _FORMULAS:
        return _FORMULAS[kind](layer, inputs, outputs)
    return _PER_OUTPUT.get(kind, 0) * sum(math.prod(shape) for shape in outputs)


def _convolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    taps = math.prod(tuple[int, ...](layer.kernel_size_nd))
    per_group = inputs[0][1] // int(layer.num_groups)
    return 2 * math.prod(outputs[0]) * per_group * taps


def _deconvolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    taps = math.prod(tuple[int, ...](layer.kernel_size_nd))
    per_group = outputs[0][1] // int(layer.num_groups)
    return 2 * math.prod(inputs[0]) * per_group * taps


def _matrix_multiply(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    transposed = layer.op0.name == "TRANSPOSE"
    shared = inputs[0][-2] if transposed and len(inputs[0]) > 1 else inputs[0][-1]
    return 2 * math.prod(outputs[0]) * shared


def _pooling(layer: Any, _inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * math.prod(tuple[int, ...](layer.window_size_nd))


def _reduce(_layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    return math.prod(inputs[0])


def _attention(_layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    """Two matrix products and a softmax; q is [B, N, S, H], k is [B, K, T, H].

    TensorRT shows an attention as two layers: the first has the operands, the second the result.
    """
    if len(inputs) < 2 or len(inputs[0]) != 4:
        return 0
    B, N, S, H = inputs[0]
    T = inputs[1][2]
    return B * N * S * T * (4 * H + 5)


def _einsum(layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    """Two operations for every point of the joint index space."""
    terms = layer.equation.replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms) or any(len(t) != len(s) for t, s in zip(terms, inputs, strict=False)):
        return 0
    sizes = {
        letter: size
        for term, shape in zip(terms, inputs, strict=False)
        for letter, size in zip(term, shape, strict=True)
    }
    return 2 * math.prod(sizes.values())


_FORMULAS: dict[str, Callable[[Any, Sequence[Shape], Sequence[Shape]], int]] = {
    "CONVOLUTION": _convolution,
    "DECONVOLUTION": _deconvolution,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "POOLING": _pooling,
    "REDUCE": _reduce,
    "ATTENTION_INPUT": _attention,
    "EINSUM": _einsum,
}
