"""Q/DQ in an ONNX model: count what is quantized, list products, store weights in low precision."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.onnx.care import all_nodes, opset_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx

    from trtkit.arrays import Array
    from trtkit.dtypes import DType


# The first opsets whose operators take 8-bit codes with 16-bit scales, and blocks of 4 bits.
OPSETS = {8: 19, 4: 21}
"""By bits of a code."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")
PRODUCTS = (*_CONVOLUTIONS, "Gemm", "MatMul")
# TensorRT-RTX adds about 0.1 MiB of code per quantized convolution: quantizing smaller weights would cost more.
LEAST_WEIGHTS = 2**16
_LARGEST_INT4, _LARGEST_INT8 = 7.0, 127.0
_LEAST_SCALE = 2.0**-20


@dataclass(frozen=True)
class ProductWeight:
    """A constant operand of a product. output_axis, input_axis: of its matrix; blocks lie along the latter."""

    node: onnx.NodeProto
    tensor: onnx.TensorProto
    output_axis: int
    input_axis: int


@dataclass(frozen=True)
class QuantizedCounts:
    """Counts of what is quantized.

    weights: tensors. numbers: values in them. all_numbers: values in all products' weights.
    """

    activations: int
    weights: int
    numbers: int
    all_numbers: int

    def __str__(self) -> str:
        share = self.numbers / max(self.all_numbers, 1)
        return f"{self.activations} activations, {self.weights} weights with {share:.0%} of all numbers"


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether the model has Q or DQ nodes."""
    return any(node.op_type in (*_ROUNDING, "DequantizeLinear") for node in all_nodes(model.graph))


def likely_method(model: onnx.ModelProto) -> str:
    """Return the method that a model's Q/DQ nodes suggest; empty if it has none."""
    from onnx import TensorProto

    if not is_quantized(model):
        return ""
    types = {tensor.data_type for tensor in model.graph.initializer}
    if any(node.op_type in _ROUNDING for node in all_nodes(model.graph)):
        return "fp8" if TensorProto.FLOAT8E4M3FN in types else "int8"
    return "int4_wo" if TensorProto.INT4 in types else "int8_wo"


