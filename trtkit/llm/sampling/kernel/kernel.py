"""Sampling as one kernel: a program draws the token of one row, with threshold searches in place of sorts.

Scores are compared by keys: their bits as whole numbers in the same order. A search counts, or weighs, the tokens up to
16 keys in each pass over the row, so that 8 passes find one key of 2^32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from trtkit.llm.sampling.draw import FIRST_GROUP, GROUP
from trtkit.network.aot import TritonKernel, pointer

if TYPE_CHECKING:
    import torch

    from trtkit.dtypes import DType

BLOCK = 1024
"""Tokens that a program looks at at a time."""
NUMBERS = ("temperature", "repetition", "presence", "frequency", "top_k", "below", "min_p", "typical", "uniform")
"""Columns of the numbers of a row. A uniform number below 0 leaves the row out, 1 takes the first of the largest."""
_WARPS = 16
_WAYS = tl.constexpr(16)
_LEAST = tl.constexpr(-(2**31))
_MOST = tl.constexpr(2**31 - 1)
_INFINITY = tl.constexpr(0x7F800000)  # its bits
_FIRST_GROUP = tl.constexpr(FIRST_GROUP)
_NEVER = tl.constexpr(float("-inf"))
_BY_COUNT, _BY_WEIGHT, _BY_DISTANCE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


# Triton's own, which its interpreter computes with NumPy; one written here it would call for each element.
_add, _larger, _smaller = tl.standard._sum_combine, tl.standard._elementwise_max, tl.standard._elementwise_min


@triton.jit
def _key(score):
    """Return an int32 that is larger for a larger score. Its own inverse, on bits."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # no negative zero
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _processed(
    row, slot, column, is_there, logits_ptr, numbers, bias_ptr, counts_ptr, allowed_ptr, V,
    HAS_BIAS: tl.constexpr, HAS_COUNTS: tl.constexpr, HAS_ALLOWED: tl.constexpr,
):  # fmt: skip
    """Return scores after bias, penalties, bans and temperature, -inf outside of the row."""
    cell = slot * V + column
    score = tl.load(logits_ptr + row * V + column, mask=is_there, other=_NEVER).to(tl.float32)
    if HAS_BIAS:
        score += tl.load(bias_ptr + cell, mask=is_there, other=0.0)
    if HAS_COUNTS:
        count = tl.load(counts_ptr + cell, mask=is_there, other=0)
        repetition = tl.load(numbers + 1).to(tl.float32)
        penalised = tl.where(score < 0, score * repetition, tl.div_rn(score, repetition))
        score = tl.where(count > 0, penalised, score)
        times = (count >> 1).to(tl.float32)
        cost = times * tl.load(numbers + 3).to(tl.float32) + tl.load(numbers + 2).to(tl.float32)
        score = tl.where(count > 1, score - cost, score)
    if HAS_ALLOWED:
        word = tl.load(allowed_ptr + slot * ((V + 31) // 32) + column // 32, mask=is_there, other=0)
        score = tl.where((word >> (column % 32)) & 1 != 0, score, _NEVER)
    temperature = tl.load(numbers).to(tl.float32)
    return tl.where(is_there, tl.div_rn(score, temperature), _NEVER)


@triton.jit
def _least_key(
    scores, V, top, center, least, target, low, high, BY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the least key in [low, high] up to which tokens add up to more than `target`.

    BY: they count 1, or their weights, where their own keys are not below `least`; keys are of scores, or of their
    distances from `center`.
    """
    way = tl.arange(0, _WAYS).to(tl.int64)
    while low < high:
        width = high - low
        pivots = (low + ((width * way) >> 4)).to(tl.int32)
        sums = tl.full((_WAYS,), 0.0, tl.float64)
        for start in range(0, V, BLOCK):
            column = start + tl.arange(0, BLOCK)
            score = tl.load(scores + column, mask=column < V, other=_NEVER)
            key = _key(score)
            weight = tl.exp(score - top)
            if BY == _BY_COUNT:
                weight = tl.where(column < V, 1.0, 0.0)
            weight = tl.where(key >= least, weight, 0.0)
            if BY == _BY_DISTANCE:
                key = tl.abs(score - center).to(tl.int32, bitcast=True)
            up_to = tl.where(key[:, None] <= pivots[None, :], weight[:, None], 0.0)
            sums += tl.reduce(up_to, 0, _add).to(tl.float64)
        under = tl.reduce((sums <= target).to(tl.int64), 0, _add)
        after, at = low + ((width * (under - 1)) >> 4) + 1, low + ((width * under) >> 4)
        low = tl.where(under == 0, low, after)
        high = tl.where(under == _WAYS, high, at)
    return low.to(tl.int32)


@triton.jit
def _mass(scores, V, top, least, BLOCK: tl.constexpr):
    """Return the weight of the keys below `least`, that of all, and how many are equal to it."""
    below, total = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    equal = tl.full((), 0, tl.int32)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(scores + column, mask=column < V, other=_NEVER)
        key, weight = _key(score), tl.exp(score - top)
        below += tl.reduce(tl.where(key < least, weight, 0.0), 0, _add).to(tl.float64)
        total += tl.reduce(weight, 0, _add).to(tl.float64)
        equal += tl.reduce((key == least).to(tl.int32), 0, _add)
    return below, total, equal


@triton.jit
def _remove(scores, V, top, least, count, min_p, BLOCK: tl.constexpr):
    """Remove keys below `least`, the first `count` equal to it, and weights below `min_p`.

    Returns the weight of what is left, and its sum of weights times scores less the top.
    """
    total, moment = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    before = tl.full((), 0, tl.int32)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(scores + column, mask=column < V, other=_NEVER)
        key, weight = _key(score), tl.exp(score - top)
        equal = (key == least).to(tl.int32)
        rank = before + tl.associative_scan(equal, 0, _add)
        before += tl.reduce(equal, 0, _add)
        is_kept = ((key > least) | ((equal > 0) & (rank > count))) & (weight >= min_p) & (score > _NEVER)
        tl.store(scores + column, tl.where(is_kept, score, _NEVER), mask=column < V)
        weight = tl.where(is_kept, weight, 0.0)
        total += tl.reduce(weight, 0, _add).to(tl.float64)
        moment += tl.reduce(weight * tl.where(is_kept, score - top, 0.0), 0, _add).to(tl.float64)
    tl.debug_barrier()  # all threads see what is left
    return total, moment


@triton.jit
def _weights(scores, column, V, top, center, furthest):
    """Return the weights of tokens no further than `furthest` from the center, in fp64."""
    score = tl.load(scores + column, mask=column < V, other=_NEVER)
    is_near = tl.abs(score - center).to(tl.int32, bitcast=True) <= furthest
    return tl.where(is_near & (score > _NEVER), tl.exp(score - top), 0.0).to(tl.float64)


@triton.jit
def _noise(key, number):
    """Return exponential noise in fp64: `noise` of `draw.py`."""
    bits = key.to(tl.uint64) + (number.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    bits = bits ^ (bits >> 31)
    return -tl.log(((bits >> 12).to(tl.float64) + 0.5) * 2.0**-52)


@triton.jit
def _draw(scores, V, top, center, furthest, uniform, GROUP: tl.constexpr):
    """Return the token that wins: first the group of the largest sum / noise, then its largest weight / noise."""
    key = (uniform * 2.0**53).to(tl.int64)
    best, winner = tl.full((), -1.0, tl.float64), tl.full((), 0, tl.int32)
    for start in range(0, V, GROUP):
        weight = _weights(scores, start + tl.arange(0, GROUP), V, top, center, furthest)
        group = tl.full((), _FIRST_GROUP, tl.int64) + start // GROUP
        value = tl.reduce(weight, 0, _add) / _noise(key, group)
        winner = tl.where(value > best, start, winner)
        best = tl.where(value > best, value, best)
    column = winner + tl.arange(0, GROUP)
    values = _weights(scores, column, V, top, center, furthest) / _noise(key, column)
    highest = tl.reduce(values, 0, _larger)
    return tl.reduce(tl.where(values == highest, column, V), 0, _smaller)


@triton.jit
def _first(scores, V, top, BLOCK: tl.constexpr):
    """Return the first token of the largest score."""
    token = tl.full((), 0, tl.int32) + V
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(scores + column, mask=column < V, other=_NEVER)
        first = tl.reduce(tl.where(score == top, column, V), 0, _smaller)
        token = tl.where(first < token, first, token)
    return token


# Of pointers, 16-byte alignment is otherwise a variant of its own, which differs by slot and by an odd V.
@triton.jit(
    do_not_specialize_on_alignment=[
        "logits_ptr", "slots_ptr", "numbers_ptr", "bias_ptr", "counts_ptr", "allowed_ptr", "scores_ptr", "tokens_ptr",
    ]
)  # fmt: skip
def sample_rows(
    logits_ptr, slots_ptr, numbers_ptr, bias_ptr, counts_ptr, allowed_ptr, V, scores_ptr, tokens_ptr,
    HAS_BIAS: tl.constexpr, HAS_COUNTS: tl.constexpr, HAS_ALLOWED: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Draw the token of one row; see `sample` for the arguments. Scores are what the filters leave, -inf elsewhere."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    numbers, scores = numbers_ptr + slot * 9, scores_ptr + slot * V
    if tl.load(numbers + 8) < 0:
        return
    top, faults = tl.full((), _NEVER, tl.float32), tl.full((), 0, tl.int32)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = _processed(row, slot, column, column < V, logits_ptr, numbers, bias_ptr, counts_ptr, allowed_ptr, V,
                           HAS_BIAS, HAS_COUNTS, HAS_ALLOWED)  # fmt: skip
        tl.store(scores + column, score, mask=column < V)
        faults += tl.reduce((score != score).to(tl.int32), 0, _add)
        highest = tl.reduce(score, 0, _larger)
        top = tl.where(highest > top, highest, top)
    tl.debug_barrier()  # all threads see all scores
    token = tl.where((faults == 0) & (top == _NEVER), -2, -1)  # NOTHING, FAILED
    if (faults == 0) & (top > _NEVER) & (top < -_NEVER):
        low, high = tl.full((), _LEAST, tl.int64), _key(top).to(tl.int64)
        least, count, none = tl.full((), _LEAST, tl.int32), tl.full((), 0, tl.int32), tl.full((), _LEAST, tl.int32)
        top_k, below = tl.load(numbers + 4), tl.load(numbers + 5)
        if (top_k > 0) & (top_k < V):
            low = tl.where(top_k == 1, high, low)  # nothing to search for
            least = _least_key(scores, V, top, top, none, V - top_k, low, high, _BY_COUNT, BLOCK)
        if below > 0:
            under, total, _ = _mass(scores, V, top, least, BLOCK)
            target = (total - under) * below
            at = _least_key(scores, V, top, top, least, target, least.to(tl.int64), high, _BY_WEIGHT, BLOCK)
            lesser, _, equal = _mass(scores, V, top, at, BLOCK)
            # What is left of the mass that may go, in tokens of this weight; one token stays.
            fitting = (target - (lesser - under)) / tl.exp(_score(at) - top).to(tl.float64)
            count = tl.where(fitting < equal - 1, fitting, equal - 1).to(tl.int32)
            least = at
        total, moment = _remove(scores, V, top, least, count, tl.load(numbers + 6).to(tl.float32), BLOCK)
        furthest, typical = tl.full((), _MOST, tl.int32), tl.load(numbers + 7)
        center = top + (moment / total).to(tl.float32)
        if typical < 1:
            nearest, infinity = tl.full((), 0, tl.int64), tl.full((), _INFINITY, tl.int64)
            furthest = _least_key(scores, V, top, center, none, total * typical, nearest, infinity, _BY_DISTANCE, BLOCK)
        if tl.load(numbers + 8) < 1:
            token = _draw(scores, V, top, center, furthest, tl.load(numbers + 8), GROUP)
        else:
            token = _first(scores, V, top, BLOCK)
        if HAS_COUNTS:
            drawn = counts_ptr + slot * V + token
            tl.store(drawn, tl.load(drawn) + 2)
    tl.store(tokens_ptr + slot, token.to(tl.int64))


def launch(
    logits: torch.Tensor,
    slots: torch.Tensor,
    numbers: torch.Tensor,
    extras: tuple[torch.Tensor | None, ...],
    outputs: tuple[torch.Tensor, ...],
) -> None:
    """Run the kernel on logits [R, V] of slots [R]. extras: bias, counts, allowed. outputs: scores, tokens."""
    pointers = [logits if extra is None else extra for extra in extras]  # what is not used is not read
    sample_rows[(logits.shape[0],)](
        logits, slots, numbers, *pointers, logits.shape[1], *outputs, *(extra is not None for extra in extras), BLOCK,
        GROUP, num_warps=_WARPS,
    )  # fmt: skip


def to_compile(dtype: DType) -> TritonKernel:
    """Return the kernel with everything it can do, and the types of its arguments."""
    inputs = {
        "logits_ptr": pointer(dtype),
        "slots_ptr": "*i32",
        "numbers_ptr": "*fp64",
        "bias_ptr": "*fp32",
        "counts_ptr": "*i32",
    }
    outputs = {"scores_ptr": "*fp32", "tokens_ptr": "*i64"}
    constants = {"HAS_BIAS": True, "HAS_COUNTS": True, "HAS_ALLOWED": True, "BLOCK": BLOCK, "GROUP": GROUP}
    signature = {**inputs, "allowed_ptr": "*i32", "V": "i32", **outputs, **dict.fromkeys(constants, "constexpr")}
    return TritonKernel(sample_rows, signature, constants, _WARPS)
