"""A small vision model to quantize, and tools to compare a quantized model step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.support import models
from trtkit.backends import load_backend
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, constants_from_onnx, read_layers, to_array

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def small(batch: models.Dim = "batch") -> onnx.ModelProto:
    """A convolution, a residual block, a pool and two matrix products: [N, 3, 32, 32] to [N, 64]."""
    nodes = [
        helper.make_node("Conv", ["images", "w0", "b0"], ["c0"], "stem/conv", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c0"], ["r0"], "stem/relu"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "block/conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "block/relu"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "block/conv2", pads=[1] * 4),
        helper.make_node("Add", ["c2", "r0"], ["a2"], "block/add"),
        helper.make_node("Relu", ["a2"], ["r2"], "block/out"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["h"], "head/hidden", transB=1),
        helper.make_node("Relu", ["h"], ["hr"], "head/relu"),
        helper.make_node("MatMul", ["hr", "w4"], ["logits"], "head/out"),
    ]
    shapes = {"w0": (64, 3, 3, 3), "w1": (64, 64, 3, 3), "w2": (64, 64, 3, 3), "w3": (1024, 64), "w4": (1024, 64)}
    weights = [scaled(name, shape, index) for index, (name, shape) in enumerate(shapes.items())]
    weights += [scaled(f"b{index}", (size,), 9 + index) for index, size in enumerate((64, 64, 64, 1024))]
    inputs, outputs = [models.tensor("images", batch, 3, 32, 32)], [models.tensor("logits", batch, 64)]
    return models.model(nodes, inputs, outputs, weights)


def scaled(name: str, shape: tuple[int, ...], seed: int) -> onnx.TensorProto:
    """Normal weights, divided by the square root of the number of terms per output."""
    added = shape[0] if name == "w4" else int(np.prod(shape[1:]))
    values = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(added)
    return numpy_helper.from_array(values.astype(np.float32), name)


def pictures(count: int, seed: int = 0) -> Array:
    """Smooth images with edges: [count, 3, 32, 32]."""
    generator = np.random.default_rng(seed)
    coarse = generator.standard_normal((count, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    return (coarse + 0.2 * generator.standard_normal((count, 3, 32, 32))).astype(np.float32)


def onnx_runtime(model: onnx.ModelProto, inputs: Arrays, *, optimize: bool = False) -> Arrays:
    """Return the outputs by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {item.name: inputs[item.name] for item in session.get_inputs()}
    return dict(zip([item.name for item in session.get_outputs()], session.run(None, fed), strict=True))


def executed(path: Path, inputs: Arrays) -> Arrays:
    """Return the outputs of the network that TensorRT parses, on the reference executor."""
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, path, "ERROR")
    executor = Executor(read_layers(backend, network.definition, constants_from_onnx(path)))
    fed = {spec.name: inputs[spec.name] for spec in executor.inputs}
    return {name: to_array(value) for name, value in executor.run(fed).items()}


def steps(model: onnx.ModelProto) -> dict[str, str]:
    """Return the quantized activations (outputs of DQ nodes after Q nodes), each with the name of its scale."""
    codes = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    dequantize = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    return {node.output[0]: node.input[1] for node in dequantize if node.input[0] in codes}


def scales(model: onnx.ModelProto) -> dict[str, float]:
    """Return the scale of each activation in `steps`."""
    known = {
        tensor.name: float(numpy_helper.to_array(tensor).reshape(-1)[0])
        for tensor in model.graph.initializer
        if numpy_helper.to_array(tensor).size == 1
    }
    return {name: known[scale] for name, scale in steps(model).items()}


def with_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every quantized activation as an output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in steps(model))
    return copy


def in_single_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every quantized activation as an input, and its own computation of it as output `NAME/own`.

    So no step depends on an earlier step's result, and differences do not accumulate.
    """
    copy = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {value.name: value for value in (*copy.graph.value_info, *copy.graph.input)}
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in steps(model):
            name = node.output[0]
            node.output[0] = f"{name}/own"
            copy.graph.input.append(known[name])
            own = onnx.ValueInfoProto()
            own.CopyFrom(known[name])
            own.name = f"{name}/own"
            copy.graph.output.append(own)
    del copy.graph.value_info[:]
    return copy
