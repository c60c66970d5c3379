"""AffineGrid as a product of the base grid with the matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer


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


RULES = (Rule("", "AffineGrid", affine_grid, is_fp32=True),)
