"""Tiny ONNX models, one function each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Dim = int | str


def tensor(name: str, *shape: Dim, dtype: str = "FLOAT") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), shape)


def constant(name: str, values: object, dtype: str = "float32") -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def weights(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    return constant(name, np.random.default_rng(seed).standard_normal(shape))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def classifier(batch: Dim = "batch", size: Dim = 16, seed: int = 0) -> onnx.ModelProto:
    """images [batch, 3, size, size] -> conv 3x3 of 8 -> relu -> mean -> gemm -> logits [batch, 5]."""
    nodes = [
        helper.make_node("Conv", ["images", "stem.weight"], ["stem"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem"], ["active"], name="stem/relu"),
        helper.make_node("GlobalAveragePool", ["active"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["features"], name="flatten"),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], name="head/gemm", transB=1),
    ]
    initializers = [
        weights("stem.weight", 8, 3, 3, 3, seed=seed),
        weights("head.weight", 5, 8, seed=1),
        weights("head.bias", 5),
    ]
    return model(nodes, [tensor("images", batch, 3, size, size)], [tensor("logits", batch, 5)], initializers)


def matmul(batch: Dim = "batch") -> onnx.ModelProto:
    """x [batch, 3] @ w [3, 4] -> y [batch, 4], w = 1..12."""
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [tensor("x", batch, 3)],
        [tensor("y", batch, 4)],
        [constant("w", np.arange(1, 13).reshape(3, 4))],
    )


def question_marks(placeholder: Dim = "?") -> onnx.ModelProto:
    """x [?, 3, ?, ?], with the same placeholder for three sizes, as in Paddle's exports."""
    return model(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        [tensor("x", placeholder, 3, placeholder, placeholder)],
        [tensor("y", placeholder, 3, placeholder, placeholder)],
    )


def two_inputs(opset: int = 17) -> onnx.ModelProto:
    """ids [batch, tokens] int64 and mask [batch, tokens] -> y [batch, tokens]."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["values"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["values", "mask"], ["y"], name="mul"),
    ]
    inputs = [tensor("ids", "batch", "tokens", dtype="INT64"), tensor("mask", "batch", "tokens")]
    return model(nodes, inputs, [tensor("y", "batch", "tokens")], opset=opset)


def chain(length: int) -> onnx.ModelProto:
    """`length` activations in sequence."""
    names = ["x", *(f"t{index}" for index in range(1, length)), "y"]
    nodes = [
        helper.make_node("Relu" if index % 2 else "Sin", [names[index]], [names[index + 1]], name=f"n{index}")
        for index in range(length)
    ]
    return model(nodes, [tensor("x", 4)], [tensor("y", 4)])


def old_opset() -> onnx.ModelProto:
    """Opset 7 and IR 3, from 2017: weights are listed as inputs, and Softmax runs over all axes from the first on."""
    old = model(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Softmax", ["c"], ["y"], name="softmax", axis=1),
        ],
        [tensor("x", 1, 3, 8, 8), tensor("w", 4, 3, 3, 3), tensor("b", 4)],
        [tensor("y", 1, 4, 8, 8)],
        [weights("w", 4, 3, 3, 3), weights("b", 4)],
        opset=7,
    )
    old.ir_version = 3
    return old


def grid_sample(mode: str = "bilinear", opset: int = 16) -> onnx.ModelProto:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], name="sample", mode=mode, align_corners=1)
    inputs = [tensor("x", 1, 2, 4, 5), tensor("grid", 1, 3, 7, 2)]
    return model([node], inputs, [tensor("y", 1, 2, 3, 7)], opset=opset)


def fp8() -> onnx.ModelProto:
    """x [1, 32], quantized to fp8 and dequantized, times dequantized fp8 weights."""
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], name="quantize"),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], name="dequantize"),
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["wq"], name="w/quantize"),
        helper.make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wd"], name="w/dequantize"),
        helper.make_node("MatMul", ["xd", "wd"], ["y"], name="matmul"),
    ]
    initializers = [constant("scale", 0.05), zero, weights("w", 32, 16)]
    return model(nodes, [tensor("x", 1, 32)], [tensor("y", 1, 16)], initializers, opset=19)


def unsupported() -> onnx.ModelProto:
    """Three nodes of different kinds that TensorRT refuses, between supported ones."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first/relu"),
        helper.make_node("Unique", ["a"], ["b"], name="unique_of_a"),
        helper.make_node("Fancy", ["x"], ["c"], name="fancy", domain="acme"),
        helper.make_node("Sigmoid", ["c"], ["d"], name="sigmoid"),
        helper.make_node("Bernoulli", ["x"], ["e"], name="dice"),
    ]
    outputs = [tensor("b", "n"), tensor("d", 2, 3, 3), tensor("e", 2, 3, 3)]
    named = model(nodes, [tensor("x", 2, 3, 3)], outputs, domains=["acme"])
    named.graph.value_info.append(tensor("c", 2, 3, 3))
    return named


def dies_while_parsing() -> onnx.ModelProto:
    """TensorRT-RTX's parser divides by the block size: SIGFPE."""
    node = helper.make_node("DepthToSpace", ["a"], ["y"], name="upscale", blocksize=0)
    before = helper.make_node("Relu", ["x"], ["a"], name="relu")
    return model([before, node], [tensor("x", 1, 4, 8, 8)], [tensor("y", 1, None, None, None)])


def dies_while_building() -> onnx.ModelProto:
    """TensorRT-RTX's builder folds 256 / 0: SIGFPE."""
    nodes = [
        helper.make_node("Div", ["a", "b"], ["d"], name="ratio"),
        helper.make_node("Add", ["d", "x"], ["y"], name="shift"),
    ]
    inputs, outputs = [tensor("x", 1, dtype="INT64")], [tensor("y", 1, dtype="INT64")]
    return model(nodes, inputs, outputs, [constant("a", [256], "int64"), constant("b", [0], "int64")])


