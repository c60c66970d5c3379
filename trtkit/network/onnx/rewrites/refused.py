"""Operators that TensorRT's parser rejects, written with others: Col2Im, Det, CumProd, AffineGrid, large pools."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.foreign import NotYetKnownError, Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer


def col2im(o: Writer, node: Node) -> Written:
    """Write columns [N, C * k, L] -> image [N, C, ...]: each column is laid where its kernel point was taken from.

    A channel of its own kernel point goes to one group: C * k inputs, kernels [C * k, 1, ...], C groups. Kernels are
    as large as the dilated block: TensorRT has no dilated deconvolution with strides.
    """
    x = node.x(0)
    image = [int(size) for size in node.constant(1, "image_shape")]
    block = [int(size) for size in node.constant(2, "block_shape")]
    rank, points = len(block), math.prod(block)
    if rank not in {2, 3}:
        raise Refusal(f"input 2 (`block_shape`) is {block}, allowed: 2 or 3 sizes")
    if x.shape[1] < 0:
        raise NotYetKnownError(f"channels of input 0 (`{node.input(0)}`) must be known")
    strides, dilations = node.numbers("strides", (1,) * rank, rank), node.numbers("dilations", (1,) * rank, rank)
    pads = node.numbers("pads", (0,) * (2 * rank), 2 * rank)
    node.check_all_read()
    spans = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, block, strict=True)]
    padded = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(image)]
    steps = [(size - span) // stride + 1 for size, span, stride in zip(padded, spans, strides, strict=True)]
    sizes = [(count - 1) * stride + span for count, stride, span in zip(steps, strides, spans, strict=True)]
    channels = x.shape[1] // points
    weight = np.zeros((channels * points, 1, *spans), np.float32)
    for point, tap in enumerate(np.ndindex(*block)):
        weight[point::points, 0][(slice(None), *np.multiply(tap, dilations))] = 1
    y = o.call(
        "ConvTranspose",
        [o.reshape(x, [0, x.shape[1], *steps]), o.constant(weight, x.dtype)],
        group=channels,
        strides=list(strides),
    )
    return [_cut(o, y, pads, sizes, image)]


def _cut(o: Writer, y: OnnxValue, pads: Sequence[int], sizes: list[int], image: list[int]) -> OnnxValue:
    """Return the image without padding; rows that no column covers are zero.

    sizes: with padding. image: sizes without.
    """
    for axis, (have, want) in enumerate(zip(sizes, image, strict=True)):
        start = pads[axis]
        if have < start + want:
            y = o.pad(y, 2 + axis, 0, start + want - have)
        if start or have > start + want:
            y = o.take(y, 2 + axis, start, want)
    return y


_LARGEST_MATRIX = 4


def det(o: Writer, node: Node) -> Written:
    """Write [..., n, n] -> [...]."""
    x = node.x(0)
    size = x.shape[-1]
    if not 1 <= size <= _LARGEST_MATRIX:
        known = "an unknown size" if size < 0 else f"{size} x {size}"
        raise Refusal(
            f"matrices of {known}, allowed: 1 x 1 to {_LARGEST_MATRIX} x {_LARGEST_MATRIX}",
            "compute it before the model",
        )
    rows = [o.split(row, -1) for row in o.split(x, len(x.shape) - 2)]
    return [_expanded(o, rows, range(size))]


def _expanded(o: Writer, rows: Sequence[Sequence[OnnxValue]], columns: Sequence[int]) -> OnnxValue:
    """Expand along the first row of what is left."""
    if len(columns) == 1:
        return rows[0][columns[0]]
    total: OnnxValue | None = None
    for index, column in enumerate(columns):
        rest = [*columns[:index], *columns[index + 1 :]]
        term = rows[0][column] * _expanded(o, rows[1:], rest)
        total = term if total is None else total - term if index % 2 else total + term
    assert total is not None
    return total


def cumprod(o: Writer, node: Node) -> Written:
    """Multiply each element by the one 1, 2, 4, ... places before (after, in reverse)."""
    is_exclusive, is_reverse = node.number("exclusive", 0), node.number("reverse", 0)
    node.check_all_read()
    x, axis = node.x(0), int(node.constant(1, "axis").reshape(())) % len(node.x(0).shape)
    size = x.shape[axis]
    if size < 0:
        raise NotYetKnownError(f"size of axis {axis} of input 0 (`{node.input(0)}`) must be known")
    y = _moved(o, x, axis, 1, is_reverse=is_reverse) if is_exclusive else x
    step = 1
    while step < size:
        y = y * _moved(o, y, axis, step, is_reverse=is_reverse)
        step *= 2
    return [y]


def _moved(o: Writer, x: OnnxValue, axis: int, step: int, *, is_reverse: bool) -> OnnxValue:
    """Return x moved along an axis by `step` places, ones where nothing came from."""
    kept = max(x.shape[axis] - step, 0)
    part = o.take(x, axis, step if is_reverse else 0, kept)
    return o.pad(part, axis, 0 if is_reverse else step, step if is_reverse else 0, 1.0)


def affine_grid(o: Writer, node: Node) -> Written:
    """Write theta [N, d, d + 1], size (N, C, (D,) H, W) -> grid [N, (D,) H, W, d], d = 2 or 3."""
    is_aligned = bool(node.number("align_corners", 0))
    node.check_all_read()
    theta = node.x(0)
    rank = theta.shape[1]
    if rank not in {2, 3}:
        raise Refusal(f"input 0 (`theta`) has shape {list(theta.shape)}, allowed: [N, 2, 3] and [N, 3, 4]")
    sizes = _sizes(o, node, rank)
    axes = [_axis(o, size, is_aligned) for size in sizes]
    columns = [_spread(o, axis, index, sizes) for index, axis in enumerate(axes)][::-1]
    base = o.stack([*columns, _spread(o, axes[0] * 0.0 + 1.0, 0, sizes)], -1)
    flat = o.reshape(base, [1, -1, rank + 1])
    grid = o.matmul(flat, o.transpose(o.cast(theta, FP32), (0, 2, 1)))
    return [o.cast(o.reshape(grid, [theta.shape[0], *sizes, rank]), theta.dtype)]


def _sizes(o: Writer, node: Node, rank: int) -> list[int | OnnxValue]:
    """Return depth, height and width of the grid, as far as it has them."""
    if node.known(1):
        return [int(size) for size in node.constant(1, "size")[2:]]
    return [o.take(node.x(1), 0, 2 + axis, 1) for axis in range(rank)]


def _axis(o: Writer, size: int | OnnxValue, is_aligned: bool) -> OnnxValue:
    """Return the places along an axis in [-1, 1]: pixels' centres, or the first at -1 and the last at 1."""
    steps = o.arange(size, FP32)
    count = float(size) if isinstance(size, int) else o.cast(size, FP32)
    if is_aligned:
        return steps * 2.0 / (count - 1.0) - 1.0
    return (steps * 2.0 + 1.0) / count - 1.0


