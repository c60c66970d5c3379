"""A network's layers as data: kinds, attributes, numbered tensors and weights, read once from TensorRT.

It does not need torch, and once read, it no longer needs TensorRT: the reference executor runs it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import BF16, FP4, INT4, UINT8, DType, from_tensorrt
from trtkit.errors import ExecutionError
from trtkit.network.host_array import Array, array_dtype, host_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.backends import Backend

MISSING = 0
"""The slot of an optional input that is left out."""

Attribute = None | bool | int | float | str | tuple[int | float, ...]
"""A layer's parameter. Enumerations are names, such as `MAX`; sizes that were never set are None."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """A layer's weights. raw: their bytes, [bytes]; 4-bit types have two elements per byte, low nibble first.

    count: elements.
    """

    dtype: DType
    raw: Bytes
    count: int


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor of the network. is_shape: used in shape arithmetic only.

    shape: -1 for sizes known only at run time; None if even the rank is unknown.
    """

    index: int
    name: str
    dtype: DType
    is_shape: bool = False
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class LayerNode:
    """One layer and the slots of its tensors, `MISSING` for inputs left out.

    construct: number of the loop or conditional that a boundary layer belongs to; 0 for all others.
    """

    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    weights: Mapping[str, LayerWeights] = field(default_factory=dict)
    construct: int = 0

    def __post_init__(self) -> None:
        """Strip gaps at the end of the inputs."""
        inputs = self.inputs
        while inputs and inputs[-1] == MISSING:
            inputs = inputs[:-1]
        object.__setattr__(self, "inputs", inputs)


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A whole network. specs: indexed by slot, from 1. inputs, outputs: slots in the network's order.

    library: TensorRT's name and version. owner: the object that keeps the weights' memory alive.
    """

    nodes: tuple[LayerNode, ...]
    specs: tuple[TensorSpec | None, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    library: str = ""
    owner: object = None

    def spec(self, slot: int) -> TensorSpec:
        """Return the tensor in a slot that is not `MISSING`."""
        spec = self.specs[slot]
        assert spec is not None
        return spec


@dataclass
class _Slots:
    """Numbers tensors. TensorRT's Python objects keep their identity only while they are referenced."""

    held: list[Any] = field(default_factory=lambda: [None])
    specs: list[TensorSpec | None] = field(default_factory=lambda: [None])
    by_id: dict[int, int] = field(default_factory=dict)

    def of(self, tensor: Any) -> int:
        """Return the tensor's slot."""
        if tensor is None:
            return MISSING
        slot = self.by_id.get(id(tensor))
        if slot is None:
            slot = self.by_id[id(tensor)] = len(self.held)
            self.held.append(tensor)
            self.specs.append(_spec(slot, tensor))
        return slot


def read_layers(backend: Backend, network: Any, constants: Mapping[str, Array] | None = None) -> LayerGraph:
    """Read every layer and tensor of an INetworkDefinition; weights share its memory.

    constants: values of weights that TensorRT may not return, by layer name (constants) or `<layer>/kernel`,
    `<layer>/bias`: arrays, tensors, or packed bytes. They take precedence over the network's.
    Raises ExecutionError for unreadable weights.
    """
    slots, side = _Slots(), constants or {}
    inputs = tuple(slots.of(network.get_input(index)) for index in range(network.num_inputs))
    reader = _LayerReader(backend, slots, side)
    nodes = tuple(node for index in range(network.num_layers) for node in reader.nodes(network.get_layer(index)))
    outputs = tuple(slots.of(network.get_output(index)) for index in range(network.num_outputs))
    library = f"{backend.name} {backend.version}"
    return LayerGraph(nodes, tuple(slots.specs), inputs, outputs, library, (network, side))


def _spec(slot: int, tensor: Any) -> TensorSpec:
    """Read a tensor's name, type and shape."""
    is_shape = tensor.is_shape_tensor and not tensor.is_execution_tensor
    try:
        shape = tuple(tensor.shape[:])
    except (RuntimeError, ValueError):
        shape = None
    return TensorSpec(slot, tensor.name, from_tensorrt(tensor.dtype.name), is_shape, shape)


class _LayerReader:
    """Reads layers one after another, in the network's order."""

    def __init__(self, backend: Backend, slots: _Slots, constants: Mapping[str, Array]) -> None:
        self._backend, self._slots, self._constants = backend, slots, constants
        self._attention: dict[int, tuple[int, ...]] = {}
        self._constructs: dict[int, int] = {}
        self._names: dict[type, tuple[str, ...]] = {}
        self._held: list[Any] = []  # keeps their identity

    def nodes(self, untyped: Any) -> Iterator[LayerNode]:
        """Yield a layer's node.

        An attention is one node with its first layer's inputs and its second layer's output.
        """
        kind, layer, name = self._backend.layer_type(untyped), self._backend.typed(untyped), untyped.name
        inputs = tuple(self._slots.of(untyped.get_input(index)) for index in range(untyped.num_inputs))
        outputs = tuple(self._slots.of(untyped.get_output(index)) for index in range(untyped.num_outputs))
        if kind.startswith("ATTENTION"):
            layer = layer.attention
            self._held.append(layer)
            if kind == "ATTENTION_INPUT":
                self._attention[id(layer)] = inputs
                return
            kind, name, inputs = "ATTENTION", layer.name, self._attention[id(layer)]
        attributes, weights = self._parameters(layer, kind, name, outputs)
        if untyped.metadata:  # the ONNX node; or a collective's parameters, which TensorRT does not return
            attributes["metadata"] = str(untyped.metadata)
        yield LayerNode(kind, name, inputs, outputs, attributes, weights, self._construct(layer))

    def _construct(self, layer: Any) -> int:
        """Return the number of the loop or conditional that a layer belongs to."""
        owner = next((getattr(layer, name) for name in ("loop", "conditional") if hasattr(layer, name)), None)
        if owner is None:
            return 0
        self._held.append(owner)
        return self._constructs.setdefault(id(owner), len(self._constructs) + 1)

    def _parameters(
        self, layer: Any, kind: str, name: str, outputs: tuple[int, ...]
    ) -> tuple[dict[str, Attribute], dict[str, LayerWeights]]:
        """Return a layer's attributes and weights."""
        attributes: dict[str, Attribute] = {}
        weights: dict[str, LayerWeights] = {}
        layer_class = type(layer)
        if (names := self._names.get(layer_class)) is None:
            names = self._names[layer_class] = _parameter_names(layer_class)
        for key in names:
            try:
                value = getattr(layer, key)
            except (RuntimeError, TypeError, ValueError):
                continue  # of another form of this layer
            if isinstance(value, np.ndarray) or type(value).__name__ == "Weights":
                spec = self._slots.specs[outputs[0]] if kind == "CONSTANT" else None
                path = name if kind == "CONSTANT" else f"{name}/{key}"
                held = _weights(value, self._constants.get(path), path, None if spec is None else spec.dtype)
                if held is not None:
                    weights[key] = held
            elif _is_attribute(value):
                attributes[key] = _attribute(value)
        return attributes, weights


