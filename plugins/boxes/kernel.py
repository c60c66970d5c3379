"""Box functions in Triton, shared by the NMS kernels.

They are plain functions, which each kernel's module compiles (`_bars = triton.jit(bars)`): a module's Triton functions
run either on a GPU or in the interpreter, not in both.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_LEAST_BLOCK = 16


def block_of(count: Any, most: int) -> int:
    """Return how many of `count` to process at a time: a power of 2 up to `most`; `most` if `count` is dynamic."""
    return min(max(triton.next_power_of_2(count), _LEAST_BLOCK), most) if type(count) is int else most


def larger(a, b):
    """Return the larger number."""
    return tl.where(a > b, a, b)


def rank(score, number):
    """Return an int64 that is larger for a higher score and, if scores are equal, for a lower number."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # adding 0 turns negative zero into zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - number).to(tl.int64)


def number_of(ranked):
    """Return the number that a rank was computed from."""
    return 0x7FFFFFFF - (ranked & 0x7FFFFFFF).to(tl.int32)


def bars(one_ptr, boxes_ptr, mask, THRESHOLD: tl.constexpr, IS_CENTERED: tl.constexpr):
    """Return the boxes whose intersection over union with one box exceeds a threshold."""
    a, b = tl.load(one_ptr).to(tl.float32), tl.load(one_ptr + 1).to(tl.float32)
    c, d = tl.load(one_ptr + 2).to(tl.float32), tl.load(one_ptr + 3).to(tl.float32)
    p = tl.load(boxes_ptr, mask=mask, other=0.0).to(tl.float32)
    q = tl.load(boxes_ptr + 1, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(boxes_ptr + 2, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(boxes_ptr + 3, mask=mask, other=0.0).to(tl.float32)
    if IS_CENTERED:
        a, b, c, d = a - c * 0.5, b - d * 0.5, a + c * 0.5, b + d * 0.5
        p, q, r, s = p - r * 0.5, q - s * 0.5, p + r * 0.5, q + s * 0.5
    width = tl.minimum(tl.maximum(a, c), tl.maximum(p, r)) - tl.maximum(tl.minimum(a, c), tl.minimum(p, r))
    height = tl.minimum(tl.maximum(b, d), tl.maximum(q, s)) - tl.maximum(tl.minimum(b, d), tl.minimum(q, s))
    shared = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    union = tl.abs((c - a) * (d - b)) + tl.abs((r - p) * (s - q)) - shared
    return (shared > 0.0) & (union > 0.0) & (shared > union * THRESHOLD)
