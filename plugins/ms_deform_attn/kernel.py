"""Multi-scale deformable attention as one kernel: each program computes some queries of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import MsDeformAttnAttributes

# Elements per program: queries times channels of a head.
_ELEMENTS = 512
SCALARS = ("S", "Q", "M", "D", "P")


@triton.jit
def ms_deform_attn(
    value_ptr, locations_ptr, weights_ptr, S, Q, M, D, P, y_ptr,
    SIZES: tl.constexpr, LEVELS: tl.constexpr, QUERIES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute QUERIES queries of one head; locations are computed in fp32."""
    batch, head = tl.program_id(2), tl.program_id(1)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    has_query = query < Q
    channel = tl.arange(0, CHANNELS)
    has_channel = channel < D
    row = (batch * Q + query) * M + head
    total = tl.full((QUERIES, CHANNELS), 0.0, tl.float32)
    start = 0
    for level in tl.static_range(LEVELS):
        height, width = SIZES[2 * level], SIZES[2 * level + 1]
        for point in range(P):
            at = (row * LEVELS + level) * P + point
            share = tl.load(weights_ptr + at, mask=has_query, other=0.0).to(tl.float32)
            x = tl.load(locations_ptr + 2 * at, mask=has_query, other=0.0).to(tl.float32) * width - 0.5
            y = tl.load(locations_ptr + 2 * at + 1, mask=has_query, other=0.0).to(tl.float32) * height - 0.5
            left, top = tl.floor(x), tl.floor(y)
            part_x, part_y = x - left, y - top
            for corner in tl.static_range(4):
                at_y = top + (corner // 2)
                at_x = left + (corner % 2)
                weight_y = part_y if corner // 2 else 1.0 - part_y
                weight_x = part_x if corner % 2 else 1.0 - part_x
                inside = (at_y >= 0.0) & (at_y < height) & (at_x >= 0.0) & (at_x < width) & has_query
                cell = tl.where(inside, at_y * width + at_x, 0.0).to(tl.int32)
                index = ((batch * S + start + cell) * M + head) * D
                has_value = inside[:, None] & has_channel[None, :]
                picked = tl.load(value_ptr + (index[:, None] + channel[None, :]), mask=has_value, other=0.0)
                total += picked.to(tl.float32) * (weight_y * weight_x * share)[:, None]
        start += height * width
    y_at = (row * D)[:, None] + channel[None, :]
    tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=has_query[:, None] & has_channel[None, :])


def plan(
    shapes: Sequence[Sequence[Any]], attributes: MsDeformAttnAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; all but M, D, L and P may be TensorRT symbols."""
    value, _, weights = shapes
    heads, size, points = int(value[2]), int(value[3]), int(weights[4])
    scalars = dict(zip(SCALARS, (value[1], weights[1], heads, size, points), strict=True))
    channels = triton.next_power_of_2(size)
    queries = max(1, _ELEMENTS // channels)
    constants = {
        "SIZES": attributes.spatial_shapes,
        "LEVELS": len(attributes.sizes()),
        "QUERIES": queries,
        "CHANNELS": channels,
    }
    return Launch((cdiv(weights[1], queries), heads, value[0]), scalars, constants)


def launch(inputs: Sequence[torch.Tensor | None], attributes: MsDeformAttnAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    value, locations, weights = inputs
    assert value is not None
    assert locations is not None
    assert weights is not None
    started = plan([value.shape, locations.shape, weights.shape], attributes, triton.cdiv)
    batch, queries, heads = weights.shape[:3]
    y = torch.full((batch, queries, heads * value.shape[3]), torch.nan, dtype=value.dtype, device=value.device)
    ms_deform_attn[started.grid](
        value, locations, weights, *started.scalars.values(), y, **started.constants, num_warps=started.num_warps
    )
    return [y]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments; locations are fp32."""
    data = pointer(dtype)
    inputs = {"value_ptr": data, "locations_ptr": "*fp32", "weights_ptr": data}
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "y_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(ms_deform_attn, signature | constants, started.constants, started.num_warps)
