"""Convolution, pooling and resizing of pictures, and non-maximum suppression of boxes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from trtkit.network.layer_view import Window, window_of
from trtkit.reference.layer import Layer, Lowered, Op, Tensor, sizes
from trtkit.reference.precision import packs

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_DECONVOLVE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pad_sizes(before: list[int], after: list[int]) -> list[int]:
    """Return padding in the order of `F.pad`: last axis first."""
    return [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]


def convolution(layer: Layer) -> Lowered:
    """Correlate [N, C, ...] with a kernel [K, C / groups, ...] given as weights or as input 1; bias likewise."""
    window = window_of(layer, "kernel_size_nd")
    groups, maps = layer.number("num_groups"), layer.number("num_output_maps")
    convolve = _CONVOLVE[len(window.size)]
    kernel, bias = _parameters(layer, (maps, -1, *window.size))
    if kernel is not None and kernel.dim() == 4:  # outputs, too, are channels last, which oneDNN need not reorder
        kernel = kernel.contiguous(memory_format=torch.channels_last)

    def apply(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        if window.is_symmetric:
            return convolve(x, kernel, bias, window.stride, window.before, window.dilation, groups)
        padded = F.pad(x, pad_sizes(*window.padding(tuple(x.shape[2:]))))
        return convolve(padded, kernel, bias, window.stride, 0, window.dilation, groups)

    packed = None
    if kernel is not None and len(window.size) == 2 and window.is_symmetric and not layer.has_input(2):
        packed = _packed_convolution(layer.input_dtype(), kernel, bias, (window, groups))
    return Lowered(_with_parameters(layer, apply, kernel, bias), packed=packed)


def _packed_convolution(
    dtype: torch.dtype, kernel: Tensor, bias: Tensor | None, form: tuple[Window, int]
) -> Callable[[Tensor], Tensor] | None:
    """Return a convolution of channels-last pictures with a kernel in oneDNN's layout, or None if torch's is as fast.

    kernel: in the accumulation type. It is packed when the convolution first runs.
    """
    if not packs(kernel.dtype):
        return None
    window, groups = form
    is_product = groups == max(*window.size, *window.stride) == 1
    if is_product and kernel.dtype == torch.float32:  # of matrices, which torch multiplies as fast
        return None
    numbers = (list(window.before), list(window.stride), list(window.dilation), groups)
    held: list[Tensor] = []

    def run(x: Tensor, *_: Tensor | None) -> Tensor:
        if not held:
            held.append(torch.ops.mkldnn._reorder_convolution_weight(kernel, *numbers, list(x.shape)))
        x = x.to(kernel.dtype, memory_format=torch.channels_last)
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, held[0], bias, *numbers, "none", [], "")
        return y.to(dtype)

    return run


def deconvolution(layer: Layer) -> Op:
    """Transpose-convolve [N, C, ...] with a kernel [C, K / groups, ...]; padding crops the result.

    Output size: (input - 1) * stride + dilated kernel - padding, or input * stride in the SAME modes. Negative padding
    extends the result. Source: IDeconvolutionLayer in NvInfer.h.
    """
    window = window_of(layer, "kernel_size_nd")
    groups = layer.number("num_groups")
    deconvolve = _DECONVOLVE[len(window.size)]
    kernel, bias = _parameters(layer, (-1, layer.number("num_output_maps") // groups, *window.size))

    def apply(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        if window.is_symmetric and min(window.before) >= 0:
            stride, dilation = window.stride, window.dilation
            return deconvolve(x, kernel, bias, stride, window.before, 0, groups, dilation)
        full = deconvolve(x, kernel, None, window.stride, 0, 0, groups, window.dilation)
        before, after = _crop(window, tuple(x.shape[2:]))
        cropped = F.pad(full, pad_sizes([-size for size in before], [-size for size in after]))
        return cropped if bias is None else cropped + bias.reshape(-1, *[1] * len(window.size))

    return _with_parameters(layer, apply, kernel, bias)


def _crop(window: Window, spatial: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return how much a deconvolution crops before and after each axis."""
    if not window.mode.startswith("SAME"):
        return list(window.before), list(window.after)
    before, after = [], []
    for axis, length in enumerate(spatial):
        total = (length - 1) * window.stride[axis] + window.reach(axis) - length * window.stride[axis]
        small, large = total // 2, total - total // 2
        before.append(small if window.mode == "SAME_UPPER" else large)
        after.append(large if window.mode == "SAME_UPPER" else small)
    return before, after


