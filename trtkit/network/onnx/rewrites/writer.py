"""Write nodes in place of one node of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from trtkit.dtypes import FP32, INT64, DType
from trtkit.network.lowering.onnx_ops import OnnxOps
from trtkit.network.lowering.onnx_value import OnnxValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class Writer(OnnxOps):
    """Primitives, and any other node of ONNX's own."""

    def call(self, op_type: str, inputs: Sequence[OnnxValue], **attributes: Any) -> OnnxValue:
        """Write a node of one output; ONNX infers what it makes."""
        return self._nodes(op_type, inputs, 1, **attributes)[0]

    def calls(
        self, op_type: str, inputs: Sequence[OnnxValue | None], outputs: int, **attributes: Any
    ) -> list[OnnxValue]:
        """Write a node of several outputs. inputs: None if one is missing."""
        missing = OnnxValue(self, "", (), FP32)
        return self._nodes(op_type, [missing if x is None else x for x in inputs], outputs, **attributes)

    def number(self, value: float, dtype: DType = FP32) -> OnnxValue:
        """Return a scalar constant."""
        return self._number(value, dtype)

    def vector(self, values: Sequence[int]) -> OnnxValue:
        """Return a constant vector of int64."""
        return self._vector(values)

    def packed(self, values: np.ndarray[Any, Any], kind: int, dtype: DType) -> OnnxValue:
        """Write an array in an ONNX type that NumPy lacks, such as int4."""
        name = self._unique("constant")
        tensor = onnx.helper.make_tensor(name, kind, values.shape, values.reshape(-1))
        self.nodes.append(onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
        return OnnxValue(self, name, values.shape, dtype)

    def along(self, x: OnnxValue, axis: int, rank: int) -> OnnxValue:
        """Return a vector along one axis of `rank`; a scalar, or a single element, as a scalar."""
        if not x.shape:
            return x
        if x.shape == (1,):
            return self.reshape(x, [])
        shape = [1] * rank
        shape[axis % rank] = -1
        return self.reshape(x, shape)

    def dims(self, x: OnnxValue) -> list[int | OnnxValue]:
        """Return the sizes of all axes."""
        return [self.size(x, axis) for axis in range(len(x.shape))]

    def shape_of(self, x: OnnxValue) -> OnnxValue:
        """Return the sizes of all axes as one vector of int64."""
        return self._dims(self.dims(x)) if x.shape else self.vector([])

    def range(self, size: int | OnnxValue) -> OnnxValue:
        """Return 0, 1, ... `size` - 1 in int64."""
        return self.cast(self.arange(size, INT64), INT64)

    def finish(self, outputs: Sequence[str], values: Sequence[OnnxValue | None]) -> list[onnx.NodeProto]:
        """Return the nodes, the last of which make tensors of the given names."""
        for name, value in zip(outputs, values, strict=False):
            if name and value is not None:
                self.nodes.append(onnx.helper.make_node("Identity", [value.name], [name], name=self._unique("out")))
        return _without_identities(self.nodes, set(outputs))


def _without_identities(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Give tensors their last names where an Identity only renames what a node here made."""
    makers = {name: node for node in nodes for name in node.output}
    kept = []
    for node in nodes:
        source = node.input[0] if node.input else ""
        is_rename = node.op_type == "Identity" and node.output[0] in outputs
        if is_rename and source in makers and source not in outputs and makers[source].op_type != "Constant":
            _rename(nodes, source, node.output[0])
            makers[node.output[0]] = makers[source]
            outputs.add(node.output[0])
            continue
        kept.append(node)
    return kept


def _rename(nodes: list[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
