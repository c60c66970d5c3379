"""Linear layers whose matrices stay quantized: TensorRT dequantizes them as part of the product.

Scales are constants in the network's own type, the only one that TensorRT-RTX 1.7.1 accepts in all forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import DTYPES, E8M0, FP8
from trtkit.errors import NetworkError
from trtkit.network.ops.arithmetic import absolute, max_over, maximum, nearest, sum_over
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.quantize import dequantize, dynamic_quantize, quantize, scale_constant
from trtkit.network.ops.shape import reshape
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_model import form_of

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.dtypes import DType
    from trtkit.network.graph import Graph, Tensor
    from trtkit.quantization_methods import Format
    from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix

_Prepared = tuple["Tensor", "Tensor | None"]
"""The product's inputs, and the factor to multiply its result by."""
LEAST = 1e-6
"""Lower bound of a token's largest magnitude."""


class QuantizedLinears:
    """Writes quantized layers into one graph; layers with the same inputs share their quantization."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self._graph, self._dtype = graph, dtype
        self._prepared: dict[tuple[object, ...], _Prepared] = {}

    def linear(self, x: Tensor, matrix: QuantizedMatrix) -> Tensor:
        """Multiply x [..., in] by a quantized matrix [out, in] -> [..., out], in the current scope."""
        inputs, scale = self._inputs(x, matrix)
        y = matmul(inputs, self.weight(matrix, x.rank), transpose_b=True)
        y = y if matrix.offsets is None else y + self._offset(inputs, matrix.offsets)
        return y if scale is None else y * scale

    def weight(self, matrix: QuantizedMatrix, rank: int) -> Tensor:
        """Return the matrix dequantized, [..., out, in] with leading axes of size 1 up to `rank`."""
        lead = (1,) * (rank - 2)
        self._graph.quantized[self._graph.path().replace("/", ".")] = form_of(matrix)
        codes = self._graph.packed(matrix.codes, matrix.dtype, (*lead, *matrix.shape), "weight")
        scales = self._scales(matrix, lead)
        return dequantize(codes, scales, self._dtype, rank - 2 if matrix.scales.ndim == 1 else None)

    def _scales(self, matrix: QuantizedMatrix, lead: tuple[int, ...]) -> Tensor:
        """Return a matrix's scales as its dequantize layer takes them."""
        shape = (*lead, *matrix.scales.shape) if matrix.scales.ndim == 2 else matrix.scales.shape
        if matrix.format == "mxfp8":
            return self._graph.packed(matrix.scales, E8M0, shape, "scale")
        if matrix.format == "fp4":
            codes = self._graph.packed(matrix.scales, FP8, shape, "scale")
            return dequantize(codes, self._number(matrix.outer_scale, "outer_scale"), self._dtype)
        return self.checked(matrix.scales.reshape(shape), "scale")

    def _inputs(self, x: Tensor, matrix: QuantizedMatrix) -> _Prepared:
        """Return x as the product takes it: multiplied by factors, in the columns' order, quantized and dequantized."""
        factors, kind, columns = matrix.input_factors, matrix.inputs, matrix.columns
        if not matrix.changes_inputs:
            return x, None
        arrays = [None if array is None else np.asarray(array, np.float32).tobytes() for array in (factors, columns)]
        key = (x.name, *arrays, kind, matrix.format)
        if key not in self._prepared:
            changed = x
            if factors is not None:
                changed = changed * self.checked(factors.reshape((1,) * (x.rank - 1) + (-1,)), "input_factors")
            if columns is not None:
                changed = reorder(changed, columns)
            self._prepared[key] = (changed, None) if kind is None else self._rounded(changed, kind, matrix.format)
        return self._prepared[key]

    def _rounded(self, x: Tensor, kind: QuantizedInputs, weights: Format) -> _Prepared:
        """Quantize inputs and dequantize them again; TensorRT fuses both into the product."""
        with self._graph.scope("input"):
            if kind.is_per_token:
                return self._rounded_tokens(x, kind, weights)
            if kind.format == "mxfp8":
                codes, scales = dynamic_quantize(x, FP8)
                return dequantize(codes, scales, self._dtype), None
            scale = self._number(kind.scale, "scale")
            if kind.format == "fp4":
                codes, scales = dynamic_quantize(x, DTYPES["fp4"], scale)
                return dequantize(codes, dequantize(scales, scale, self._dtype), self._dtype), None
            return dequantize(quantize(x, scale, DTYPES[kind.format]), scale, self._dtype), None

    def _rounded_tokens(self, x: Tensor, kind: QuantizedInputs, weights: Format) -> _Prepared:
        """Round tokens divided by their largest magnitudes [..., 1]; the product is multiplied by these.

        TensorRT-RTX 1.7.1 has no int8 x int4 product, so inputs of int4 matrices are rounded with arithmetic.
        """
        largest = maximum(max_over(absolute(x), -1), LEAST)
        steps = kind.steps or FORMATS[kind.format].largest
        if kind.format == "int8" and weights != "int8":
            return nearest(x / largest * steps) * (1 / steps), largest
        step = self._number(1 / steps, "scale")
        return dequantize(quantize(x / largest, step, DTYPES[kind.format]), step, self._dtype), largest

    def _offset(self, x: Tensor, offsets: Array) -> Tensor:
        """Return what a matrix's offsets add: the sum of each block's inputs times its offset; x [..., in]."""
        with self._graph.scope("offset"):
            out, blocks = offsets.shape
            sums = sum_over(reshape(x, (*[0] * (x.rank - 1), blocks, -1)), -1)
            return matmul(
                sums, self.checked(offsets.reshape((1,) * (x.rank - 2) + (out, blocks)), "offsets"), transpose_b=True
            )

    def _number(self, value: float, role: str) -> Tensor:
        return self.checked(np.array(value, np.float32), role)

    def checked(self, values: Array, role: str) -> Tensor:
        """Add numbers in the network's type. Raises NetworkError if they do not fit."""
        wide = np.asarray(values, np.float32)
        limit = 65504.0 if self._dtype.name == "fp16" else float(np.finfo(np.float32).max)
        if not np.all(np.isfinite(wide)) or np.abs(wide).max(initial=0.0) > limit:
            what = f"values up to {np.abs(wide).max():.3g} do not fit {self._dtype}"
            raise NetworkError(what, self._graph.path(role), "set `precision: bf16`, or quantize with better data")
        return scale_constant(self._graph, wide, role, self._dtype)
