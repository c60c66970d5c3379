"""Convolution, pooling and resizing of images, and non-maximum suppression of boxes."""

from dataclasses import replace

from onnx import TensorProto

from trtkit.dtypes import INT64
from trtkit.network.layer_view import Window, window_of
from trtkit.network.onnx.layers.layer import NotInOnnxError, OnnxLayer, Value


def _attributes(window: Window) -> dict[str, tuple[int, ...] | str]:
    common: dict[str, tuple[int, ...] | str] = {
        "kernel_shape": window.size,
        "strides": window.stride,
        "dilations": window.dilation,
    }
    if window.mode.startswith("SAME"):
        return {**common, "auto_pad": window.mode}
    return {**common, "pads": (*window.before, *window.after)}


def _padded(layer: OnnxLayer, window: Window) -> Window:
    """Return a window with EXPLICIT_ROUND_UP converted to padding, which requires fixed sizes."""
    if window.mode != "EXPLICIT_ROUND_UP":
        return window
    spatial = tuple(layer.static_size(0, axis + 2) for axis in range(len(window.size)))
    return replace(window, after=tuple(window.padding(spatial)[1]))


def convolution(layer: OnnxLayer) -> Value:
    """Correlate [N, C, ...] with a kernel [K, C / groups, ...]."""
    window, maps = _padded(layer, window_of(layer, "kernel_size_nd")), layer.number("num_output_maps")
    kernel, bias = _parameters(layer, (maps, -1, *window.size))
    attributes = {**_attributes(window), "group": layer.number("num_groups")}
    return layer.emitter.emit("Conv", layer.value(0), kernel, bias, **attributes)