def _spread(o: Writer, axis: OnnxValue, index: int, sizes: list[int | OnnxValue]) -> OnnxValue:
    """Return the places along one axis for every pixel."""
    shape = [1] * len(sizes)
    shape[index] = -1
    return o.expand(o.reshape(axis, shape), sizes)


def whole_image(op_type: str) -> Callable[[Writer, Node], Written]:
    """Return how a pool over all there is becomes `op_type`. In EfficientNet a window has as many rows as channels."""

    def write(o: Writer, node: Node) -> Written:
        x, attributes = node.values[0], node.attributes
        is_padded = any(attributes.get("pads", ())) or attributes.get("auto_pad", "NOTSET") != "NOTSET"
        is_dilated = any(step != 1 for step in attributes.get("dilations", ()))
        if x is None or not attributes.get("ceil_mode") or is_padded or is_dilated or node.is_used(1):
            return None
        kernel = attributes["kernel_shape"]
        axes = zip(x.shape[2:], kernel, attributes.get("strides", [1] * len(kernel)), strict=True)
        is_whole = all(0 <= size <= edge < size + stride for size, edge, stride in axes)
        return [o.call(op_type, [x])] if is_whole else None

    return write


RULES = (
    Rule("", "AffineGrid", affine_grid, is_fp32=True),
    Rule("", "AveragePool", whole_image("GlobalAveragePool")),
    Rule("", "Col2Im", col2im),
    Rule("", "CumProd", cumprod),
    Rule("", "Det", det),
    Rule("", "MaxPool", whole_image("GlobalMaxPool")),
)
