"""Quantize and dequantize: between real numbers and low-bit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import BF16, E8M0, FP4, FP8

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.network.graph import Graph, Tensor


def quantize(x: Tensor, scale: Tensor, dtype: DType, axis: int | None = None) -> Tensor:
    """Return x / scale rounded to `dtype` (ties to even), saturated. scale: one number, or one per index of `axis`.

    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/Quantize.html
    """
    layer = x.graph.network.add_quantize(x.trt, scale.trt, _kind(x.graph, dtype))
    return x.graph.add(_along(layer, axis), "quantize")


def dequantize(x: Tensor, scale: Tensor, dtype: DType, axis: int | None = None) -> Tensor:
    """Return x times its scale in `dtype`. A scale of x's rank has one number per block, else see `quantize`.

    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/Dequantize.html
    """
    layer = x.graph.network.add_dequantize(x.trt, scale.trt, _kind(x.graph, dtype))
    return x.graph.add(_along(layer, axis), "dequantize")


def dynamic_quantize(x: Tensor, dtype: DType, outer_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantize each block of the last axis by its largest value; return codes and scales [..., in / block].

    fp4: blocks of 16, fp8 scales relative to `outer_scale`. fp8: blocks of 32, powers of two (MXFP8).
    Source: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/DynamicQuantize.html
    """
    graph, scale_type = x.graph, FP8 if dtype == FP4 else E8M0
    block = BLOCKS[dtype.name]
    kinds = _kind(graph, dtype), _kind(graph, scale_type)
    layer = graph.network.add_dynamic_quantize(x.trt, x.rank - 1, block, *kinds)
    if layer is not None and outer_scale is not None:
        layer.set_input(1, outer_scale.trt)
    codes = graph.add(layer, "dynamic_quantize")
    scales = layer.get_output(1)
    scales.name = f"{codes.name}/scales"
    return codes, graph.tensor(scales)


BLOCKS = {"fp4": 16, "fp8": 32}
"""Elements that share a scale if a layer quantizes by block at run time."""


def scale_constant(graph: Graph, value: Any, role: str, dtype: DType) -> Tensor:
    """Add scales as a constant in `dtype`."""
    return graph.constant(np.ascontiguousarray(value, np.float32), role, dtype)


def rounded(scale: float, dtype: DType) -> float:
    """Return a scale rounded to a constant's precision in `dtype`."""
    import ml_dtypes

    return float(np.float32(scale).astype(ml_dtypes.bfloat16 if dtype == BF16 else dtype.numpy))


def _kind(graph: Graph, dtype: DType) -> Any:
    return getattr(graph.backend.trt.DataType, dtype.tensorrt)


def _along(layer: Any, axis: int | None) -> Any:
    """Set the axis of per-index scales; a rejected layer is left for `Graph.add` to report."""
    if layer is not None and axis is not None:
        layer.axis = axis
    return layer