def save(onnx_model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(onnx_model, str(path))
    return path


def save_external(onnx_model: onnx.ModelProto, path: Path) -> Path:
    """Save with all weights in `<name>.data` next to the model."""
    onnx.save(onnx_model, str(path), save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return path


def set_external(path: Path, **entries: str) -> None:
    """Change the stated location of the first external tensor's data in the model at `path`."""
    changed = onnx.load(str(path), load_external_data=False)
    data = changed.graph.initializer[0].external_data
    kept = {entry.key: entry.value for entry in data} | entries
    del data[:]
    for key, value in kept.items():
        if value:
            data.add(key=key, value=value)
    onnx.save(changed, str(path))


def detector(size: int = 64, *, is_dynamic: bool = False) -> onnx.ModelProto:
    """images [batch, 3, size, size] -> rows [batch, 6, 50] as YOLOv8's, of two classes.

    is_dynamic: height and width are symbols, as in Ultralytics' exports.

    Row 0 is the upper left quarter of the input, a "dark" object with the picture's darkness as its score; row 1 is the
    lower right quarter, a "light" object with its lightness. All other scores are 0.
    """
    edges: tuple[Dim, Dim] = ("height", "width") if is_dynamic else (size, size)
    offset, slope = np.zeros((6, 50), np.float32), np.zeros((6, 50), np.float32)
    offset[:4, 0], offset[:4, 1] = size / 4, (3 * size / 4, 3 * size / 4, size / 2, size / 2)
    offset[2:4, 0] = size / 2
    offset[4, 0], slope[4, 0], slope[5, 1] = 1, -1, 1
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["light"], name="light", axes=[1, 2], keepdims=0),
        helper.make_node("ReduceMean", ["light"], ["mean"], name="mean", axes=[1], keepdims=1),
        helper.make_node("Unsqueeze", ["mean", "last"], ["means"], name="means"),
        helper.make_node("Mul", ["means", "slope"], ["scaled"], name="scaled"),
        helper.make_node("Add", ["scaled", "offset"], ["rows"], name="rows"),
    ]
    initializers = [constant("slope", slope), constant("offset", offset), constant("last", [2], "int64")]
    return model(nodes, [tensor("images", "batch", 3, *edges)], [tensor("rows", "batch", 6, 50)], initializers)


def exported_by_ultralytics(model: onnx.ModelProto, imgsz: str = "[64, 64]", **metadata: str) -> onnx.ModelProto:
    """Return a model with Ultralytics 8.3's metadata, by default those of a detector with two classes."""
    entries = {
        "description": "Ultralytics YOLO11n model trained on two.yaml", "author": "Ultralytics", "version": "8.3.50",
        "stride": "32", "task": "detect", "batch": "1", "imgsz": imgsz,
        "names": "{0: 'dark', 1: 'light'}", "args": "{'batch': 1, 'half': False, 'dynamic': False, 'nms': False}",
    }  # fmt: skip
    helper.set_model_props(model, entries | metadata)
    return model


def crowded_detector(layout: str = "channels-first", *, opset: int = 17) -> onnx.ModelProto:
    """images [batch, 3, 64, 64] -> 64 overlapping boxes of three classes, in YOLOv8's or YOLOv5's layout."""
    count = 7 if layout == "channels-first" else 8
    cells = np.stack(np.meshgrid(np.arange(8), np.arange(8))).reshape(2, 64) * 8.0
    offset = np.zeros((count, 64), np.float32)
    offset[:2], offset[2:4] = cells - 4, 12
    scale = np.array([16, 16, 20, 20] + [1] * (count - 4), np.float32)[:, None]
    nodes = [
        helper.make_node("Conv", ["images", "weight"], ["cells"], name="cells", strides=[8, 8]),
        helper.make_node("Reshape", ["cells", "shape"], ["flat"], name="flat"),
        helper.make_node("Sigmoid", ["flat"], ["shares"], name="shares"),
        helper.make_node("Mul", ["shares", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Add", ["scaled", "offset"], ["rows"], name="rows"),
    ]
    outputs = [tensor("rows", "batch", count, 64)]
    if layout == "anchors":
        nodes.append(helper.make_node("Transpose", ["rows"], ["turned"], name="turned", perm=[0, 2, 1]))
        outputs = [tensor("turned", "batch", 64, count)]
    kernels = np.random.default_rng(0).standard_normal((count, 3, 8, 8)) / 7
    initializers = [
        constant("weight", kernels - kernels.mean((1, 2, 3), keepdims=True)),  # a grey cell has scores of 0.5
        constant("shape", [0, count, -1], "int64"),
        constant("scale", scale),
        constant("offset", offset),
    ]
    inputs = [tensor("images", "batch", 3, 64, 64)]
    return model(nodes, inputs, outputs, initializers, opset=opset)


def per_pixel(channels: int) -> onnx.ModelProto:
    """images [batch, 3, 32, 32] -> values [batch, channels, 8, 8]."""
    node = helper.make_node("Conv", ["images", "weight"], ["values"], name="values", strides=[4, 4])
    kernels = np.random.default_rng(0).standard_normal((channels, 3, 4, 4))
    held = [constant("weight", kernels - kernels.mean((1, 2, 3), keepdims=True))]  # grey has values of 0
    outputs = [tensor("values", "batch", channels, 8, 8)]
    return model([node], [tensor("images", "batch", 3, 32, 32)], outputs, held)
