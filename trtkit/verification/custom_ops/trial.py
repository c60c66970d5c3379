"""A case of a custom op in one data type: inputs, what is known of them, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import DType, dtype_of
from trtkit.network.foreign import Fact
from trtkit.network.host_array import array_dtype
from trtkit.reference.precision import to_tensor
from trtkit.verification.compare import compare, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.network.custom_op import CustomOp, OpCase, OpPort
    from trtkit.verification.report import Comparison


@dataclass(frozen=True)
class Trial:
    """What the implementations are given. dtype: fp32 or fp16, for the inputs that may have it."""

    op: CustomOp
    case: OpCase
    dtype: DType

    @cached_property
    def inputs(self) -> list[Array | None]:
        """The inputs, one for each port at least."""
        arrays = self.op.complete(list(self.case.make(np.random.default_rng(0))))
        return [None if x is None else self._cast(self.port(index), x) for index, x in enumerate(arrays)]

    @cached_property
    def expected(self) -> list[Array]:
        """The reference's outputs, in fp64 from the inputs as they are in `dtype`."""
        inputs = [None if x is None else to_tensor(_widened(x), f"x{index}") for index, x in enumerate(self.inputs)]
        outputs = self.op.part("reference").reference(inputs, self.case.attributes)
        return [tensor.numpy() for tensor in outputs]

    @cached_property
    def facts(self) -> list[Fact | None]:
        """What is known of the inputs before the network runs."""
        return [
            None if x is None else Fact(array_dtype(x), self._known(index, x)) for index, x in enumerate(self.inputs)
        ]

    @cached_property
    def outputs(self) -> list[Fact]:
        """What the op says of its outputs."""
        return self.op.check(self.facts, self.case.attributes)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that can compute the case."""
        return self.case.forms or self.op.forms

    def port(self, index: int) -> OpPort:
        """Return the port of an input."""
        return self.op.inputs[min(index, len(self.op.inputs) - 1)]

    def __str__(self) -> str:
        return f"{self.case.name}, {self.dtype}"

    def named(self) -> dict[str, Array]:
        """Return the inputs that are there, by names."""
        return {f"x{index}": x for index, x in enumerate(self.inputs) if x is not None}

    def compare(self, outputs: Sequence[Array]) -> Comparison:
        """Compare an implementation's outputs with the reference's; the worst of all."""
        return worst([compare(have, want) for have, want in zip(outputs, self.expected, strict=True)])

    def _cast(self, port: OpPort, x: Array) -> Array:
        is_cast = self.dtype in port.types and port.name not in self.case.keeps_fp32 and x.dtype == np.float32
        return np.ascontiguousarray(x.astype(self.dtype.numpy) if is_cast else x)

    def _known(self, index: int, x: Array) -> tuple[int, ...]:
        words = self.port(index).dims.split()
        return tuple(-1 if word in self.case.dynamic else size for word, size in zip(words, x.shape, strict=True))


def trials(op: CustomOp, dtypes: Sequence[str] = ("fp32", "fp16")) -> list[Trial]:
    """Return the trials of an op."""
    return [Trial(op, case, dtype_of(dtype)) for case in op.part("cases").CASES for dtype in dtypes]


def _widened(x: Array) -> Array:
    return x.astype(np.float64) if array_dtype(x).is_float else x
