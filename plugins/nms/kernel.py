"""NMS as one kernel with a single program, which processes one class after another.

A class's rows begin where the previous class's end. Several programs would have to wait for each other, which takes
scratch memory; a plugin with a Triton kernel has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

from ..boxes.kernel import bars, block_of, larger, number_of, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import NmsAttributes

MOST_AT_ONCE = 2048
"""Boxes that the program examines at a time."""
SCALARS = ("B", "C", "S")
_WARPS = 16
_NOT_WRITTEN = -77

_bars, _larger, _number_of, _rank = (triton.jit(function) for function in (bars, larger, number_of, rank))


@triton.jit
def _best(
    boxes_ptr, scores_ptr, rows_ptr, S, count, below,
    IOU: tl.constexpr, SCORE: tl.constexpr, IS_CENTERED: tl.constexpr, BLOCK: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Return the highest rank below `below` of a box that no row written so far suppresses; NONE if there is none."""
    best = tl.full((BLOCK,), NONE, tl.int64)
    for start in range(0, S, BLOCK):
        box = start + tl.arange(0, BLOCK)
        score = tl.load(scores_ptr + box, mask=box < S, other=0.0).to(tl.float32)
        ranked = tl.where((box < S) & (score > SCORE), _rank(score, box), NONE)
        ranked = tl.where(ranked < below, ranked, NONE)
        if tl.reduce(ranked, 0, _larger) > NONE:
            for turn in range(count):
                other = tl.load(rows_ptr + turn * 3 + 2).to(tl.int32)
                is_barred = _bars(boxes_ptr + other * 4, boxes_ptr + box * 4, ranked > NONE, IOU, IS_CENTERED)
                ranked = tl.where(is_barred, NONE, ranked)
            best = tl.where(ranked > best, ranked, best)
    return tl.reduce(best, 0, _larger)


@triton.jit
def nms(
    boxes_ptr, scores_ptr, B, C, S, selected_ptr, count_ptr,
    MOST: tl.constexpr, IOU: tl.constexpr, SCORE: tl.constexpr, IS_CENTERED: tl.constexpr,
    BLOCK: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Select boxes of every class of every image. Reads boxes selected so far back from the output."""
    row = tl.full((), 0, tl.int32)
    for kind in range(B * C):
        boxes, scores, rows = boxes_ptr + kind // C * S * 4, scores_ptr + kind * S, selected_ptr + row * 3
        count = 0
        best = _best(boxes, scores, rows, S, count, -1 - NONE, IOU, SCORE, IS_CENTERED, BLOCK, NONE)
        while best > NONE:
            tl.store(rows + count * 3, (kind // C).to(tl.int64))
            tl.store(rows + count * 3 + 1, (kind % C).to(tl.int64))
            tl.store(rows + count * 3 + 2, _number_of(best).to(tl.int64))
            tl.debug_barrier()  # all threads see the rows
            count += 1
            if count < MOST:
                best = _best(boxes, scores, rows, S, count, best, IOU, SCORE, IS_CENTERED, BLOCK, NONE)
            else:
                best = tl.full((), NONE, tl.int64)
        row += count
    tl.store(count_ptr, row.to(tl.int64))
    for start in range(row * 3, B * C * MOST * 3, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(selected_ptr + at, tl.full((BLOCK,), -1, tl.int64), mask=at < B * C * MOST * 3)


def plan(
    shapes: Sequence[Sequence[Any]],
    attributes: NmsAttributes,
    cdiv: Callable[[Any, int], Any],  # noqa: ARG001 - one program
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; sizes may be TensorRT symbols."""
    images, classes, boxes = shapes[1]
    constants = {
        "MOST": attributes.max_output_boxes,
        "IOU": attributes.iou_threshold,
        "SCORE": attributes.score_threshold,
        "IS_CENTERED": attributes.is_centered,
        "BLOCK": block_of(boxes, MOST_AT_ONCE),
        "NONE": -(2**63),
    }
    return Launch((1, 1, 1), dict(zip(SCALARS, (images, classes, boxes), strict=True)), constants, _WARPS)


def launch(inputs: Sequence[torch.Tensor | None], attributes: NmsAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; outputs are -77 wherever it writes nothing."""
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    started = plan([boxes.shape, scores.shape], attributes, triton.cdiv)
    rows = scores.shape[0] * scores.shape[1] * attributes.max_output_boxes
    selected, count = (
        torch.full(shape, _NOT_WRITTEN, dtype=torch.int64, device=boxes.device) for shape in ((rows, 3), (1,))
    )
    nms[started.grid](
        boxes, scores, *started.scalars.values(), selected, count, **started.constants, num_warps=started.num_warps
    )
    return [selected, count]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments."""
    inputs = dict.fromkeys(("boxes_ptr", "scores_ptr"), pointer(dtype))
    outputs = dict.fromkeys(("selected_ptr", "count_ptr"), "*i64")
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), **outputs}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(nms, signature | constants, started.constants, started.num_warps)
