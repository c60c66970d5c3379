"""Describe a network as data: inputs, outputs, layers, and each layer's arithmetic and memory traffic."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import DTYPES, DType, from_tensorrt
from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.backends import Backend


# Weights that layers hold as attributes; all others are constants.
_WEIGHT_ATTRIBUTES = {
    "CONVOLUTION": ("kernel", "bias"),
    "DECONVOLUTION": ("kernel", "bias"),
    "SCALE": ("scale", "shift", "power"),
}


def describe(backend: Backend, network: Any, shapes: Mapping[str, tuple[int, ...]]) -> NetworkRecord:
    """Return the record of `network` at the input `shapes`; its own, possibly dynamic, shapes are restored afterwards.

    TensorRT infers every tensor's shape: the inputs are made static while the network is read.
    """
    dynamic_inputs = tuple(_tensor(network.get_input(index)) for index in range(network.num_inputs))
    dynamic_outputs = tuple(_tensor(network.get_output(index)) for index in range(network.num_outputs))
    known: dict[str, TensorRecord] = {}
    with static_inputs(network, shapes):
        stand_ins = StandIns(backend, network)
        try:
            layers = tuple(
                _layer(backend, network.get_layer(index), known, stand_ins) for index in range(network.num_layers)
            )
        finally:
            stand_ins.put_back()
    return NetworkRecord(dynamic_inputs, dynamic_outputs, dict(shapes), layers)


@contextlib.contextmanager
def static_inputs(network: Any, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Set dynamic inputs to `shapes` in the block, so that TensorRT knows the shape of every tensor."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    declared = [tuple(tensor.shape) for tensor in inputs]
    names = [[tensor.get_dimension_name(axis) for axis in range(len(tensor.shape))] for tensor in inputs]
    try:
        for tensor, shape in zip(inputs, declared, strict=True):
            if tensor.name in shapes and -1 in shape:
                tensor.shape = shapes[tensor.name]
        yield
    finally:
        for tensor, shape, axes in zip(inputs, declared, names, strict=True):
            tensor.shape = shape
            for axis, name in enumerate(axes):
                if name:
                    tensor.set_dimension_name(axis, name)


def _tensor(tensor: Any) -> TensorRecord:
    """Read one ITensor. A shape that TensorRT fails to infer is empty."""
    try:
        shape = tuple(tensor.shape)
    except (RuntimeError, ValueError):
        shape = (-1,)
    return TensorRecord(tensor.name, from_tensorrt(tensor.dtype.name).name, shape)


def _layer(backend: Backend, untyped: Any, known: dict[str, TensorRecord], stand_ins: StandIns) -> LayerRecord:
    """Read one layer. known: tensors read so far, since TensorRT takes time to return a shape."""
    layer, kind = backend.typed(untyped), backend.layer_type(untyped)
    originals = stand_ins.inputs_of(layer)
    inputs = tuple(known.get(tensor.name) or _tensor(tensor) for tensor in originals)
    outputs = tuple(_output(layer.get_output(index), stand_ins) for index in range(layer.num_outputs))
    known.update({tensor.name: tensor for tensor in (*inputs, *outputs)})
    weights = dict(_weights(layer, kind, outputs))
    is_known = all(min(tensor.shape, default=0) >= 0 for tensor in (*inputs, *outputs))
    flops = layer_flops(kind, layer, [t.shape for t in inputs], [t.shape for t in outputs]) if is_known else 0
    moved = (
        0 if kind == "CONSTANT" else sum(tensor.size_bytes for tensor in (*inputs, *outputs)) + sum(weights.values())
    )
    return LayerRecord(layer.name, kind, inputs, outputs, weights, flops, moved)


def _output(tensor: Any, stand_ins: StandIns) -> TensorRecord:
    """Read a layer's output, with the shape of its stand-in, if it has one."""
    original = stand_ins.of(tensor.name)
    return _tensor(tensor) if original is None else replace(_tensor(original), name=tensor.name)


def _weights(layer: Any, kind: str, outputs: tuple[TensorRecord, ...]) -> Iterator[tuple[str, int]]:
    """Yield (type, bytes) of the weights that `layer` holds itself."""
    if kind == "CONSTANT":
        yield outputs[0].dtype, outputs[0].size_bytes
        return
    sizes: Counter[str] = Counter()
    for attribute in _WEIGHT_ATTRIBUTES.get(kind, ()):
        values = getattr(layer, attribute)
        if values.size > 0:
            dtype = _weight_type(values.dtype)
            sizes[dtype.name] += dtype.size_bytes(int(values.size))
    yield from sizes.items()


def _weight_type(dtype: Any) -> DType:
    """Return the type of a NumPy view or, for types that NumPy lacks, of opaque `trt.Weights`."""
    if hasattr(dtype, "__members__"):
        return from_tensorrt(dtype.name)
    return next(known for known in DTYPES.values() if dtype.name == known.numpy)


Shape = tuple[int, ...]

