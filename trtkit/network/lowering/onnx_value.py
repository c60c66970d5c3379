"""A tensor inside an ONNX function body: its operators, and its type and shape as ONNX and NumPy name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.dtypes import DType
    from trtkit.network.graph import Shape
    from trtkit.network.lowering.ops import Dim, Ops


@dataclass(frozen=True, eq=False)
class OnnxValue:
    """A named tensor of known type and rank. Operators broadcast; numbers take the tensor's type."""

    ops: Ops[OnnxValue]
    name: str
    shape: Shape
    dtype: DType

    def __add__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("add", self, other)

    def __radd__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("add", other, self)

    def __sub__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("sub", self, other)

    def __rsub__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("sub", other, self)

    def __mul__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("mul", self, other)

    def __rmul__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("mul", other, self)

    def __truediv__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("div", other, self)

    def __and__(self, other: OnnxValue) -> OnnxValue:
        return self.ops.binary("and", self, other)

    def __gt__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("gt", self, other)

    def __lt__(self, other: Operand) -> OnnxValue:
        return self.ops.binary("lt", self, other)


Operand = OnnxValue | float


def reshaped(shape: Shape, dims: Sequence[Dim[OnnxValue]]) -> Shape:
    """Return the known part of a reshape's result shape."""
    kept = [shape[axis] if size == 0 else size for axis, size in enumerate(dims)]
    known = [size if isinstance(size, int) else -1 for size in kept]
    is_inferred = [isinstance(size, int) and size == -1 for size in dims]
    if any(is_inferred) and known.count(-1) == 1 and -1 not in shape:
        rest = int(np.prod([size for size in known if size != -1]))
        known[is_inferred.index(True)] = int(np.prod(shape)) // max(rest, 1)
    return tuple(known)


def type_proto(x: OnnxValue) -> onnx.TypeProto:
    """Return type and shape as ONNX writes them."""
    kind = onnx.TensorProto.DataType.Value(x.dtype.onnx)
    return helper.make_tensor_type_proto(kind, [size if size >= 0 else None for size in x.shape])


def numpy_type(dtype: DType) -> Any:
    """Return NumPy's type, that of `ml_dtypes` for bf16."""
    if dtype.name == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype.numpy)


def snake_case(op_type: str) -> str:
    """Return `grid_sample` for `GridSample`, `gather_nd` for `GatherND`."""
    return "".join(
        f"_{letter.lower()}" if letter.isupper() and index and op_type[index - 1].islower() else letter.lower()
        for index, letter in enumerate(op_type)
    )
