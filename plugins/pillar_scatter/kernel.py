"""Pillar scatter as one kernel: each program clears some cells of some channels, then copies the pillars into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import PillarScatterAttributes

# Cells and channels per program, many since every program reads all coordinates; elements per step.
CELLS, _CHANNELS, BLOCK = 32768, 4, 1024
SCALARS = ("P", "C")


@triton.jit
def _clear(canvas_ptr, cell, mask, channel, C, SIZE: tl.constexpr, CHANNELS: tl.constexpr):
    """Set cells of CHANNELS channels to zero."""
    for step in tl.static_range(CHANNELS):
        zero = (cell * 0).to(canvas_ptr.dtype.element_ty)
        tl.store(canvas_ptr + (channel + step) * SIZE + cell, zero, mask=mask & (channel + step + cell * 0 < C))


@triton.jit
def _lay(features_ptr, canvas_ptr, pillar, cell, mask, channel, C, SIZE: tl.constexpr, CHANNELS: tl.constexpr):
    """Copy CHANNELS channels of pillars into their cells."""
    for step in tl.static_range(CHANNELS):
        has_channel = mask & (channel + step + cell * 0 < C)
        value = tl.load(features_ptr + pillar * C + channel + step, mask=has_channel, other=0.0)
        tl.store(canvas_ptr + (channel + step) * SIZE + cell, value, mask=has_channel)


@triton.jit
def pillar_scatter(
    features_ptr, coordinates_ptr, count_ptr, P, C, canvas_ptr,
    H: tl.constexpr, W: tl.constexpr, HAS_COUNT: tl.constexpr,
    CELLS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write CELLS cells of CHANNELS channels of one point cloud; no other program writes them."""
    first, channel, cloud = tl.program_id(0) * CELLS, tl.program_id(1) * CHANNELS, tl.program_id(2)
    canvas = canvas_ptr + cloud * C * (H * W)
    for start in range(0, CELLS, BLOCK):
        cell = first + start + tl.arange(0, BLOCK)
        _clear(canvas, cell, cell < H * W, channel, C, H * W, CHANNELS)
    tl.debug_barrier()  # all cells are cleared
    pillars = tl.minimum(tl.load(count_ptr), P) if HAS_COUNT else P
    for start in range(0, pillars, BLOCK):
        pillar = start + tl.arange(0, BLOCK)
        is_pillar = pillar < pillars
        its_cloud = tl.load(coordinates_ptr + pillar * 4, mask=is_pillar, other=-1)
        row = tl.load(coordinates_ptr + pillar * 4 + 2, mask=is_pillar, other=-1)
        column = tl.load(coordinates_ptr + pillar * 4 + 3, mask=is_pillar, other=-1)
        is_inside = (its_cloud == cloud) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        cell = row * W + column
        is_mine = is_inside & (cell >= first) & (cell < first + CELLS)
        _lay(features_ptr, canvas, pillar, cell, is_mine, channel, C, H * W, CHANNELS)


def plan(
    shapes: Sequence[Sequence[Any] | None], attributes: PillarScatterAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; the number of pillars may be a TensorRT symbol."""
    features, _, count = shapes
    assert features is not None
    height, width = attributes.grid
    grid = (triton.cdiv(height * width, CELLS), cdiv(features[1], _CHANNELS), attributes.batch)
    cells = min(CELLS, BLOCK * triton.cdiv(height * width, BLOCK))
    sizes = {"H": height, "W": width, "HAS_COUNT": count is not None}
    constants = {**sizes, "CELLS": cells, "CHANNELS": _CHANNELS, "BLOCK": BLOCK}
    return Launch(grid, dict(zip(SCALARS, features, strict=True)), constants, num_warps=8)


def launch(inputs: Sequence[torch.Tensor | None], attributes: PillarScatterAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; the output is NaN wherever it writes nothing."""
    features, coordinates, count = inputs
    assert features is not None
    assert coordinates is not None
    started = plan([None if t is None else t.shape for t in inputs], attributes, triton.cdiv)
    shape = (attributes.batch, features.shape[1], *attributes.grid)
    canvas = torch.full(shape, torch.nan, dtype=features.dtype, device=features.device)
    pointers = (features, coordinates, coordinates if count is None else count)
    pillar_scatter[started.grid](
        *pointers, *started.scalars.values(), canvas, **started.constants, num_warps=started.num_warps
    )
    return [canvas]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments."""
    data = pointer(dtype)
    inputs = {"features_ptr": data, "coordinates_ptr": "*i32", "count_ptr": "*i32"}
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "canvas_ptr": data}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(pillar_scatter, signature | constants, started.constants, started.num_warps)
