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

    def x(self, place: int, name: str = "") -> OnnxValue:
        """Return an input. Raises Refusal where it is missing, NotYetKnownError where its rank is not known."""
        if not self.input(place):
            raise Refusal(f"input {place}{name and f' (`{name}`)'} is missing")
        value = self.values[place]
        if value is None:
            raise NotYetKnownError(
                f"type and rank of input {place} (`{self.input(place)}`) must be known, the type one of TensorRT's"
            )
        return value

    def whole(self, o: Writer, place: int) -> OnnxValue:
        """Return an input of whole numbers in fp32. TensorRT takes no 8-bit constants but those it dequantizes."""
        value = self.constants[place]
        return o.cast(self.x(place), FP32) if value is None else o.constant(value.astype(np.float32))

    def optional(self, place: int) -> OnnxValue | None:
        """Return an input, None if it is missing."""
        return self.x(place) if self.input(place) else None

    def known(self, place: int) -> bool:
        """Whether an input is a constant."""
        return place < len(self.constants) and self.constants[place] is not None

    def is_used(self, place: int) -> bool:
        """Whether the node has that output."""
        return place < len(self.outputs) and bool(self.outputs[place])


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