def quantized_activations(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the QuantizeLinear nodes."""
    return [node for node in model.graph.node if node.op_type == "QuantizeLinear"]


def product_inputs(model: onnx.ModelProto, exclude: Collection[str]) -> list[str]:
    """Return the non-constant inputs of convolutions and matrix products."""
    constants = {tensor.name for tensor in model.graph.initializer}
    read = {name: None for node in _products(model, exclude) for name in node.input[:2] if name not in constants}
    return list(read)


def masked_scores(model: onnx.ModelProto) -> list[str]:
    """Return the Adds that a Softmax reads: an attention's scores plus its mask, whose range is unbounded by design."""
    read = {node.input[0] for node in model.graph.node if node.op_type == "Softmax"}
    return [node.name for node in model.graph.node if node.op_type == "Add" and node.output[0] in read]


def counts(model: onnx.ModelProto) -> QuantizedCounts:
    """Count what is quantized. A constant that is dequantized counts as a weight."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    stored = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    quantized = {name for name in stored.values() if name in sizes}
    second = {node.input[1] for node in _products(model, ()) if len(node.input) > 1}
    numbers = sum(sizes[name] for name in quantized)
    plain = sum(sizes[name] for name in second if name in sizes)
    return QuantizedCounts(len(quantized_activations(model)), len(quantized), numbers, numbers + plain)


def lifted(model: onnx.ModelProto, dtype: DType) -> onnx.ModelProto:
    """Return the model in an opset that supports codes of type `dtype`. Raises ValueError if ONNX cannot convert it."""
    import onnx

    if opset_of(model) >= OPSETS[dtype.bits]:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSETS[dtype.bits])
    except RuntimeError as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None


def quantize_weights(model: onnx.ModelProto, dtype: DType, exclude: Collection[str], block: int | None) -> int:
    """Store weights in 8 bits by output channel, or in 4 by blocks along the inputs; return how many.

    block: values that share a scale in 4 bits; by default the largest of 128, 64 and 32 that divides. Convolutions are
    left as they are with 4 bits, since TensorRT has no blocks for them; so are small weights, and those whose inputs no
    block divides.
    """
    done = 0
    for weight in list(_weights(model, exclude)):
        if dtype.bits == 8:
            _store(model, weight, *_by_channel(weight))
            done += 1
        elif size := _block_size(weight, block):
            _store(model, weight, *_by_block(weight, size))
            done += 1
    return done


def undivided(model: onnx.ModelProto, exclude: Collection[str], block: int) -> dict[str, int]:
    """Return the number of inputs of products that `block` does not divide, by name; convolutions are skipped."""
    matrices = [weight for weight in _weights(model, exclude) if weight.node.op_type not in _CONVOLUTIONS]
    sizes = {weight.node.name: int(weight.tensor.dims[weight.input_axis]) for weight in matrices}
    return {name: size for name, size in sizes.items() if size % block}


def _products(model: onnx.ModelProto, exclude: Collection[str]) -> Iterator[onnx.NodeProto]:
    return (node for node in model.graph.node if node.op_type in PRODUCTS and node.name not in exclude)


def _weights(model: onnx.ModelProto, exclude: Collection[str]) -> Iterator[ProductWeight]:
    """Yield the weights of a single product; a shared one would be quantized twice."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = Counter(name for node in all_nodes(model.graph) for name in node.input)
    for node in _products(model, exclude):
        tensor = tensors.get(node.input[1])
        if tensor is None or readers[tensor.name] > 1 or int(np.prod(tensor.dims)) < LEAST_WEIGHTS:
            continue
        if len(tensor.dims) >= 2:
            yield ProductWeight(node, tensor, *_axes(node, len(tensor.dims)))


def _axes(node: onnx.NodeProto, rank: int) -> tuple[int, int]:
    """Return the axes of a product's outputs and of its inputs in its weight."""
    if node.op_type in _CONVOLUTIONS:
        return (0, 1) if node.op_type == "Conv" else (1, 0)
    is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return (0, 1) if is_transposed else (rank - 1, rank - 2)


def _by_channel(weight: ProductWeight) -> tuple[onnx.TensorProto, Array, dict[str, int]]:
    """Return codes, a scale for each output channel, and the DQ node's attributes."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight.tensor).astype(np.float32)
    others = tuple(axis for axis in range(values.ndim) if axis != weight.output_axis)
    scales = np.maximum(np.abs(values).max(others, keepdims=True) / np.float32(_LARGEST_INT8), _LEAST_SCALE)
    codes = np.clip(np.rint(values / scales), -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8)
    stored = numpy_helper.from_array(codes, f"{weight.tensor.name}/int8")
    return stored, scales.reshape(-1).astype(np.float32), {"axis": weight.output_axis}


def _by_block(weight: ProductWeight, size: int) -> tuple[onnx.TensorProto, Array, dict[str, int]]:
    """Return packed codes, a scale for each block, and the DQ node's attributes."""
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(weight.tensor).astype(np.float32)
    axis, shape = weight.input_axis, values.shape
    blocks = values.reshape(*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
    scales = np.maximum(np.abs(blocks).max(axis + 1, keepdims=True) / np.float32(_LARGEST_INT4), _LEAST_SCALE)
    codes = np.clip(np.rint(blocks / scales), -8, _LARGEST_INT4).astype(np.int8).reshape(-1)
    packed = (codes[0::2] & 15).astype(np.uint8) | (codes[1::2] << 4).astype(np.uint8)
    name = f"{weight.tensor.name}/int4"
    stored = helper.make_tensor(name, TensorProto.INT4, shape, packed.tobytes(), raw=True)
    return stored, scales.squeeze(axis + 1).astype(np.float32), {"axis": axis, "block_size": size}


def _block_size(weight: ProductWeight, block: int | None) -> int:
    """Return how many values along the inputs share a scale; 0 if the weight stays unquantized."""
    if weight.node.op_type in _CONVOLUTIONS or len(weight.tensor.dims) != 2:
        return 0
    length = weight.tensor.dims[weight.input_axis]
    return next((size for size in ((block,) if block else (128, 64, 32)) if length % size == 0), 0)


def _store(
    model: onnx.ModelProto, weight: ProductWeight, stored: onnx.TensorProto, scales: Array, attributes: dict[str, int]
) -> None:
    """Replace a weight by codes, scales and a DQ node."""
    from onnx import helper, numpy_helper

    name = weight.tensor.name
    model.graph.initializer.remove(weight.tensor)
    model.graph.initializer.extend([stored, numpy_helper.from_array(scales, f"{name}/scale")])
    node = helper.make_node("DequantizeLinear", [stored.name, f"{name}/scale"], [name], name=f"{name}/dequantize")
    node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    model.graph.node.insert(0, node)
