"""A rule: one node type, and how it is written in other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.foreign import ForeignNode, NotYetKnownError, Refusal
from trtkit.network.lowering.onnx_value import OnnxValue

if TYPE_CHECKING:
    from trtkit.network.onnx.rewrites.writer import Writer

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


@dataclass
class Node(ForeignNode):
    """A node to rewrite.

    values: its inputs for the writer, None if they are missing or nothing is known of them.
    declared: sizes, or names of sizes, that the model's own inputs and outputs are declared with.
    """

    values: Sequence[OnnxValue | None] = field(default_factory=list)
    declared: Mapping[str, Sequence[int | str]] = field(default_factory=dict)

    def x(self, index: int, name: str = "") -> OnnxValue:
        """Return an input. Raises Refusal where it is missing, NotYetKnownError where its rank is not known."""
        if not self.input(index):
            raise Refusal(f"input {index}{name and f' (`{name}`)'} is missing")
        value = self.values[index]
        if value is None:
            raise NotYetKnownError(
                f"type and rank of input {index} (`{self.input(index)}`) must be known, the type one of TensorRT's"
            )
        return value

    def whole(self, o: Writer, index: int) -> OnnxValue:
        """Return an input of whole numbers in fp32. TensorRT takes no 8-bit constants but those it dequantizes."""
        value = self.constants[index]
        return o.cast(self.x(index), FP32) if value is None else o.constant(value.astype(np.float32))

    def optional(self, index: int) -> OnnxValue | None:
        """Return an input, None if it is missing."""
        return self.x(index) if self.input(index) else None

    def known(self, index: int) -> bool:
        """Whether an input is a constant."""
        return index < len(self.constants) and self.constants[index] is not None

    def is_used(self, index: int) -> bool:
        """Whether the node has that output."""
        return index < len(self.outputs) and bool(self.outputs[index])


Written: TypeAlias = Sequence[OnnxValue | None] | None
"""The node's outputs, None for one nobody uses; no list at all where the node can stay as it is."""


@dataclass(frozen=True)
class Rule:
    """How nodes of a type are written. write: raises Refusal and NotYetKnownError.

    is_fp32: what is written counts on fp32, also in a model that is converted to fp16 or bf16.
    """

    domain: str
    op_type: str
    write: Callable[[Writer, Node], Written]
    is_fp32: bool = False

    @property
    def label(self) -> str:
        """The type as people write it."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type
