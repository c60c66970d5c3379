"""Sampling as five kernels, with threshold searches in place of sorts: see README.md.

Scores are compared by keys: their bits as whole numbers in the same order. A search counts, or weighs, the tokens up to
16 keys in each pass over its list, so that 8 passes find one key of 2^32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from trtkit.llm.sampling.draw import FIRST_GROUP, GROUP
from trtkit.llm.sampling.kernel import CHUNK, PARTS, ROW, SPAN
from trtkit.network.aot import TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from trtkit.dtypes import DType

BLOCK = 1024
"""Tokens that a program looks at at a time."""
_PACKED, _SEARCHED = tl.constexpr(256), tl.constexpr(512)
_WARPS = 16
_CHUNK, _SPAN, _PARTS, _ROW = tl.constexpr(CHUNK), tl.constexpr(SPAN), tl.constexpr(PARTS), tl.constexpr(ROW)
_WAYS = tl.constexpr(16)
_LEAST = tl.constexpr(-(2**31))
_MOST = tl.constexpr(2**31 - 1)
_INFINITY = tl.constexpr(0x7F800000)  # its bits
_FIRST_GROUP = tl.constexpr(FIRST_GROUP)
_NEVER = tl.constexpr(float("-inf"))
_BY_COUNT, _BY_WEIGHT, _BY_DISTANCE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_MARGIN = tl.constexpr(1e-3)  # of a score, for rounding


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


# Of pointers, 16-byte alignment is otherwise a variant of its own, which differs by slot and by an odd V.
_POINTERS = [
    *("logits_ptr", "slots_ptr", "numbers_ptr", "bias_ptr", "counts_ptr", "allowed_ptr"),
    *("scores_ptr", "ids_ptr", "spans_ptr", "parts_ptr", "rows_ptr", "tokens_ptr"),
]


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def process(
    logits_ptr, slots_ptr, numbers_ptr, bias_ptr, counts_ptr, allowed_ptr, V, scores_ptr, spans_ptr, parts_ptr,
    HAS_BIAS: tl.constexpr, HAS_COUNTS: tl.constexpr, HAS_ALLOWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scores of a chunk, the largest of each span, the chunk's largest, its mass and how many are NaN."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    numbers = numbers_ptr + slot * 9
    if tl.load(numbers + 8) < 0:
        return
    spans = (V + _SPAN - 1) // _SPAN
    top, faults = tl.full((), _NEVER, tl.float32), tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float32)
    for begin in range(0, tl.minimum(V - chunk * _CHUNK, _CHUNK), BLOCK):
        start = chunk * _CHUNK + begin
        column = start + tl.arange(0, BLOCK)
        score = _processed(row, slot, column, column < V, logits_ptr, numbers, bias_ptr, counts_ptr, allowed_ptr, V,
                           HAS_BIAS, HAS_COUNTS, HAS_ALLOWED)  # fmt: skip
        tl.store(scores_ptr + slot * V + column, score, mask=column < V)
        faults += tl.reduce((score != score).to(tl.int32), 0, _add)
        largest = tl.reduce(tl.reshape(score, (BLOCK // _SPAN, _SPAN)), 1, _larger)
        span = start // _SPAN + tl.arange(0, BLOCK // _SPAN)
        tl.store(spans_ptr + slot * spans + span, largest, mask=span < spans)
        highest = tl.reduce(largest, 0, _larger)
        highest = tl.where(highest > top, highest, top)
        center = tl.where(highest > _NEVER, highest, 0.0)
        mass = mass * tl.exp(top - center) + tl.reduce(tl.exp(score - center), 0, _add)
        top = highest
    part = parts_ptr + (slot * ((V + _CHUNK - 1) // _CHUNK) + chunk) * _PARTS
    tl.store(part, top.to(tl.float64))
    tl.store(part + 1, mass.to(tl.float64))
    tl.store(part + 2, faults.to(tl.float64))


@triton.jit
def _listed(scores, ids, index, count, HAS_IDS: tl.constexpr):
    """Return the scores at places of a list of tokens, or of scores; -inf from `count` on."""
    if HAS_IDS:
        index = tl.load(ids + index, mask=index < count, other=0)
        score = tl.load(scores + index)
    else:
        score = tl.load(scores + index, mask=index < count, other=_NEVER)
    return score


@triton.jit
def _least_key(
    scores, ids, count, top, center, least, target, low, high,
    BY: tl.constexpr, HAS_IDS: tl.constexpr,
):  # fmt: skip
    """Return the least key in [low, high] up to which the first `count` of a list add up to more than `target`.

    BY: they count 1, or their weights, where their own keys are not below `least`; keys are of scores, or of their
    distances from `center`.
    """
    way = tl.arange(0, _WAYS).to(tl.int64)
    while low < high:
        width = high - low
        pivots = (low + ((width * way) >> 4)).to(tl.int32)
        sums = tl.full((_WAYS,), 0.0, tl.float64)
        for start in range(0, count, _SEARCHED):
            index = start + tl.arange(0, _SEARCHED)
            score = _listed(scores, ids, index, count, HAS_IDS)
            key = _key(score)
            weight = tl.exp(score - top)
            if BY == _BY_COUNT:
                weight = tl.full((_SEARCHED,), 1.0, tl.float32)
            weight = tl.where((index < count) & (key >= least), weight, 0.0)
            if BY == _BY_DISTANCE:
                key = tl.abs(score - center).to(tl.int32, bitcast=True)
            up_to = tl.where(key[:, None] <= pivots[None, :], weight[:, None], 0.0)
            sums += tl.reduce(up_to, 0, _add).to(tl.float64)
        under = tl.reduce((sums <= target).to(tl.int64), 0, _add)
        after, at = low + ((width * (under - 1)) >> 4) + 1, low + ((width * under) >> 4)
        low = tl.where(under == 0, low, after)
        high = tl.where(under == _WAYS, high, at)
    return low.to(tl.int32)


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def choose_candidates(
    slots_ptr, numbers_ptr, V, scores_ptr, ids_ptr, spans_ptr, parts_ptr, rows_ptr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """List the tokens of a chunk that filters may leave: those whose scores reach a bound of the row.

    As many spans as top-k tokens have a score from the bound on; all tokens below that of top-p have half the mass
    that is removed, at most. Writes how many there are, and the mass of the others; and for a row its largest score and
    what the others do: remove tokens if it is 1, draw if it is 0; below, it is the token of a row that has none.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    numbers, scores = numbers_ptr + slot * 9, scores_ptr + slot * V
    chunks, spans = (V + _CHUNK - 1) // _CHUNK, (V + _SPAN - 1) // _SPAN
    parts, out = parts_ptr + slot * chunks * _PARTS, rows_ptr + slot * _ROW
    if tl.load(numbers + 8) < 0:
        return
    part = tl.arange(0, CHUNKS)
    tops = tl.load(parts + part * _PARTS, mask=part < chunks, other=_NEVER).to(tl.float32)
    faults = tl.reduce(tl.load(parts + part * _PARTS + 2, mask=part < chunks, other=0.0), 0, _add)
    top = tl.reduce(tops, 0, _larger)
    top_k, below, min_p = tl.load(numbers + 4), tl.load(numbers + 5), tl.load(numbers + 6).to(tl.float32)
    has_top_k = (top_k > 0) & (top_k < V)
    state = (has_top_k | (below > 0) | (min_p > 0) | (tl.load(numbers + 7) < 1)) & (tl.load(numbers + 8) < 1)
    is_fine = (faults == 0) & (top > _NEVER) & (top < -_NEVER)
    if chunk == 0:
        fault = tl.where((faults == 0) & (top == _NEVER), -2.0, -1.0)  # NOTHING, FAILED
        tl.store(out, tl.full((), _NEVER, tl.float64))
        tl.store(out + 1, top.to(tl.float64))
        tl.store(out + 2, tl.full((), _MOST, tl.float64))
        tl.store(out + 3, top.to(tl.float64))
        tl.store(out + 4, tl.where(is_fine, state.to(tl.float64), fault))
    if is_fine & state:
        bound = tl.full((), _NEVER, tl.float32)
        if has_top_k:
            if top_k <= spans:
                low, high = tl.full((), _LEAST, tl.int64), _key(top).to(tl.int64)
                low = tl.where(top_k == 1, high, low)  # nothing to search for
                largest = spans_ptr + slot * spans
                bound = _score(_least_key(largest, largest, spans, top, top, _LEAST, spans - top_k, low, high,
                                          _BY_COUNT, False))  # fmt: skip
        elif below > 0:
            masses = tl.load(parts + part * _PARTS + 1, mask=part < chunks, other=0.0).to(tl.float32)
            mass = tl.reduce(tl.where(tops > _NEVER, masses * tl.exp(tops - top), 0.0), 0, _add)
            bound = top + tl.log(mass * below.to(tl.float32) / (2.0 * V))
        elif min_p > 0:
            bound = top + tl.log(min_p) * (1.0 + _MARGIN) - _MARGIN
        before, others = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64)
        for begin in range(0, _CHUNK, BLOCK):
            column = chunk * _CHUNK + begin + tl.arange(0, BLOCK)
            score = tl.load(scores + column, mask=column < V, other=_NEVER)
            is_in = (score >= bound) & (column < V)
            rank = before + tl.associative_scan(is_in.to(tl.int32), 0, _add) - 1
            tl.store(ids_ptr + slot * V + chunk * _CHUNK + rank, column, mask=is_in)
            before += tl.reduce(is_in.to(tl.int32), 0, _add)
            others += tl.reduce(tl.where(is_in, 0.0, tl.exp(score - top)), 0, _add).to(tl.float64)
        tl.store(parts + chunk * _PARTS + 3, before.to(tl.float64))
        tl.store(parts + chunk * _PARTS + 4, others)
        if chunk == 0:
            tl.store(out, bound.to(tl.float64))