def _parameters(layer: Layer, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """Return kernel and bias if they are weights, in the accumulation type."""
    compute = layer.precision.accumulation(layer.input_dtype())
    kernel = None if layer.has_input(1) else layer.weights("kernel")
    bias = None if layer.has_input(2) else layer.weights("bias")
    groups = layer.number("num_groups")
    if kernel is not None and shape[0] == -1 and groups > 1:
        channels = kernel.numel() // max(1, int(torch.tensor(shape[1:]).prod()))
        kernel = kernel.reshape(channels, *shape[1:])
    return (
        None if kernel is None else kernel.reshape(shape).to(compute),
        None if bias is None else bias.to(compute),
    )


def _with_parameters(
    layer: Layer, apply: Callable[[Tensor, Tensor, Tensor | None], Tensor], kernel: Tensor | None, bias: Tensor | None
) -> Op:
    """Return code that adds the parameters, converting only if the accumulation type differs."""
    dtype = layer.input_dtype()
    compute = layer.precision.accumulation(dtype)
    if kernel is not None and dtype == compute:
        return lambda x, *_: apply(x, kernel, bias)

    def run(x: Tensor, kernel_input: Tensor | None = None, bias_input: Tensor | None = None) -> Tensor:
        used = kernel if kernel is not None else kernel_input
        added = bias if bias is not None else bias_input
        assert used is not None
        added = None if added is None else added.to(compute)
        return apply(x.to(compute), used.to(compute), added).to(dtype)

    return run


_MAX = {2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {2: F.avg_pool2d, 3: F.avg_pool3d}


def pooling(layer: Layer) -> Op:
    """Reduce each window of [N, C, ...]."""
    window = window_of(layer, "window_size_nd")
    excludes = layer.flag("average_count_excludes_padding")
    kind, blend = layer.option("type"), layer.real("blend_factor")
    if kind == "MAX":
        return lambda x: _max_pool(x, window)
    if kind == "AVERAGE":
        return lambda x: _average_pool(x, window, excludes)

    def run(x: Tensor) -> Tensor:
        return (1 - blend) * _max_pool(x, window) + blend * _average_pool(x, window, excludes)

    return run


def _max_pool(x: Tensor, window: Window) -> Tensor:
    """Return each window's maximum, ignoring padding."""
    pool = _MAX[len(window.size)]
    fits = all(2 * pad <= size for pad, size in zip(window.before, window.size, strict=True))
    if window.is_symmetric and fits:
        return pool(x, window.size, window.stride, window.before)
    lowest = -float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, pad_sizes(*window.padding(tuple(x.shape[2:]))), value=lowest)
    return pool(padded, window.size, window.stride)


def _average_pool(x: Tensor, window: Window, excludes_padding: bool) -> Tensor:
    """Return each window's mean.

    The divisor is the window's overlap with the input, or with the padded input (never with the overhang from rounding
    up). Source: IPoolingLayer::setAverageCountExcludesPadding in NvInfer.h.
    """
    pool = _AVERAGE[len(window.size)]
    fits = all(2 * pad <= size for pad, size in zip(window.before, window.size, strict=True))
    if window.is_symmetric and fits:
        return pool(x, window.size, window.stride, window.before, False, not excludes_padding)
    before, after = window.padding(tuple(x.shape[2:]))
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if not excludes_padding:
        stated = after if window.mode.startswith("SAME") else list(window.after)
        counted = F.pad(counted, pad_sizes(before, stated), value=1.0)
        after = [size - pad for size, pad in zip(after, stated, strict=True)]
        counted = F.pad(counted, pad_sizes([0] * len(after), after))
        after = [size + pad for size, pad in zip(after, stated, strict=True)]
    else:
        counted = F.pad(counted, pad_sizes(before, after))
    padded = F.pad(x, pad_sizes(before, after))
    total = pool(padded, window.size, window.stride)
    return total / pool(counted, window.size, window.stride)


def local_response_normalization(layer: Layer) -> Op:
    """Divide by (k + alpha / window * sum of squares over neighboring channels) ** beta."""
    window = layer.number("window_size")
    alpha, beta, k = (layer.real(name) for name in ("alpha", "beta", "k"))
    return lambda x: F.local_response_norm(x, window, alpha, beta, k)


Weights = tuple[Tensor, Tensor]
"""Positions [out, taps] and their weights [out, taps] along one axis."""


@dataclass(frozen=True)
class CoordinateRule:
    """How an output position maps to input positions. Names: IResizeLayer in NvInfer.h."""

    mode: str
    transformation: str
    selector: str
    rounding: str
    excludes_outside: bool
    cubic_coefficient: float


def resize(layer: Layer) -> Op:
    """Resize any axes to given sizes, or by scales: floor(size * scale).

    If scales are given, positions are mapped with them rather than with the ratio of the sizes (as in ONNX).
    """
    rule = CoordinateRule(
        layer.option("resize_mode"),
        layer.option("coordinate_transformation"),
        layer.option("selector_for_single_pixel"),
        layer.option("nearest_rounding"),
        layer.flag("exclude_outside"),
        layer.real("cubic_coeff"),
    )
    scales = list(layer.reals("scales"))
    stated = None if layer.has_input(1) or scales else layer.ints("shape")
    dtype = layer.input_dtype()

    def run(x: Tensor, shape: Tensor | None = None) -> Tensor:
        wanted = list(stated) if stated is not None else sizes(shape) if shape is not None else []
        wanted = wanted or [int(size * scale + 1e-6) for size, scale in zip(x.shape, scales, strict=True)]
        fast = _by_torch(x, wanted, scales, rule)
        if fast is not None:
            return fast
        y = x.float() if dtype.itemsize < 4 and rule.mode != "NEAREST" else x
        for axis, size in enumerate(wanted):
            scale = scales[axis] if scales else size / max(x.shape[axis], 1)
            if size != x.shape[axis] or scale != 1:
                y = _resize_axis(y, axis, size, rule, scale)
        return y.to(dtype)

    return run


def _by_torch(x: Tensor, wanted: list[int], scales: list[float], rule: CoordinateRule) -> Tensor | None:
    """Return torch's own bilinear or nearest resize if it computes the same, otherwise None."""
    if x.dim() != 4 or wanted[:2] != list(x.shape[:2]) or not x.is_floating_point() or x.dtype.itemsize < 4:
        return None
    if scales and any(scale != size / old for scale, size, old in zip(scales, wanted, x.shape, strict=True)):
        return None
    upscales = all(size % old == 0 for size, old in zip(wanted[2:], x.shape[2:], strict=True))
    if rule.mode == "NEAREST" and upscales and rule.transformation == "ASYMMETRIC" and rule.rounding == "FLOOR":
        return F.interpolate(x, wanted[2:], mode="nearest")
    if (
        rule.mode != "LINEAR"
        or rule.selector != "FORMULA"
        or rule.excludes_outside
        or rule.transformation == "ASYMMETRIC"
    ):
        return None
    aligned = rule.transformation == "ALIGN_CORNERS"
    if aligned and min(wanted[2:]) < 2:
        return None
    return F.interpolate(x, wanted[2:], mode="bilinear", align_corners=aligned)


def _resize_axis(x: Tensor, axis: int, size: int, rule: CoordinateRule, scale: float) -> Tensor:
    """Return x with one axis resized: every mode is separable into one-dimensional ones."""
    position = _source(torch.arange(size, dtype=torch.float64, device=x.device), x.shape[axis], rule, scale)
    if rule.mode == "NEAREST":
        return x.index_select(axis, _nearest(position, rule.rounding).clamp(0, x.shape[axis] - 1))
    index, weight = _taps(position, x.shape[axis], rule)
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for tap in range(index.shape[1]):
        factor = weight[:, tap].to(x.dtype).reshape(-1, *[1] * (x.dim() - axis - 1))
        total = total + x.index_select(axis, index[:, tap]) * factor
    return total


def _source(out: Tensor, length: int, rule: CoordinateRule, scale: float) -> Tensor:
    """Return the input position of each output position, in fp64."""
    size = len(out)
    if size == 1 and rule.selector == "UPPER":
        return torch.zeros_like(out)
    if rule.transformation == "ALIGN_CORNERS":
        return out * ((length - 1) / (size - 1)) if size > 1 else torch.zeros_like(out)
    if rule.transformation == "ASYMMETRIC":
        return out / scale
    return (out + 0.5) / scale - 0.5


def _nearest(position: Tensor, rounding: str) -> Tensor:
    """Return positions rounded by TensorRT's ResizeRoundMode."""
    if rounding == "HALF_UP":
        rounded = torch.floor(position + 0.5)
    elif rounding == "HALF_DOWN":
        rounded = torch.ceil(position - 0.5)
    else:
        rounded = torch.floor(position) if rounding == "FLOOR" else torch.ceil(position)
    return rounded.long()


def _taps(position: Tensor, length: int, rule: CoordinateRule) -> Weights:
    """Return the input positions that contribute to each output, and their weights."""
    low = torch.floor(position)
    if rule.mode == "LINEAR":
        offsets = torch.tensor([0, 1], device=position.device)
        part = position - low
        weight = torch.stack((1 - part, part), 1)
    else:
        offsets = torch.tensor([-1, 0, 1, 2], device=position.device)
        weight = _cubic(position - low, rule.cubic_coefficient)
    index = low.long().unsqueeze(1) + offsets
    if rule.excludes_outside:
        weight = weight * ((index >= 0) & (index < length))
        weight = weight / weight.sum(1, keepdim=True)
    return index.clamp(0, length - 1), weight


def _cubic(part: Tensor, a: float) -> Tensor:
    """Return the weights of four neighbors (Keys 1981, coefficient a)."""
    far, near, next_near, next_far = part + 1, part, 1 - part, 2 - part
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (near, next_near)]
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (far, next_far)]
    return torch.stack((outer[0], inner[0], inner[1], outer[1]), 1)