# Operations per output element of element-wise layers; layers that only move data have none.
_PER_OUTPUT = {
    "ACTIVATION": 1, "ELEMENTWISE": 1, "UNARY": 1, "SCALE": 2, "SELECT": 1, "SOFTMAX": 5, "RAGGED_SOFTMAX": 5,
    "NORMALIZATION": 7, "LRN": 5, "PARAMETRIC_RELU": 2, "QUANTIZE": 2, "DEQUANTIZE": 1, "CUMULATIVE": 1,
    "RESIZE": 7, "GRID_SAMPLE": 12, "ROTARY_EMBEDDING": 3, "DYNAMIC_QUANTIZE": 3,
}  # fmt: skip


def layer_flops(kind: str, layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the floating-point operations of a typed layer of LayerType `kind` at these shapes."""
    if kind in _FORMULAS:
        return _FORMULAS[kind](layer, inputs, outputs)
    return _PER_OUTPUT.get(kind, 0) * sum(math.prod(shape) for shape in outputs)


def _convolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    taps = math.prod(tuple[int, ...](layer.kernel_size_nd))
    per_group = inputs[0][1] // int(layer.num_groups)
    return 2 * math.prod(outputs[0]) * per_group * taps


def _deconvolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    taps = math.prod(tuple[int, ...](layer.kernel_size_nd))
    per_group = outputs[0][1] // int(layer.num_groups)
    return 2 * math.prod(inputs[0]) * per_group * taps


def _matrix_multiply(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    transposed = layer.op0.name == "TRANSPOSE"
    shared = inputs[0][-2] if transposed and len(inputs[0]) > 1 else inputs[0][-1]
    return 2 * math.prod(outputs[0]) * shared


def _pooling(layer: Any, _inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * math.prod(tuple[int, ...](layer.window_size_nd))


def _reduce(_layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    return math.prod(inputs[0])


def _attention(_layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    """Two matrix products and a softmax; q is [B, N, S, H], k is [B, K, T, H].

    TensorRT shows an attention as two layers: the first has the operands, the second the result.
    """
    if len(inputs) < 2 or len(inputs[0]) != 4:
        return 0
    B, N, S, H = inputs[0]
    T = inputs[1][2]
    return B * N * S * T * (4 * H + 5)


def _einsum(layer: Any, inputs: Sequence[Shape], _outputs: Sequence[Shape]) -> int:
    """Two operations for every point of the joint index space."""
    terms = layer.equation.replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms) or any(len(t) != len(s) for t, s in zip(terms, inputs, strict=False)):
        return 0
    sizes = {
        letter: size
        for term, shape in zip(terms, inputs, strict=False)
        for letter, size in zip(term, shape, strict=True)
    }
    return 2 * math.prod(sizes.values())


_FORMULAS: dict[str, Callable[[Any, Sequence[Shape], Sequence[Shape]], int]] = {
    "CONVOLUTION": _convolution,
    "DECONVOLUTION": _deconvolution,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "POOLING": _pooling,
    "REDUCE": _reduce,
    "ATTENTION_INPUT": _attention,
    "EINSUM": _einsum,
}


class StandIns:
    """Temporarily connects layers to tensors before block quantization rather than to the dequantized ones.

    Both have the same shape and type. A network without such tensors is left unchanged.
    """

    def __init__(self, backend: Backend, network: Any) -> None:
        self._originals: dict[str, Any] = {}
        self._moved: dict[tuple[str, int], Any] = {}
        self._layers: list[tuple[Any, int]] = []
        codes: dict[str, Any] = {}
        for layer in (network.get_layer(index) for index in range(network.num_layers)):
            kind = backend.layer_type(layer)
            if kind == "DYNAMIC_QUANTIZE":
                codes[layer.get_output(0).name] = layer.get_input(0)
            elif kind == "DEQUANTIZE" and layer.get_input(0).name in codes:
                original, output = codes[layer.get_input(0).name], layer.get_output(0)
                if original.dtype == output.dtype:
                    self._originals[output.name] = original
            elif self._originals:
                self._move(layer)

    def _move(self, layer: Any) -> None:
        """Connect a layer to the originals."""
        for index in range(layer.num_inputs):
            tensor = layer.get_input(index)
            if tensor is not None and tensor.name in self._originals:
                self._moved[layer.name, index] = tensor
                self._layers.append((layer, index))
                layer.set_input(index, self._originals[tensor.name])

    def of(self, name: str) -> Any | None:
        """Return the stand-in of a tensor; None if it has none."""
        return self._originals.get(name)

    def inputs_of(self, layer: Any) -> list[Any]:
        """Return a layer's inputs as they are in the network."""
        tensors = [self._moved.get((layer.name, i)) or layer.get_input(i) for i in range(layer.num_inputs)]
        return [tensor for tensor in tensors if tensor is not None]

    def put_back(self) -> None:
        """Restore the inputs of all layers."""
        for layer, index in self._layers:
            layer.set_input(index, self._moved[layer.name, index])
