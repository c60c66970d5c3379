"""A TensorRT layer as the lowerings see it, and what a lowering returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trtkit.errors import ExecutionError
from trtkit.reference.memo import RunMemo
from trtkit.reference.weights import read_weights

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.reference.precision import Precision
    from trtkit.reference.ranks import Rank

Tensor = torch.Tensor
Op = Callable[..., Any]
"""Takes the layer's inputs in order, None for those left out; returns its output, or a tuple of several."""


@dataclass(frozen=True)
class Lowered:
    """A layer as torch code.

    run: computes the output from the inputs.
    overwrite: as `run`, but may destroy its first input; used where nothing else needs that input.
    is_view: the output may share memory with an input.
    """

    run: Op
    overwrite: Op | None = None
    is_view: bool = False


@dataclass(frozen=True)
class Settings:
    """How to compile. constants: the side table. in_place_caches: KV caches are updated where they are.

    ranks: the other ranks of a multi-device network, None for a single one. memo: what layers share during a run.
    """

    precision: Precision
    constants: Mapping[str, Any] = field(default_factory=dict)
    in_place_caches: bool = False
    ranks: Rank | None = None
    memo: RunMemo = field(default_factory=RunMemo)


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor of the network. is_shape: only shape arithmetic uses it."""

    index: int
    name: str
    dtype: DType
    is_shape: bool = False


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, read once when the network is compiled.

    trt: the TensorRT object with its own class, so that its parameters can be read.
    inputs: None where an optional input is left out.
    known: values of the inputs that are the same in every run, None for the others.
    """

    trt: Any
    kind: str
    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    known: tuple[Tensor | None, ...]
    settings: Settings

    @property
    def precision(self) -> Precision:
        """The types the network is computed in."""
        return self.settings.precision

    def has_input(self, index: int) -> bool:
        """Whether optional input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def known_input(self, index: int) -> Tensor | None:
        """Return the value of input `index` if it is the same in every run."""
        return self.known[index] if index < len(self.known) else None

    def input_dtype(self, index: int = 0) -> torch.dtype:
        """Return the torch type that holds input `index`."""
        spec = self.inputs[index]
        assert spec is not None
        return self.precision.storage(spec.dtype)

    def output_dtype(self, index: int = 0) -> torch.dtype:
        """Return the torch type that holds output `index`."""
        return self.precision.storage(self.outputs[index].dtype)

    def option(self, attribute: str) -> str:
        """Return the name of an enumeration parameter, such as `MAX`."""
        return str(getattr(self.trt, attribute).name)

    def ints(self, attribute: str) -> tuple[int, ...] | None:
        """Return a list of sizes, None where it comes from an input or was never set."""
        value = getattr(self.trt, attribute)
        return None if value is None else tuple(int(item) for item in value)

    def weights(self, attribute: str, dtype: DType | None = None) -> Tensor | None:
        """Return a weights parameter as a flat tensor, None where it is empty.

        The side table's `<layer>/<attribute>` (`<layer>` for a constant) comes first.
        """
        key = self.name if self.kind == "CONSTANT" else f"{self.name}/{attribute}"
        raw = self.settings.constants.get(key)
        weights = read_weights(getattr(self.trt, attribute), raw, key, dtype)
        if weights is None:
            return None
        return self.to_storage(weights, dtype)

    def to_storage(self, value: Tensor, dtype: DType | None = None) -> Tensor:
        """Return `value` on the device, in the type that holds `dtype`; in `widen` where it is a float."""
        target = value.dtype
        if dtype is not None:
            target = self.precision.storage(dtype)
        elif self.precision.widen and target in (torch.float16, torch.bfloat16, torch.float32):
            target = torch.float64 if self.precision.widen == "fp64" else torch.float32
        return value.to(device=self.precision.device, dtype=target)

    def unsupported(self, what: str) -> ExecutionError:
        """Return the error for a parameter that the executor does not know."""
        return ExecutionError(f"{what} in a {self.kind} layer is not known to the reference executor", self.name)


def axes_of(mask: int) -> tuple[int, ...]:
    """Return the axes whose bits are set in a TensorRT axis mask."""
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


def sizes(value: Tensor) -> list[int]:
    """Return the values of a shape tensor."""
    numbers: list[int] = value.reshape(-1).tolist()
    return numbers