def deconvolution(layer: OnnxLayer) -> Value:
    """Transpose-convolve [N, C, ...] with a kernel [C, K / groups, ...]; padding crops the result."""
    window, groups = window_of(layer, "kernel_size_nd"), layer.number("num_groups")
    before, after = window.before, window.after
    if window.mode.startswith("SAME"):
        total = [window.reach(axis) - stride for axis, stride in enumerate(window.stride)]
        small = tuple(size // 2 for size in total)
        large = tuple(size - size // 2 for size in total)
        before, after = (small, large) if window.mode == "SAME_UPPER" else (large, small)
    if min(*before, *after) < 0:
        raise NotInOnnxError("its padding is negative")
    kernel, bias = _parameters(layer, (-1, layer.number("num_output_maps") // groups, *window.size))
    plain = replace(window, before=before, after=after, mode="EXPLICIT_ROUND_DOWN")
    return layer.emitter.emit("ConvTranspose", layer.value(0), kernel, bias, **_attributes(plain), group=groups)


def _parameters(layer: OnnxLayer, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """Return kernel and bias: inputs, or weights in the input's type."""
    dtype, kernel, bias = layer.input().dtype, layer.value(1), layer.value(2)
    if not kernel:
        known = 1
        for size in shape:
            known *= size if size > 0 else 1
        count = layer.node.weights["kernel"].count // known
        kernel = layer.weights("kernel", [count if size == -1 else size for size in shape], dtype)
    if not bias and "bias" in layer.node.weights:
        bias = layer.weights("bias", [layer.node.weights["bias"].count], dtype)
    return kernel, bias


def pooling(layer: OnnxLayer) -> Value:
    """Reduce each window of [N, C, ...]."""
    e, kind = layer.emitter, layer.option("type")
    stated = window_of(layer, "window_size_nd")
    window = _padded(layer, stated)
    counts_padding = not layer.flag("average_count_excludes_padding")
    if kind != "MAX" and counts_padding and window.after != stated.after:
        raise NotInOnnxError("ONNX counts what rounding up adds to an average's padding")
    if kind == "MAX":
        return e.emit("MaxPool", layer.value(0), **_attributes(window))
    average = e.emit("AveragePool", layer.value(0), **_attributes(window), count_include_pad=int(counts_padding))
    if kind == "AVERAGE":
        return average
    blend, dtype = layer.real("blend_factor"), layer.input().dtype
    largest = e.emit("MaxPool", layer.value(0), **_attributes(window))
    shares = [e.cast(e.constant(share, "float32"), dtype) for share in (1 - blend, blend)]
    return e.emit("Add", e.emit("Mul", largest, shares[0]), e.emit("Mul", average, shares[1]))


def local_response_normalization(layer: OnnxLayer) -> Value:
    """Divide by (k + alpha / window * sum of squares over neighbouring channels) ** beta."""
    size = layer.number("window_size")
    if size % 2 == 0:
        raise NotInOnnxError("ONNX's window of an even size lies elsewhere")
    numbers = {"alpha": layer.real("alpha"), "beta": layer.real("beta"), "bias": layer.real("k")}
    return layer.emitter.emit("LRN", layer.value(0), size=size, **numbers)


_RESIZE_MODES = {"NEAREST": "nearest", "LINEAR": "linear", "CUBIC": "cubic"}
_ROUNDINGS = {"HALF_UP": "round_prefer_ceil", "HALF_DOWN": "round_prefer_floor", "FLOOR": "floor", "CEIL": "ceil"}


def resize(layer: OnnxLayer) -> Value:
    """Resize axes to sizes or by scales; scales also map coordinates, except between aligned corners."""
    e, mode = layer.emitter, layer.option("resize_mode")
    transformation = layer.option("coordinate_transformation").lower()
    is_upper = layer.option("selector_for_single_pixel") == "UPPER"
    if is_upper and transformation == "half_pixel":
        transformation = "pytorch_half_pixel"
    scales = layer.node.attributes.get("scales") or ()
    inputs = [layer.value(0), "", ""]
    if scales and not layer.has(1) and transformation == "align_corners":  # ONNX aligns the corners of size * scale
        exact = e.emit(
            "Mul", e.emit("Cast", e.shape(layer.value(0)), to=TensorProto.DOUBLE), e.constant(scales, "float64")
        )
        inputs.append(e.cast(e.emit("Floor", e.emit("Add", exact, e.constant(1e-6, "float64"))), INT64))
    elif scales and not layer.has(1):
        inputs[2] = e.constant(scales, "float32")
    else:
        inputs.append(layer.vector(1) if layer.has(1) else e.constant(layer.ints("shape") or ()))
    attributes: dict[str, str | int | float] = {"mode": _RESIZE_MODES[mode]}
    if mode == "NEAREST":
        attributes["nearest_mode"] = _ROUNDINGS[layer.option("nearest_rounding")]
    if mode == "CUBIC":
        attributes["cubic_coeff_a"] = layer.real("cubic_coeff")
    exclude = int(layer.flag("exclude_outside"))
    return e.emit(
        "Resize", *inputs, coordinate_transformation_mode=transformation, exclude_outside=exclude, **attributes
    )


_GRID_PADDING = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


def grid_sample(layer: OnnxLayer) -> Value:
    """Sample [N, C, ...] at the positions of a grid in [-1, 1]."""
    attributes = {
        "mode": _RESIZE_MODES[layer.option("interpolation_mode")],
        "padding_mode": _GRID_PADDING[layer.option("sample_mode")],
        "align_corners": int(layer.flag("align_corners")),
    }
    return layer.emitter.emit("GridSample", *layer.values, **attributes)


def non_maximum_suppression(layer: OnnxLayer) -> tuple[Value, ...]:
    """Keep the best boxes of each batch item and class: rows by batch, then descending score, and their count.

    ONNX's operator orders rows by class within a batch item, so they are sorted stably by score, then by batch item.
    """
    e = layer.emitter
    if len(layer.input_shape()) != 3:
        raise NotInOnnxError("its boxes differ by class")
    boxes, scores = layer.widened(0), e.emit("Transpose", layer.widened(1), perm=[0, 2, 1])
    most = e.emit("Min", layer.vector(2), e.constant([layer.number("topk_box_limit")]))
    limits = [
        e.emit("Reshape", layer.value(index), e.constant([1])) if layer.has(index) else e.constant([0], "float32")
        for index in (3, 4)
    ]
    is_center = int(layer.option("bounding_box_format") != "CORNER_PAIRS")
    rows = e.emit("NonMaxSuppression", boxes, scores, most, *limits, center_point_box=is_center)
    count = e.shape(rows, 0, 1)
    _, order = e.emit_several(2, "TopK", e.emit("GatherND", scores, rows), count, axis=0, largest=1)
    rows = e.emit("Gather", rows, order)
    items = e.emit("Gather", rows, e.constant(0), axis=1)
    _, order = e.emit_several(2, "TopK", items, count, axis=0, largest=0)
    rows = e.emit("Gather", rows, order)
    return e.cast(rows, layer.output(0).dtype), e.cast(e.emit("Squeeze", count), layer.output(1).dtype)