_GRID_MODES = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
_GRID_PADDING = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


def grid_sample(layer: Layer) -> Op:
    """Sample [N, C, ...] at the positions of a grid in [-1, 1], last axis x first."""
    mode = _GRID_MODES[layer.option("interpolation_mode")]
    padding = _GRID_PADDING[layer.option("sample_mode")]
    aligned, dtype = layer.flag("align_corners"), layer.input_dtype()

    def run(x: Tensor, grid: Tensor) -> Tensor:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        return F.grid_sample(x.to(wide), grid.to(wide), mode, padding, aligned).to(dtype)

    return run


def non_maximum_suppression(layer: Layer) -> Op:
    """Keep the best boxes of each batch item and class whose IoU with every better one is within the threshold.

    Inputs: boxes [B, n, 4] or [B, n, classes, 4], scores [B, n, classes], maximum boxes per class, IoU threshold, score
    threshold, which a score must exceed. Outputs: rows (batch, class, box) by batch, then descending score; their
    count. Of equal scores the first box leads. Source: INMSLayer in NvInfer.h.
    """
    is_corners = layer.option("bounding_box_format") == "CORNER_PAIRS"
    limit, index_dtype = layer.number("topk_box_limit"), layer.output_dtype(0)

    def run(
        boxes: Tensor, scores: Tensor, most: Tensor, iou: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        corners = _corners(boxes, is_corners)
        overlap, threshold = (0.0 if value is None else float(value) for value in (iou, least))
        count = min(int(most), limit)
        rows = []
        for batch in range(scores.shape[0]):
            detections = []
            for index in range(scores.shape[2]):
                candidates = corners[batch, :, index] if corners.dim() == 4 else corners[batch]
                score = scores[batch, :, index].double()
                kept = _suppress(candidates, score, overlap, threshold, count)
                detections += [(-float(score[box]), batch, index, box) for box in kept]
            rows += [row[1:] for row in sorted(detections, key=lambda row: row[0])]
        indices = torch.tensor(rows, dtype=index_dtype).reshape(-1, 3).to(boxes.device)
        return indices, torch.tensor(len(rows), dtype=layer.output_dtype(1))

    return run


def _corners(boxes: Tensor, is_corners: bool) -> Tensor:
    wide = boxes.double()
    first, second = wide[..., :2], wide[..., 2:]
    if not is_corners:
        first, second = first - second / 2, first + second / 2
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _suppress(boxes: Tensor, score: Tensor, overlap: float, threshold: float, most: int) -> list[int]:
    """Return the kept boxes, best first. overlap: maximum IoU of two boxes. threshold: scores must exceed it."""
    kept: list[int] = []
    order = torch.argsort(score, descending=True, stable=True).tolist()
    for box in order:
        if len(kept) >= most or not float(score[box]) > threshold:
            break
        if not kept or float(_overlap(boxes[box], boxes[kept]).max()) <= overlap:
            kept.append(box)
    return kept


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of one box with each of the others."""
    size = (torch.minimum(box[2:], others[:, 2:]) - torch.maximum(box[:2], others[:, :2])).clamp(min=0)
    shared = size.prod(-1)
    area = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    return torch.where(area > 0, shared / area, torch.zeros_like(area))
