"""NMS with padded outputs as one kernel: each program selects the pairs of one image, one after another."""

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

    from .op import EfficientNmsAttributes

MOST_AT_ONCE = 1024
"""Pairs that a program examines at a time."""
SCALARS = ("S", "C")
_WARPS = 16
_NOT_WRITTEN = -77

_bars, _larger, _number_of, _rank = (triton.jit(function) for function in (bars, larger, number_of, rank))


@triton.jit
def _activated(score, HAS_SIGMOID: tl.constexpr):
    return 1.0 / (1.0 + tl.exp(-score)) if HAS_SIGMOID else score


@triton.jit
def _best(
    boxes_ptr, scores_ptr, kinds_ptr, S, C, kind, count, below,
    IOU: tl.constexpr, SCORE: tl.constexpr, IS_CENTERED: tl.constexpr, HAS_SIGMOID: tl.constexpr,
    IS_AGNOSTIC: tl.constexpr, BLOCK: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Return the highest rank below `below` that no kept pair suppresses, of one class or all; NONE if there is none.

    kinds_ptr: the pairs kept so far, each encoded as one number (see `efficient_nms`).
    """
    best = tl.full((BLOCK,), NONE, tl.int64)
    pairs = S * C if IS_AGNOSTIC else S
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        number = pair if IS_AGNOSTIC else pair * C + kind
        score = tl.load(scores_ptr + number, mask=pair < pairs, other=0.0).to(tl.float32)
        is_high = (pair < pairs) & (_activated(score, HAS_SIGMOID) > SCORE)
        ranked = tl.where(is_high, _rank(score, number), NONE)
        ranked = tl.where(ranked < below, ranked, NONE)
        if tl.reduce(ranked, 0, _larger) > NONE:
            boxes = boxes_ptr + number // C * 4
            for turn in range(count):
                other = tl.load(kinds_ptr + turn)
                if (kind if IS_AGNOSTIC else other % C) == kind:
                    is_barred = _bars(boxes_ptr + other // C * 4, boxes, ranked > NONE, IOU, IS_CENTERED)
                    ranked = tl.where(is_barred, NONE, ranked)
            best = tl.where(ranked > best, ranked, best)
    return tl.reduce(best, 0, _larger)


@triton.jit
def _write(
    boxes_ptr, scores_ptr, kept, C, count, MOST: tl.constexpr, HAS_SIGMOID: tl.constexpr, ROOM: tl.constexpr
):  # fmt: skip
    """Write the kept pairs, then zeros. kept: boxes, scores and pair numbers, which classes replace."""
    kept_boxes_ptr, kept_scores_ptr, numbers_ptr = kept
    turn = tl.arange(0, ROOM)
    is_kept, is_there = turn < count, turn < MOST
    number = tl.load(numbers_ptr + turn, mask=is_kept, other=0)
    score = tl.load(scores_ptr + number, mask=is_kept, other=0.0).to(tl.float32)
    score = tl.where(is_kept, _activated(score, HAS_SIGMOID), 0.0)
    tl.debug_barrier()  # all threads have read the numbers
    tl.store(numbers_ptr + turn, number % C, mask=is_there)
    tl.store(kept_scores_ptr + turn, score.to(kept_scores_ptr.dtype.element_ty), mask=is_there)
    for side in tl.static_range(4):
        end = tl.load(boxes_ptr + number // C * 4 + side, mask=is_kept, other=0.0)
        tl.store(kept_boxes_ptr + turn * 4 + side, end, mask=is_there)


@triton.jit
def efficient_nms(
    boxes_ptr, scores_ptr, S, C, count_ptr, kept_boxes_ptr, kept_scores_ptr, kept_classes_ptr,
    MOST: tl.constexpr, IOU: tl.constexpr, SCORE: tl.constexpr, IS_CENTERED: tl.constexpr, HAS_SIGMOID: tl.constexpr,
    IS_AGNOSTIC: tl.constexpr, KINDS: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Select the pairs of one image. Keeps each class's best remaining pair, and searches again once it is selected.

    Until the end, `kept_classes` holds pair numbers, which encode box and class.
    """
    image = tl.program_id(0)
    boxes, scores, numbers = boxes_ptr + image * S * 4, scores_ptr + image * S * C, kept_classes_ptr + image * MOST
    kinds = tl.arange(0, KINDS)
    best = tl.full((KINDS,), NONE, tl.int64)
    for kind in range(1 if IS_AGNOSTIC else C):
        first = _best(boxes, scores, numbers, S, C, kind, 0, -1 - NONE,
                      IOU, SCORE, IS_CENTERED, HAS_SIGMOID, IS_AGNOSTIC, BLOCK, NONE)  # fmt: skip
        best = tl.where(kinds == kind, first, best)
    count = 0
    top = tl.reduce(best, 0, _larger)
    while top > NONE:
        number = _number_of(top)
        tl.store(numbers + count, number)
        tl.debug_barrier()  # all threads see the number
        count += 1
        kind = number * 0 if IS_AGNOSTIC else number % C
        after = _best(boxes, scores, numbers, S, C, kind, count, top,
                      IOU, SCORE, IS_CENTERED, HAS_SIGMOID, IS_AGNOSTIC, BLOCK, NONE)  # fmt: skip
        best = tl.where(kinds == kind, after, best)
        top = tl.reduce(best, 0, _larger)
        if count == MOST:
            top = tl.full((), NONE, tl.int64)
    tl.store(count_ptr + image, count)
    kept = kept_boxes_ptr + image * MOST * 4, kept_scores_ptr + image * MOST, numbers
    _write(boxes, scores, kept, C, count, MOST, HAS_SIGMOID, ROOM)


def plan(
    shapes: Sequence[Sequence[Any]],
    attributes: EfficientNmsAttributes,
    cdiv: Callable[[Any, int], Any],  # noqa: ARG001 - one program an image
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; all but C may be TensorRT symbols."""
    images, boxes, classes = shapes[1]
    pairs = boxes * classes if attributes.is_class_agnostic else boxes
    constants = {
        "MOST": attributes.max_output_boxes,
        "IOU": attributes.iou_threshold,
        "SCORE": attributes.score_threshold,
        "IS_CENTERED": attributes.is_centered,
        "HAS_SIGMOID": attributes.has_sigmoid,
        "IS_AGNOSTIC": attributes.is_class_agnostic,
        "KINDS": max(2, triton.next_power_of_2(int(classes))),
        "ROOM": max(2, triton.next_power_of_2(attributes.max_output_boxes)),
        "BLOCK": block_of(pairs, MOST_AT_ONCE),
        "NONE": -(2**63),
    }
    return Launch((images, 1, 1), dict(zip(SCALARS, (boxes, int(classes)), strict=True)), constants, _WARPS)


def launch(inputs: Sequence[torch.Tensor | None], attributes: EfficientNmsAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors; outputs are -77 wherever it writes nothing."""
    boxes, scores = inputs
    assert boxes is not None
    assert scores is not None
    started = plan([boxes.shape, scores.shape], attributes, triton.cdiv)
    images, most = scores.shape[0], attributes.max_output_boxes
    shapes = (((images, 1), torch.int32), ((images, most, 4), boxes.dtype), ((images, most), scores.dtype),
              ((images, most), torch.int32))  # fmt: skip
    outputs = [torch.full(shape, _NOT_WRITTEN, dtype=dtype, device=boxes.device) for shape, dtype in shapes]
    efficient_nms[started.grid](
        boxes, scores, *started.scalars.values(), *outputs, **started.constants, num_warps=started.num_warps
    )
    return outputs


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments."""
    data = pointer(dtype)
    inputs = dict.fromkeys(("boxes_ptr", "scores_ptr"), data)
    outputs = {"count_ptr": "*i32", "kept_boxes_ptr": data, "kept_scores_ptr": data, "kept_classes_ptr": "*i32"}
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), **outputs}
    constants = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(efficient_nms, signature | constants, started.constants, started.num_warps)
