"""Append decoding of a detector's rows and non-maximum suppression to its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    import onnx

    from trtkit.config.task import Boxes

NMS_OUTPUTS = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
"""What such a network returns: [N, 1], corners [N, M, 4], [N, M], [N, M], as TensorRT's own detectors do."""
ROWS_KEY = "trtkit.nms_rows"
"""Key of a model's metadata for the tensor that NMS reads."""
CLASSES_KEY = "trtkit.nms_classes"
"""Key for the number of classes in its rows, which the outputs do not show."""
OPSET = 17
"""The oldest opset that the appended nodes support."""
_PREFIX = "nms"
_TINY = 1e-30


def append_nms(model: onnx.ModelProto, options: Boxes) -> str:
    """Replace the only output of `model` by the boxes kept by NMS; return a description.

    As on the host, each row counts with its best class, boxes of exactly `min_score` are kept, and boxes of other
    classes do not suppress each other. Suppression is a node EfficientNMS_TRT. Raises SourceError for outputs that do
    not fit.
    """
    from onnx import TensorProto, helper

    rows = _only_output(model, options)
    width = rows.type.tensor_type.shape.dim[1 if options.layout == "channels-first" else 2].dim_value
    classes = width - (4 if options.layout == "channels-first" else 5)
    images, most = rows.type.tensor_type.shape.dim[0], options.max_boxes
    batch = images.dim_value if images.HasField("dim_value") else images.dim_param or "batch"
    sizes = ([batch, 1], [batch, most, 4], [batch, most], [batch, most])
    types = (TensorProto.INT32, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32)
    outputs = [helper.make_tensor_value_info(*parts) for parts in zip(NMS_OUTPUTS, types, sizes, strict=True)]
    nodes, weights = _tail(rows.name, options, classes)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(weights)
    model.graph.value_info.append(rows)
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    model.metadata_props.add(key=ROWS_KEY, value=rows.name)
    model.metadata_props.add(key=CLASSES_KEY, value=str(classes))
    return f"`{rows.name}` to {most} boxes of {classes} classes"


def _only_output(model: onnx.ModelProto, options: Boxes) -> onnx.ValueInfoProto:
    """Return a copy of the output that holds the rows. Raises SourceError if it does not fit."""
    from onnx import TensorProto

    outputs = model.graph.output
    axis, least = (1, 4) if options.layout == "channels-first" else (2, 5)
    names = ", ".join(f"`{value.name}`" for value in outputs)
    fix = "export the model with its rows as the only output, or set `task.boxes.nms` to `host`"
    if len(outputs) != 1:
        raise SourceError(
            f"NMS in the engine reads one output; the model has {len(outputs)}: {names}", "task.boxes", fix
        )
    tensor = outputs[0].type.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]  # 0 if symbolic
    if len(sizes) != 3 or (sizes[axis] and sizes[axis] <= least) or tensor.elem_type != TensorProto.FLOAT:
        kind = f"{TensorProto.DataType.Name(tensor.elem_type).lower()} {[size or -1 for size in sizes]}"
        what = f"output {names}, {kind}, is not fp32 rows in the layout `{options.layout}`"
        raise SourceError(what, "task.boxes", "see `task` in docs/config.md for the shapes of each layout")
    if not sizes[axis]:
        what = f"the number of classes of output {names} is not known: axis {axis} is dynamic"
        raise SourceError(what, "task.boxes", fix)
    taken = {name for node in model.graph.node for name in node.output} & set(NMS_OUTPUTS)
    if taken:
        raise SourceError(f"a tensor is already called `{min(taken)}`", "task.boxes.nms", "rename it in the model")
    rows: onnx.ValueInfoProto = type(outputs[0])()
    rows.CopyFrom(outputs[0])
    return rows


def _tail(rows: str, options: Boxes, classes: int) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes from rows to the outputs, with their constants."""
    from onnx import helper

    writer = _NodeWriter()
    if options.layout == "channels-first":
        rows = writer.node("Transpose", rows, perm=[0, 2, 1])
    boxes = writer.slice(rows, 0, 4)
    first = 4 if options.layout == "channels-first" else 5
    scores = writer.slice(rows, first, first + classes)
    if first == 5:
        scores = writer.node("Mul", scores, writer.slice(rows, 4, 5))
    best = writer.node("ArgMax", scores, axis=2, keepdims=1)
    is_best = writer.node("Equal", best, writer.constant(np.arange(classes, dtype=np.int64).reshape(1, 1, -1)))
    alone = writer.node("Where", is_best, scores, writer.constant(np.float32(-1)))
    count, centered, kept, kinds = NMS_OUTPUTS[0], f"{_PREFIX}/centered", *NMS_OUTPUTS[2:]
    # The op keeps scores above its threshold, the host those at or above it.
    below = float(np.nextafter(np.float32(options.min_score), np.float32(-1))) if options.min_score else -_TINY
    suppress = helper.make_node(
        "EfficientNMS_TRT", [boxes, alone], [count, centered, kept, kinds], f"{_PREFIX}/suppress",
        max_output_boxes=options.max_boxes, score_threshold=below, iou_threshold=options.max_iou, box_coding=1,
    )  # fmt: skip
    writer.nodes.append(suppress)
    half = writer.node("Mul", writer.slice(centered, 2, 4), writer.constant(np.float32(0.5)))
    center = writer.slice(centered, 0, 2)
    ends = [writer.node(operator, center, half) for operator in ("Sub", "Add")]
    writer.nodes.append(helper.make_node("Concat", ends, [NMS_OUTPUTS[1]], f"{_PREFIX}/corners", axis=2))
    return writer.nodes, writer.constants


class _NodeWriter:
    """Writes nodes and constants, named by numbers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, operator: str, *inputs: str, **attributes: int | list[int]) -> str:
        """Add a node of one output; return its name."""
        from onnx import helper

        name = f"{_PREFIX}/{operator.lower()}_{len(self.nodes)}"
        node = helper.make_node(operator, list(inputs), [name], name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return name

    def slice(self, tensor: str, start: int, end: int) -> str:
        """Return a part of axis 2."""
        bounds = [self.constant(np.array([number], np.int64)) for number in (start, end, 2)]
        return self.node("Slice", tensor, *bounds)

    def constant(self, value: np.ndarray | np.float32) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        name = f"{_PREFIX}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name
