"""The lowerings' view of a TensorRT layer: attributes, weights as torch tensors, results memoized during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from trtkit.dtypes import INT4
from trtkit.errors import ExecutionError
from trtkit.network.layer_file import MappedFiles
from trtkit.network.layer_view import LayerView

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.network.layer_graph import LayerWeights, TensorSpec
    from trtkit.reference.precision import Precision
    from trtkit.reference.ranks import Rank


Result = TypeVar("Result")

_MAX_ENTRIES = 64


class RunMemo:
    """Results by function and arguments, kept until the run ends, together with the arguments.

    A decoder's layers read the same mask, positions and write indices, and share what they derive from these. Tensors
    are compared by identity, so they must not be overwritten by any layer.
    """

    def __init__(self) -> None:
        self._results: dict[Any, tuple[tuple[Any, ...], Any]] = {}

    def once(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return function(*arguments), computed once per run. Arguments other than tensors must be hashable."""
        key = (function, *[id(item) if isinstance(item, torch.Tensor) else item for item in arguments])
        entry = self._results.get(key)
        if entry is None:
            if len(self._results) >= _MAX_ENTRIES:  # the layers of a loop's body would add to it without end
                self._results.clear()
            entry = self._results[key] = (arguments, function(*arguments))
        result: Result = entry[1]
        return result

    def __enter__(self) -> None:
        """Begin a run."""

    def __exit__(self, *_: object) -> None:
        """Clear the results: in the next run the memory of the inputs may hold other values."""
        self._results.clear()


Tensor = torch.Tensor
Op = Callable[..., Any]
"""Takes the layer's inputs in order, None for omitted ones; returns its output, or a tuple of several."""


@dataclass(frozen=True)
class Lowered:
    """A layer as torch code.

    run: computes the output from the inputs. overwrite: like `run`, but may destroy its first input; used if nothing
    else needs that input. is_view: whether the output may share memory with an input. packed: like `run`, with faster
    CPU kernels on weights in their layout.
    """

    run: Op
    overwrite: Op | None = None
    is_view: bool = False
    packed: Op | None = None


@dataclass(eq=False)
class RowReads:
    """How rows are read, and how many were.

    kept_calls: number of calls for which a row stays in memory; None: all are mapped. read_bytes: of rows that were not
    in memory; if all are mapped, of all gathered rows.
    """

    kept_calls: int | None = None
    read_bytes: int = 0

    @cached_property
    def files(self) -> MappedFiles:
        """The files mapped by this process."""
        return MappedFiles()


@dataclass(frozen=True)
class CompileSettings:
    """Options of compilation. in_place_caches: whether KV caches are updated in place.

    ranks: the other ranks of a multi-device network, None for a single one. memo: results that layers share during a
    run. packs: whether `fast` steps use their layers' packed form. rows: how rows selected at run time are read.
    """

    precision: Precision
    in_place_caches: bool = False
    ranks: Rank | None = None
    packs: bool = False
    memo: RunMemo = field(default_factory=RunMemo)
    rows: RowReads = field(default_factory=RowReads)


@dataclass(frozen=True, eq=False)
class Layer(LayerView):
    """One layer, read once when the network is compiled.

    inputs: None for an omitted optional input. known: values of the inputs that are the same in every run, None for the
    others. held: the weights that an input is the value of, None for computed inputs.
    """

    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    known: tuple[Tensor | None, ...]
    held: tuple[LayerWeights | None, ...]
    settings: CompileSettings

    @property
    def kind(self) -> str:
        """The layer's type, such as `MATRIX_MULTIPLY`."""
        return self.node.kind

    @property
    def name(self) -> str:
        return self.node.name

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

    def lacks(self, attribute: str) -> ExecutionError:
        """Return the error for a parameter that the layer lacks."""
        return self.unsupported(f"a form without `{attribute}`")

    def input_shape(self, index: int) -> tuple[int, ...]:
        """Return an input's shape, -1 for sizes known at run time. Raises ExecutionError if its rank is unknown."""
        return self._shape(self.inputs[index])

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return an output's shape, -1 for sizes known at run time. Raises ExecutionError if its rank is unknown."""
        return self._shape(self.outputs[index])

    def _shape(self, spec: TensorSpec | None) -> tuple[int, ...]:
        if spec is None or spec.shape is None:
            raise self.unsupported("a tensor of unknown rank")
        return spec.shape

    def weights(self, attribute: str, dtype: DType | None = None) -> Tensor | None:
        """Return a weights parameter as a flat tensor, in the type that holds `dtype`; None if it is empty."""
        held = self.node.weights.get(attribute)
        return None if held is None else self.to_storage(weights_tensor(held), dtype)

    def to_storage(self, value: Tensor, dtype: DType | None = None) -> Tensor:
        """Return `value` on the device, in the type that holds `dtype`; floats in the widened type, if any."""
        target = value.dtype
        if dtype is not None:
            target = self.precision.storage(dtype)
        elif self.precision.widen and target in (torch.float16, torch.bfloat16, torch.float32):
            target = torch.float64 if self.precision.widen == "fp64" else torch.float32
        return value.to(device=self.precision.device, dtype=target)

    def unsupported(self, what: str) -> ExecutionError:
        """Return the error for a parameter that the executor does not support."""
        return ExecutionError(f"{what} in a {self.kind} layer is not known to the reference executor", self.name)


def sizes(value: Tensor) -> list[int]:
    """Return the values of a shape tensor."""
    numbers: list[int] = value.reshape(-1).tolist()
    return numbers


# e2m1: sign, two exponent bits, one mantissa bit (OCP Microscaling Formats specification 1.0, section 5.3.3)
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def weights_tensor(weights: LayerWeights) -> torch.Tensor:
    """Return weights as a flat tensor: a view of their bytes, or unpacked for 4-bit types (int8, fp16)."""
    raw = torch.from_numpy(weights.raw)
    if weights.dtype.bits != INT4.bits:
        return raw.view(getattr(torch, weights.dtype.torch))
    nibbles = torch.stack((raw & 15, raw >> 4), dim=1).reshape(-1)[: weights.count]
    if weights.dtype == INT4:
        return nibbles.view(torch.int8).bitwise_xor_(8).sub_(8)
    return torch.tensor(FP4_VALUES, dtype=torch.float16)[nibbles.long()]