@triton.jit
def _pack(ids, parts, chunks, CHUNKS: tl.constexpr):
    """Move the lists of all chunks to the front, one after the other; return how long they are, and the mass of others.

    A token moves to the left only, past none that is still to be read.
    """
    chunk = tl.arange(0, CHUNKS)
    counts = tl.load(parts + chunk * _PARTS + 3, mask=chunk < chunks, other=0.0).to(tl.int32)
    others = tl.reduce(tl.load(parts + chunk * _PARTS + 4, mask=chunk < chunks, other=0.0), 0, _add)
    ends, count = tl.associative_scan(counts, 0, _add), tl.reduce(counts, 0, _add)
    if chunks > 1:
        for start in range(0, count, _PACKED):
            index = start + tl.arange(0, _PACKED)
            is_over = ends[None, :] <= index[:, None]
            of = tl.reduce(is_over.to(tl.int32), 1, _add)
            first = tl.reduce(tl.where(is_over, counts[None, :], 0), 1, _add)
            token = tl.load(ids + of * _CHUNK + index - first, mask=index < count, other=0)
            tl.debug_barrier()  # all threads have read
            tl.store(ids + index, token, mask=index < count)
    tl.debug_barrier()  # all threads see all tokens
    return count, others


@triton.jit
def _mass(scores, ids, count, top, least, BLOCK: tl.constexpr):
    """Return the weight of the keys below `least`, that of all, and how many are equal to it."""
    below, total = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    equal = tl.full((), 0, tl.int32)
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        score = _listed(scores, ids, index, count, True)
        key, weight = _key(score), tl.where(index < count, tl.exp(score - top), 0.0)
        below += tl.reduce(tl.where(key < least, weight, 0.0), 0, _add).to(tl.float64)
        total += tl.reduce(weight, 0, _add).to(tl.float64)
        equal += tl.reduce(((key == least) & (index < count)).to(tl.int32), 0, _add)
    return below, total, equal