def _parameter_names(layer_class: type) -> tuple[str, ...]:
    """Return the properties that a layer's class adds to those of every layer."""
    return tuple(name for name, value in vars(layer_class).items() if isinstance(value, property))


def _is_attribute(value: Any) -> bool:
    is_sizes = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "__members__") or is_sizes


def _attribute(value: Any) -> Attribute:
    """Return a parameter as plain data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "__members__"):
        return str(value.name)
    try:
        return tuple(item if isinstance(item, float) else int(item) for item in value)
    except ValueError:  # sizes that were never set
        return None


def _weights(held: Any, side: Array | None, key: str, dtype: DType | None) -> LayerWeights | None:
    """Return weights that share their owner's memory; None if they are empty.

    side: the value of `key` in the constants, which takes precedence. dtype: the layer's stated type, if any.
    """
    if side is not None:
        return _of_side(side, dtype)
    if isinstance(held, np.ndarray):
        return LayerWeights(array_dtype(held), held.reshape(-1).view(np.uint8), held.size) if held.size else None
    if held.size == 0:
        return None
    stored = from_tensorrt(held.dtype.name)
    address = _address(held)
    if address is None:
        what = f"TensorRT does not let {stored} weights be read back"
        raise ExecutionError(what, key, f"pass them as constants[`{key}`]")
    raw = (ctypes.c_uint8 * stored.size_bytes(held.size)).from_address(address)
    return LayerWeights(stored, np.ctypeslib.as_array(raw), held.size)


def _of_side(side: Array, dtype: DType | None) -> LayerWeights:
    """Return a value of the constants: packed bytes of `dtype`, or elements with their own type."""
    if not hasattr(side, "dtype"):
        side = np.asarray(side)
    array = host_array(side)
    if dtype is None or dtype == array.dtype or (array.dtype != UINT8 and dtype.bits != INT4.bits):
        raw = array.raw_bytes()
        return LayerWeights(array.dtype, _packed(raw) if array.dtype.bits == INT4.bits else raw, array.size)
    raw = array.raw_bytes()
    if array.dtype == UINT8:
        return LayerWeights(dtype, raw, array.size * 8 // dtype.bits)
    values = np.asarray(side.float() if array.dtype == BF16 else side).reshape(-1)
    return LayerWeights(dtype, _packed(values.astype(_four_bit_type(dtype)).view(np.uint8)), array.size)


def _four_bit_type(dtype: DType) -> Any:
    """Return the NumPy type with one 4-bit element per byte."""
    import ml_dtypes

    return ml_dtypes.float4_e2m1fn if dtype == FP4 else np.int8


def _packed(elements: Bytes) -> Bytes:
    """Pack 4-bit elements, one per byte, into two per byte."""
    nibbles = np.zeros(elements.size + elements.size % 2, np.uint8)
    nibbles[: elements.size] = elements & 15
    return nibbles[::2] | np.left_shift(nibbles[1::2], 4, dtype=np.uint8)


def _address(weights: Any) -> int | None:
    """Return the address of opaque weights' data.

    The Python API hides it for types that NumPy lacks. The object wraps `nvinfer1::Weights {type, values, count}`; its
    layout is verified on weights of known address before use.
    """
    weights_class: Any = type(weights)
    if not _layout_is_known(weights_class):
        return None
    values, count = _struct(weights)
    return values if count == weights.size else None


@cache
def _layout_is_known(weights_class: Any) -> bool:
    """Whether a probe of this class has its array's address and size at the expected offsets."""
    probe = np.arange(3, dtype=np.float32)
    if getattr(weights_class, "__basicsize__", 0) < _POINTER_OFFSET + 8:
        return False
    return _struct(weights_class(probe)) == (probe.ctypes.data, probe.size)


_POINTER_OFFSET = 16  # after CPython's object header


def _struct(weights: Any) -> tuple[int | None, int]:
    """Return `values` and `count` of the wrapped struct."""
    struct = ctypes.c_void_p.from_address(id(weights) + _POINTER_OFFSET).value
    assert struct
    return ctypes.c_void_p.from_address(struct + 8).value, ctypes.c_int64.from_address(struct + 16).value
