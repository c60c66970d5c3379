"""A rule: one node type, and how it is written in other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from trtkit.dtypes import FP32, INT64, DType
from trtkit.network.foreign import ForeignNode, NotYetKnownError, Refusal
from trtkit.network.lowering.onnx_ops import OnnxOps
from trtkit.network.lowering.onnx_value import OnnxValue

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


@dataclass
class Node(ForeignNode):
    """A node to rewrite.

    values: its inputs for the writer, None if they are missing or unknown.
    declared: sizes, or names of sizes, declared by the model's own inputs and outputs.
    """

    values: Sequence[OnnxValue | None] = field(default_factory=list)
    declared: Mapping[str, Sequence[int | str]] = field(default_factory=dict)

    def x(self, index: int, name: str = "") -> OnnxValue:
        """Return an input. Raises Refusal if it is missing, NotYetKnownError if its rank is unknown."""
        if not self.input(index):
            raise Refusal(f"input {index}{name and f' (`{name}`)'} is missing")
        value = self.values[index]
        if value is None:
            raise NotYetKnownError(
                f"type and rank of input {index} (`{self.input(index)}`) must be known, the type one of TensorRT's"
            )
        return value

    def whole(self, o: Writer, index: int) -> OnnxValue:
        """Return an input of integers in fp32. TensorRT accepts 8-bit constants only if they are dequantized."""
        value = self.constants[index]
        return o.cast(self.x(index), FP32) if value is None else o.constant(value.astype(np.float32))

    def optional(self, index: int) -> OnnxValue | None:
        """Return an input, None if it is missing."""
        return self.x(index) if self.input(index) else None

    def known(self, index: int) -> bool:
        return index < len(self.constants) and self.constants[index] is not None

    def is_used(self, index: int) -> bool:
        return index < len(self.outputs) and bool(self.outputs[index])


Written: TypeAlias = Sequence[OnnxValue | None] | None
"""The node's outputs, None for unused ones; None instead of a list if the node can stay as it is."""


@dataclass(frozen=True)
class Rule:
    """How nodes of a type are rewritten. write: raises Refusal and NotYetKnownError.

    is_fp32: whether the result requires fp32 even in a model that is converted to fp16 or bf16.
    """

    domain: str
    op_type: str
    write: Callable[[Writer, Node], Written]
    is_fp32: bool = False

    @property
    def label(self) -> str:
        """The type as users write it."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


class Writer(OnnxOps):
    """Primitives, and any other node of ONNX's own."""

    def call(self, op_type: str, inputs: Sequence[OnnxValue], **attributes: Any) -> OnnxValue:
        """Write a node of one output; ONNX infers its type and shape."""
        return self._nodes(op_type, inputs, 1, **attributes)[0]

    def calls(
        self, op_type: str, inputs: Sequence[OnnxValue | None], outputs: int, **attributes: Any
    ) -> list[OnnxValue]:
        """Write a node of several outputs. inputs: None if one is missing."""
        missing = OnnxValue(self, "", (), FP32)
        return self._nodes(op_type, [missing if x is None else x for x in inputs], outputs, **attributes)

    def number(self, value: float, dtype: DType = FP32) -> OnnxValue:
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
        return [self.size(x, axis) for axis in range(len(x.shape))]

    def shape_of(self, x: OnnxValue) -> OnnxValue:
        """Return the sizes of all axes as one vector of int64."""
        return self._dims(self.dims(x)) if x.shape else self.vector([])

    def range(self, size: int | OnnxValue) -> OnnxValue:
        """Return 0, 1, ... `size` - 1 in int64."""
        return self.cast(self.arange(size, INT64), INT64)

    def finish(self, outputs: Sequence[str], values: Sequence[OnnxValue | None]) -> list[onnx.NodeProto]:
        """Return the nodes; the last ones make tensors with the given names."""
        for name, value in zip(outputs, values, strict=False):
            if name and value is not None:
                self.nodes.append(onnx.helper.make_node("Identity", [value.name], [name], name=self._unique("out")))
        return _without_identities(self.nodes, set(outputs))


def _without_identities(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Rename outputs directly rather than through an Identity of a node written here."""
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
