"""A tensor inside an ONNX function body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.network.graph import Shape
    from trtkit.network.lowering.onnx_ops import OnnxOps


@dataclass(frozen=True, eq=False)
class OnnxValue:
    """A named tensor of known type and rank. Operators broadcast, and give numbers the tensor's own type."""

    ops: OnnxOps
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