@triton.jit
def _remove(scores, ids, count, top, least, equals, min_p, BLOCK: tl.constexpr):
    """Remove keys below `least`, the first `equals` equal to it, and weights below `min_p`.

    Returns the weight of what is left, and its sum of weights times scores less the top.
    """
    total, moment = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    before = tl.full((), 0, tl.int32)
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        token = tl.load(ids + index, mask=index < count, other=0)
        score = tl.load(scores + token)
        key, weight = _key(score), tl.exp(score - top)
        equal = ((key == least) & (index < count)).to(tl.int32)
        rank = before + tl.associative_scan(equal, 0, _add)
        before += tl.reduce(equal, 0, _add)
        is_kept = ((key > least) | ((equal > 0) & (rank > equals))) & (weight >= min_p) & (score > _NEVER)
        tl.store(scores + token, tl.where(is_kept, score, _NEVER), mask=index < count)
        weight = tl.where(is_kept & (index < count), weight, 0.0)
        total += tl.reduce(weight, 0, _add).to(tl.float64)
        moment += tl.reduce(weight * tl.where(is_kept, score - top, 0.0), 0, _add).to(tl.float64)
    tl.debug_barrier()  # all threads see what is left
    return total, moment


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def remove_tokens(
    slots_ptr, numbers_ptr, V, scores_ptr, ids_ptr, parts_ptr, rows_ptr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """Let the scores of candidates be -inf that the filters remove, but for typical.

    Its center is written, and how far from it scores are that it leaves.
    """
    slot = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    numbers, scores, ids = numbers_ptr + slot * 9, scores_ptr + slot * V, ids_ptr + slot * V
    chunks = (V + _CHUNK - 1) // _CHUNK
    parts, out = parts_ptr + slot * chunks * _PARTS, rows_ptr + slot * _ROW
    if (tl.load(numbers + 8) >= 0) & (tl.load(out + 4) == 1):
        top = tl.load(out + 3).to(tl.float32)
        count, others = _pack(ids, parts, chunks, CHUNKS)
        low, high = tl.full((), _LEAST, tl.int64), _key(top).to(tl.int64)
        least, equals, none = tl.full((), _LEAST, tl.int32), tl.full((), 0, tl.int32), tl.full((), _LEAST, tl.int32)
        top_k, below, typical = tl.load(numbers + 4), tl.load(numbers + 5), tl.load(numbers + 7)
        if (top_k > 0) & (top_k < V):
            low = tl.where(top_k == 1, high, low)  # nothing to search for
            least = _least_key(scores, ids, count, top, top, none, count - top_k, low, high, _BY_COUNT, True)
            others = tl.full((), 0.0, tl.float64)  # none of them is left
        if below > 0:
            under, total, equal = _mass(scores, ids, count, top, least, BLOCK)
            target = (total - under + others) * below - others
            at = _least_key(scores, ids, count, top, top, least, target, least.to(tl.int64), high, _BY_WEIGHT, True)
            lesser, total, equal = _mass(scores, ids, count, top, at, BLOCK)
            # What is left of the mass that may go, in tokens of this weight; one token stays.
            fitting = (target - (lesser - under)) / tl.exp(_score(at) - top).to(tl.float64)
            equals = tl.where(fitting < equal - 1, fitting, equal - 1).to(tl.int32)
            least = at
        min_p = tl.load(numbers + 6).to(tl.float32)
        total, moment = _remove(scores, ids, count, top, least, equals, min_p, BLOCK)
        if typical < 1:
            center = top + (moment / total).to(tl.float32)
            nearest, infinity = tl.full((), 0, tl.int64), tl.full((), _INFINITY, tl.int64)
            furthest = _least_key(scores, ids, count, top, center, none, total * typical, nearest, infinity,
                                  _BY_DISTANCE, True)  # fmt: skip
            tl.store(out + 1, center.to(tl.float64))
            tl.store(out + 2, furthest.to(tl.float64))


@triton.jit
def _weights(scores, column, V, out):
    """Return the weights of the tokens that are left, in fp64. out: what is known of their row."""
    bound, center, top = tl.load(out).to(tl.float32), tl.load(out + 1).to(tl.float32), tl.load(out + 3).to(tl.float32)
    score = tl.load(scores + column, mask=column < V, other=_NEVER)
    is_near = tl.abs(score - center).to(tl.int32, bitcast=True) <= tl.load(out + 2).to(tl.int32)
    return tl.where((score >= bound) & is_near & (score > _NEVER), tl.exp(score - top), 0.0).to(tl.float64)


@triton.jit
def _noise(key, number):
    """Return exponential noise in fp64: `noise` of `draw.py`."""
    bits = key.to(tl.uint64) + (number.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    bits = bits ^ (bits >> 31)
    return -tl.log(((bits >> 12).to(tl.float64) + 0.5) * 2.0**-52)


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def race(
    slots_ptr, numbers_ptr, V, scores_ptr, parts_ptr, rows_ptr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write where the group of a chunk begins whose sum / noise is largest, and that; or the first of the largest."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    scores, out, chunks = scores_ptr + slot * V, rows_ptr + slot * _ROW, (V + _CHUNK - 1) // _CHUNK
    parts, uniform = parts_ptr + slot * chunks * _PARTS, tl.load(numbers_ptr + slot * 9 + 8)
    if uniform < 0:
        return
    if tl.load(out + 4) < 0:
        return
    best, winner = tl.full((), -1.0, tl.float64), tl.full((), 0, tl.int32) + V
    if uniform < 1:
        index = tl.arange(0, _CHUNK // GROUP)
        start = chunk * _CHUNK + index * GROUP
        sums = tl.full((_CHUNK // GROUP,), 0.0, tl.float64)
        for group in range(0, (tl.minimum(V - chunk * _CHUNK, _CHUNK) + GROUP - 1) // GROUP):
            column = chunk * _CHUNK + group * GROUP + tl.arange(0, GROUP)
            weight = _weights(scores, column, V, out)
            sums = tl.where(index == group, tl.reduce(weight, 0, _add), sums)
        key = (uniform * 2.0**53).to(tl.int64)
        values = tl.where(start < V, sums / _noise(key, (start // GROUP).to(tl.int64) + _FIRST_GROUP), -1.0)
        best = tl.reduce(values, 0, _larger)
        winner = tl.reduce(tl.where(values == best, start, V), 0, _smaller)
    else:
        top = tl.load(out + 3).to(tl.float32)
        for begin in range(0, tl.minimum(V - chunk * _CHUNK, _CHUNK), BLOCK):
            column = chunk * _CHUNK + begin + tl.arange(0, BLOCK)
            score = tl.load(scores + column, mask=column < V, other=_NEVER)
            first = tl.reduce(tl.where(score == top, column, V), 0, _smaller)
            winner = tl.where(first < winner, first, winner)
    tl.store(parts + chunk * _PARTS + 5, winner.to(tl.float64))
    tl.store(parts + chunk * _PARTS + 6, best)


@triton.jit(do_not_specialize_on_alignment=_POINTERS)
def pick(
    slots_ptr, numbers_ptr, counts_ptr, V, scores_ptr, parts_ptr, rows_ptr, tokens_ptr,
    HAS_COUNTS: tl.constexpr, CHUNKS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write a row's token: that with the largest weight / noise in the best group of all chunks. Its count goes up."""
    slot = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    scores, out, chunks = scores_ptr + slot * V, rows_ptr + slot * _ROW, (V + _CHUNK - 1) // _CHUNK
    parts, uniform = parts_ptr + slot * chunks * _PARTS, tl.load(numbers_ptr + slot * 9 + 8)
    if uniform < 0:
        return
    token = tl.load(out + 4).to(tl.int32)
    if token >= 0:
        chunk = tl.arange(0, CHUNKS)
        best = tl.load(parts + chunk * _PARTS + 6, mask=chunk < chunks, other=-2.0)
        starts = tl.load(parts + chunk * _PARTS + 5, mask=chunk < chunks, other=V).to(tl.int32)
        winner = tl.reduce(tl.where(best == tl.reduce(best, 0, _larger), starts, V), 0, _smaller)
        token = winner
        if uniform < 1:
            key, column = (uniform * 2.0**53).to(tl.int64), winner + tl.arange(0, GROUP)
            values = _weights(scores, column, V, out) / _noise(key, column)
            highest = tl.reduce(values, 0, _larger)
            token = tl.reduce(tl.where(values == highest, column, V), 0, _smaller)
        if HAS_COUNTS:
            drawn = counts_ptr + slot * V + token
            tl.store(drawn, tl.load(drawn) + 2)
    tl.store(tokens_ptr + slot, token.to(tl.int64))


KERNELS = (process, choose_candidates, remove_tokens, race, pick)
"""In the order of their launches."""
_OF_ROWS = ("remove_tokens", "pick")  # a program of the others has a chunk of a row
_FLAGS = {"HAS_BIAS": "bias_ptr", "HAS_COUNTS": "counts_ptr", "HAS_ALLOWED": "allowed_ptr"}


def launch(tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Run the kernels. tensors: by the names of their arguments; None for a table that there is not."""
    logits = tensors["logits_ptr"]
    assert logits is not None
    rows, vocab_size = logits.shape
    arguments: dict[str, Any] = {name: logits if tensor is None else tensor for name, tensor in tensors.items()}
    arguments |= {flag: tensors[name] is not None for flag, name in _FLAGS.items()} | _constants(vocab_size)
    arguments["V"] = vocab_size
    for kernel in KERNELS:
        grid = (rows,) if kernel.__name__ in _OF_ROWS else (rows, -(-vocab_size // CHUNK))
        kernel[grid](**{name: arguments[name] for name in kernel.arg_names}, num_warps=_WARPS)


def _constants(vocab_size: int) -> dict[str, int]:
    """Return what kernels are compiled for. CHUNKS: as many as a row has, or more, a power of two."""
    return {"BLOCK": BLOCK, "GROUP": GROUP, "CHUNKS": max(16, triton.next_power_of_2(triton.cdiv(vocab_size, CHUNK)))}


def to_compile(dtype: DType, vocab_size: int) -> dict[str, TritonKernel]:
    """Return the kernels with everything they can do, and the types of their arguments, by name."""
    types = dict.fromkeys(("numbers_ptr", "parts_ptr", "rows_ptr"), "*fp64")
    types |= dict.fromkeys(("bias_ptr", "scores_ptr", "spans_ptr"), "*fp32")
    types |= dict.fromkeys(("slots_ptr", "counts_ptr", "allowed_ptr", "ids_ptr"), "*i32")
    types |= {"logits_ptr": pointer(dtype), "tokens_ptr": "*i64", "V": "i32"}
    constants: dict[str, int] = dict.fromkeys(_FLAGS, True) | _constants(vocab_size)
    kernels = {}
    for kernel in KERNELS:
        used = {name: constants[name] for name in kernel.arg_names if name in constants}
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        kernels[kernel.__name__] = TritonKernel(kernel, signature, used, _WARPS)
    return kernels
