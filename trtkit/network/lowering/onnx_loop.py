"""The body of an ONNX Loop that repeats a step a known number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from trtkit.network.lowering.onnx_value import type_proto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.onnx_value import OnnxValue

_SCALARS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.BOOL)


def loop_body(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    scalars: Sequence[str],
    carried: Sequence[OnnxValue],
    results: Sequence[OnnxValue],
) -> onnx.GraphProto:
    """Return the body of a Loop that never ends early.

    nodes: what computes the step. scalars: names for the number of the step, the condition that comes in, and the one
    that goes out. carried: tensors that come in. results: what the step makes of them.
    """
    goes_on = helper.make_node("Identity", [scalars[1]], [scalars[2]], name=scalars[2])
    values = [helper.make_tensor_value_info(name, kind, []) for name, kind in zip(scalars, _SCALARS, strict=True)]
    inputs = [*values[:2], *(helper.make_value_info(x.name, type_proto(x)) for x in carried)]
    outputs = [values[2], *(helper.make_value_info(x.name, type_proto(x)) for x in results)]
    return helper.make_graph([*nodes, goes_on], name, inputs, outputs)
