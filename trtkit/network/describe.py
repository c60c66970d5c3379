"""Describe a network as data: read its inputs, outputs and layers from TensorRT."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import DTYPES, DType, from_tensorrt
from trtkit.network.cost import layer_flops
from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord
from trtkit.network.stand_ins import StandIns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.backends import Backend

# Weights that layers hold as attributes; all others come in through constants.
_WEIGHT_ATTRIBUTES = {
    "CONVOLUTION": ("kernel", "bias"),
    "DECONVOLUTION": ("kernel", "bias"),
    "SCALE": ("scale", "shift", "power"),
}


def describe(backend: Backend, network: Any, shapes: Mapping[str, tuple[int, ...]]) -> NetworkRecord:
    """Return the record of `network` at the input `shapes`; its own, possibly dynamic, shapes are put back after.

    TensorRT works out every tensor's shape itself: for the time of reading, the inputs are made static.
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
    """Give dynamic inputs their `shapes` for the block, so that TensorRT knows the shape of every tensor."""
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
    """Read one ITensor. A shape that TensorRT cannot infer, which raises, is empty."""
    try:
        shape = tuple(tensor.shape)
    except (RuntimeError, ValueError):
        shape = (-1,)
    return TensorRecord(tensor.name, from_tensorrt(tensor.dtype.name).name, shape)


def _layer(backend: Backend, untyped: Any, known: dict[str, TensorRecord], stand_ins: StandIns) -> LayerRecord:
    """Read one layer; `known` keeps the tensors read so far, since asking TensorRT for a shape takes time."""
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
    """Read a layer's output; its shape off what stands in for it, where something does."""
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
    """Return the type of a NumPy view or, where NumPy has no such type, of opaque `trt.Weights`."""
    if hasattr(dtype, "__members__"):
        return from_tensorrt(dtype.name)
    return next(known for known in DTYPES.values() if dtype.name == known.numpy)
