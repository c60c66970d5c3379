"""A network under construction: named scopes, tensors with arithmetic, weights kept alive.

Shape letters, here and in all of `trtkit.network`:
    B batch (slots), S new tokens, T cached tokens, N query heads, K key/value heads, G = N / K, H head_dim,
    D hidden, F intermediate, E experts, V vocabulary.  In vision: N batch, C channels, H height, W width.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import DTYPES, FP16, DType, from_tensorrt
from trtkit.errors import NetworkError
from trtkit.network.host_array import Array, HostArray, host_array, overflow
from trtkit.network.layer_graph import LayerGraph, read_layers
from trtkit.network.trt_errors import error_recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.backends import Backend
    from trtkit.network.input_spec import InputSpec
    from trtkit.quantized_model import LayerForm

Shape = tuple[int, ...]
"""Sizes by axis; -1 where known at run time only."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """An ITensor of a graph. Operators broadcast, and give numbers the tensor's own type."""

    graph: Graph
    trt: Any
    shape: Shape
    dtype: DType

    @property
    def name(self) -> str:
        """The tensor's name in the network."""
        return str(self.trt.name)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __add__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("SUM", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("SUM", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("SUB", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("SUB", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("PROD", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("PROD", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("DIV", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("DIV", other, self)

    def __and__(self, other: Tensor) -> Tensor:
        return self.graph.elementwise("AND", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("GREATER", self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return self.graph.elementwise("LESS", self, other)


Operand = Tensor | float


class Graph:
    """An INetworkDefinition with its builder and the memory of its weights.

    network: TensorRT's network: a new one, or a parsed one to extend. builder: TensorRT's builder.
    severity: the lowest severity that a new builder's logger writes; only errors if None.
    constants: bytes of weights by layer name, for types that cannot be read back from TensorRT: bf16 and narrower.
    quantized: how quantized matrices of linear layers were written, by the layer's dotted path.
    inputs: facts about inputs that were added from a spec.
    plugins: the module `tensorrt.plugin` with the plugins that custom ops become; None if they are lowered.
    """

    def __init__(self, backend: Backend, network: Any = None, builder: Any = None, severity: str | None = None) -> None:
        self.backend = backend
        self._logger = None if builder is not None else backend.logger(severity or "ERROR")
        self.builder = builder if builder is not None else backend.trt.Builder(self._logger)
        self.network = backend.new_network(self.builder) if network is None else network
        self.constants: dict[str, Array] = {}
        self.quantized: dict[str, LayerForm] = {}
        self.inputs: list[InputSpec] = []
        self.plugins: Any = None
        self._errors = error_recorder(backend)
        self.network.error_recorder = self._errors
        self._held: list[HostArray] = []
        self._scopes: list[str] = []
        self._names: dict[str, int] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put `name` before the names of the layers added inside."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def path(self, role: str = "") -> str:
        """Return the current scopes and `role` joined by slashes."""
        return "/".join([*self._scopes, role] if role else self._scopes)

    def input(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """Add a network input; -1 for sizes known at run time."""
        trt_dtype = getattr(self.backend.trt.DataType, dtype.tensorrt)
        tensor = self.network.add_input(name, trt_dtype, shape)
        if tensor is None:
            raise self.error(f"input `{name}` of shape {list(shape)} was refused")
        self._names[name] = 1
        return self.tensor(tensor)

    def take(self, spec: InputSpec) -> Tensor:
        """Add the network input that a spec describes."""
        self.inputs.append(spec)
        return self.input(spec.name, DTYPES[spec.dtype], spec.shape)

    def output(self, tensor: Tensor, name: str) -> None:
        """Mark a tensor as the network's output `name`. An input, or another output, goes through an identity layer."""
        if tensor.trt.is_network_input or tensor.trt.is_network_output:
            tensor = self.add(self.network.add_identity(tensor.trt), "identity")
        tensor.trt.name = name
        self.network.mark_output(tensor.trt)

    def constant(self, array: Array, role: str = "constant", dtype: DType | None = None) -> Tensor:
        """Add an array, converted if `dtype` differs from its own; otherwise its memory is shared.

        Raises NetworkError for numbers that fp16 would make infinite.
        """
        memory = host_array(array, dtype)
        if memory.dtype == FP16 and (largest := overflow(array)):
            what = f"holds {largest:.3g}; the largest number of fp16 is 65504"
            raise NetworkError(what, self.path(role), "build with `--precision bf16` or `fp32`")
        return self._held_constant(memory, role)

    def packed(self, array: Array, dtype: DType, shape: Shape, role: str) -> Tensor:
        """Add an array's bytes as a constant of `dtype` and `shape`; 4-bit types store two elements per byte."""
        memory = np.ascontiguousarray(array)
        return self._held_constant(HostArray(dtype, shape, memory.ctypes.data, memory), role)

    def _held_constant(self, memory: HostArray, role: str) -> Tensor:
        """Add memory, which lives as long as the graph, as a constant."""
        trt = self.backend.trt
        weights = trt.Weights(getattr(trt.DataType, memory.dtype.tensorrt), memory.address, memory.size)
        self._held.append(memory)
        tensor = self.add(self.network.add_constant(memory.shape, weights), role)
        if memory.dtype.numpy not in _READABLE:
            self.constants[tensor.name] = memory.raw_bytes()
        return tensor

    def number(self, value: float, dtype: DType, rank: int = 0, role: str = "number") -> Tensor:
        """Add a number as a constant of shape [1] * rank."""
        kind = np.float32 if dtype.is_float else dtype.numpy
        return self.constant(np.full([1] * rank, value, kind), role, dtype)

    def add(self, layer: Any, role: str) -> Tensor:
        """Name a layer that was just added, check TensorRT's result and return its first output.

        Raises NetworkError with the layer's path and TensorRT's message.
        """
        name = self._unique(self.path(role))
        if layer is None:
            raise self.error("TensorRT refused the layer", name)
        layer.name = name
        tensor = layer.get_output(0)
        tensor.name = name
        return self.tensor(tensor, name)

    def tensor(self, tensor: Any, where: str = "") -> Tensor:
        """Wrap an ITensor, such as an output of a parsed network. Raises NetworkError if its shape is invalid."""
        try:
            shape = tuple(tensor.shape[:])  # ten times as fast as without the slice
        except (RuntimeError, ValueError) as error:
            raise self.error("inputs that do not fit", where or str(tensor.name)) from error
        return Tensor(self, tensor, shape, from_tensorrt(tensor.dtype.name))

    def elementwise(self, operation: str, a: Operand, b: Operand) -> Tensor:
        """Add an elementwise layer. Numbers take the other side's type; the shorter shape gets leading axes."""
        known = a if isinstance(a, Tensor) else b
        assert isinstance(known, Tensor)
        role = operation.lower()
        left, right = (x if isinstance(x, Tensor) else self.number(x, known.dtype, known.rank) for x in (a, b))
        rank = max(left.rank, right.rank)
        op = getattr(self.backend.trt.ElementWiseOperation, operation)
        left, right = self.with_rank(left, rank), self.with_rank(right, rank)
        return self.add(self.network.add_elementwise(left.trt, right.trt, op), role)

    def with_rank(self, x: Tensor, rank: int) -> Tensor:
        """Return x with leading axes of size 1."""
        if x.rank == rank:
            return x
        axes = self.constant(np.arange(rank - x.rank, dtype=np.int64), "axes")
        return self.add(self.network.add_unsqueeze(x.trt, axes.trt), "unsqueeze")

    def layers(self) -> LayerGraph:
        """Return the network's layers as data, which keep this graph alive."""
        return replace(read_layers(self.backend, self.network, self.constants), owner=self)

    def error(self, what: str, where: str = "") -> NetworkError:
        """Return a NetworkError at a layer or the current scope, with TensorRT's messages since the last one."""
        errors = "; ".join(dict.fromkeys(self._errors.texts))
        self._errors.clear()
        return NetworkError(f"{what}: {errors}" if errors else what, where or self.path())

    def _unique(self, name: str) -> str:
        """Return `name`, with a number where it was used before."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return self._unique(f"{name}_{count}") if count else name


def same_graph(tensors: Sequence[Tensor]) -> Graph:
    """Return the graph of tensors, which must be one."""
    graph = tensors[0].graph
    assert all(tensor.graph is graph for tensor in tensors), "tensors of different graphs"
    return graph


# Types whose constants TensorRT hands back as NumPy views.
_READABLE = ("float32", "float16", "int64", "int32", "int8", "uint8", "bool")
