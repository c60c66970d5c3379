"""Quantize and dequantize as ONNX's QuantizeLinear and DequantizeLinear."""

import math

from onnx import TensorProto

from trtkit.dtypes import FP16, FP32
from trtkit.network.onnx.layers.layer import NotInOnnxError, OnnxLayer, Value, onnx_type


def quantize(layer: OnnxLayer) -> Value:
    """Divide by the scale in fp32, round to the nearest value of the output type, saturate."""
    scale, attributes = _scale(layer, layer.widened(1), 1)
    inputs = [layer.widened(), scale]
    if layer.has(2):
        inputs.append(_scale(layer, layer.value(2), 2)[0])
    target = onnx_type(layer.output().dtype)
    return layer.emitter.emit("QuantizeLinear", *inputs, output_dtype=target, **attributes)


def dequantize(layer: OnnxLayer) -> Value:
    """Multiply by the scale and round to the output type once."""
    e, target = layer.emitter, layer.output().dtype
    is_direct = layer.input(1).dtype == target and target in (FP32, FP16)
    value = layer.value(1) if is_direct else e.cast(layer.value(1), FP32)
    scale, attributes = _scale(layer, value, 1)
    inputs = [layer.value(0), scale]
    if layer.has(2):
        inputs.append(_scale(layer, layer.value(2), 2)[0])
    result = e.emit("DequantizeLinear", *inputs, **attributes)
    return result if is_direct or target == FP32 else e.cast(result, target)


def _scale(layer: OnnxLayer, scale: Value, index: int) -> tuple[Value, dict[str, int]]:
    """Return a scale or zero point in ONNX's form, with `axis` and `block_size`.

    TensorRT's is a single value, one per index of an axis, or of the data's rank: one per block, along any axes.
    """
    e, shape, data = layer.emitter, layer.input_shape(index), layer.input_shape()
    if -1 not in shape and math.prod(shape) == 1:
        return e.emit("Reshape", scale, e.constant([])) if shape else scale, {}
    if len(shape) == 1 and len(data) != 1:
        return scale, {"axis": layer.number("axis")}
    if len(shape) != len(data):
        raise NotInOnnxError(f"a scale of shape {list(shape)} for data of shape {list(data)}")
    differing = [axis for axis, pair in enumerate(zip(shape, data, strict=True)) if pair[0] != pair[1]]
    if any(min(shape[axis], data[axis]) <= 0 for axis in differing):
        raise NotInOnnxError("the sizes of its blocks are known at run time only")
    if not differing:
        return scale, {"axis": len(data) - 1, "block_size": 1}
    *others, blocked = differing
    for axis in others:
        scale = _repeated(layer, scale, axis, data[axis] // shape[axis])
    return scale, {"axis": blocked, "block_size": data[blocked] // shape[blocked]}


def _repeated(layer: OnnxLayer, value: Value, axis: int, times: int) -> Value:
    e = layer.emitter
    index = e.emit("Div", e.ramp(e.emit("Mul", e.size(value, axis), e.constant(times))), e.constant(times))
    return e.emit("Gather", value, index, axis=axis)


def rounded(layer: OnnxLayer, value: Value, scale: Value, kind: str) -> Value:
    """Return fp32 values quantized to INT8 or FP8 and dequantized."""
    e, types = layer.emitter, {"INT8": TensorProto.INT8, "FP8": TensorProto.FLOAT8E4M3FN}
    if kind not in types:
        raise NotInOnnxError(f"its scores are quantized to {kind}")
    quantized = e.emit("QuantizeLinear", value, scale, output_dtype=types[kind])
    return e.emit("DequantizeLinear", quantized, scale)
