"""Col2Im as a transposed convolution with kernels of a single one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.foreign import NotYetKnownError, Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer


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


RULES = (Rule("", "Col2Im", col2im),)
