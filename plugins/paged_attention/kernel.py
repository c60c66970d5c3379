"""Attention over paged caches as one kernel: keys and values are read where they are, with a running softmax.

Programs may share a sequence's keys. Each then gives attention to its part of them, to be merged as
`trtkit.network.ops.attention.merged_attention` does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl

from trtkit.network.aot import Launch, TritonKernel, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.dtypes import DType

    from .op import PagedAttentionAttributes

# Rows of a program's matrix products: query heads of one group times tokens. With 64 or more, Triton emits
# instructions that only one generation of GPUs has.
_MOST_ROWS = 32
# Elements per program: of queries, and of a step's keys or values.
_QUERY_ELEMENTS, _KEY_ELEMENTS = 4096, 2048
_MOST_KEYS = 64
_LEAST = 16  # minimum size of a matrix product
_SINKS = 8  # index of the input with sinks
_LOWEST = tl.constexpr(-1e30)
NO_SINK = -math.inf
"""A sink without any share of the softmax."""
SCALARS = ("S", "K", "TABLE", "KEY_SCALE", "VALUE_SCALE")
_CACHED = ("key_pool_ptr", "value_pool_ptr", "new_key_ptr", "new_value_ptr")
_CODES = {"int8": "*i8", "fp8": "*u8"}  # fp8 as bits: Triton has no such type for sm_80
_INDICES = ("page_table_ptr", "cached_lengths_ptr", "counts_ptr")


@triton.jit
def _larger(a, b):
    """Return the larger number."""
    return tl.where(a > b, a, b)


@triton.jit
def _sum(a, b):
    """Return the sum."""
    return a + b


@triton.jit
def _real(x, like, CODE: tl.constexpr):
    """Return keys or values in the type of `like`, which represents every code exactly; fp8 comes as bits."""
    if CODE == "fp8":
        # fp16 has 7 more mantissa bits than e4m3 and an exponent bias 8 larger: shifted bits are 2^8 times too small.
        bits, size = x.to(tl.uint16), x.to(tl.uint16) & 0x7F
        half = (((bits & 0x80) << 8) | (size << 7)).to(tl.float16, bitcast=True) * 256.0
        x = tl.where(size == 0x7F, float("nan"), half)
    return x.to(like.dtype)


@triton.jit
def _step(q, state, keys, values, position, rows, CODE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """Add a block of keys to a running softmax. keys: pointers [SIZE, KEYS] and their scale.

    values: pointers [KEYS, SIZE] and the mask of existing channels.
    state: the largest score, the sum of exponentials [ROWS], the weighted values [ROWS, SIZE].
    position: the keys' positions [KEYS], and which keys exist. rows: the queries' positions [ROWS].
    """
    largest, total, y = state
    at, exists = position
    key_ptr, key_scale, value_ptr, has_channel = keys[0], keys[1], values[0], values[1]
    key = _real(tl.load(key_ptr, mask=has_channel[:, None] & exists[None, :], other=0), q, CODE)
    scores = tl.dot(q, key, input_precision="ieee") * key_scale
    if SOFTCAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores = SOFTCAP - 2.0 * SOFTCAP / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0)
    is_seen = exists[None, :] & (at[None, :] <= rows[:, None])
    if WINDOW > 0:
        is_seen = is_seen & (at[None, :] > rows[:, None] - WINDOW)
    top = tl.reduce(tl.where(is_seen, scores, _LOWEST), 1, _larger)
    new_largest = tl.where(top > largest, top, largest)
    shares = tl.where(is_seen, tl.exp(scores - new_largest[:, None]), 0.0)
    fade = tl.exp(largest - new_largest)
    value = _real(tl.load(value_ptr, mask=exists[:, None] & has_channel[None, :], other=0), q, CODE)
    y = tl.dot(shares.to(value.dtype), value, y * fade[:, None], input_precision="ieee")
    return new_largest, total * fade + tl.reduce(shares, 1, _sum), y


@triton.jit
def _write(
    y_ptr, at_row, rows, part, state, y, is_row, is_token, has_channel,
    H: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Write rows of y [ROWS, SIZE]; of a part also the largest score and the sum of exponentials in `state`."""
    if PARTS == 1:
        y_row = y_ptr + at_row * H
    else:
        y_row = y_ptr + (part * rows + at_row) * (H + 2)
    is_there = is_row[:, None] & has_channel[None, :]
    tl.store(y_row[:, None] + tl.arange(0, SIZE)[None, :], y.to(y_ptr.dtype.element_ty), mask=is_there)
    if PARTS > 1:
        tl.store(y_row + H, tl.where(is_token, tl.maximum(state[0], _LOWEST), 0.0), mask=is_row)
        tl.store(y_row + H + 1, tl.where(is_token, state[1], 1.0), mask=is_row)


@triton.jit
def paged_attention(
    q_ptr, key_pool_ptr, value_pool_ptr, new_key_ptr, new_value_ptr, page_table_ptr, cached_lengths_ptr, counts_ptr,
    sinks_ptr, S, K, TABLE, KEY_SCALE, VALUE_SCALE, y_ptr,
    H: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    CODE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Compute ROWS // HEADS tokens of HEADS query heads that share a key/value head; sums are in fp32.

    With several PARTS, y is [PARTS, B, N, S, H + 2] in fp32: attention to a part of the keys, the largest score there,
    and the sum of their exponentials. The first part has the sink, the last one the new tokens.
    """
    splits = (GROUP + HEADS - 1) // HEADS
    part, program = tl.program_id(1) % PARTS, tl.program_id(1) // PARTS
    first, head = tl.program_id(0) * (ROWS // HEADS), program // splits
    batch = tl.program_id(2).to(tl.int64)  # int64, so that offsets do not overflow
    cached, count = tl.load(cached_lengths_ptr + batch), tl.load(counts_ptr + batch)
    row, channel, key = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, KEYS)
    token, member = first + row // HEADS, (program % splits) * HEADS + row % HEADS
    query_head = head * GROUP + member
    is_row = (row < (ROWS // HEADS) * HEADS) & (token < S) & (member < GROUP)
    is_token, has_channel = is_row & (token < count), channel < H
    at_row = (batch * K * GROUP + query_head) * S + token
    q_row = q_ptr + at_row * H
    q = tl.load(q_row[:, None] + channel[None, :], mask=is_token[:, None] & has_channel[None, :], other=0.0)
    key_scale, value_scale = KEY_SCALE.to(tl.float32, bitcast=True), VALUE_SCALE.to(tl.float32, bitcast=True)
    sinks = tl.load(sinks_ptr + query_head, mask=is_row, other=0.0).to(tl.float32)
    if PARTS > 1:
        sinks = tl.where(part == 0, sinks, -float("inf"))
    state = sinks, tl.full((ROWS,), 1.0, tl.float32), tl.full((ROWS, SIZE), 0.0, tl.float32)
    end = tl.minimum(first + ROWS // HEADS, count)  # end of the new tokens that the program's tokens attend to
    oldest, newest = cached * 0, first * 0
    if WINDOW > 0:
        oldest = tl.maximum(cached + first - WINDOW + 1, 0)
        newest = tl.maximum(first - WINDOW + 1, 0)
    beyond = tl.where(first < count, cached, 0)  # no cached tokens if all new ones are padding
    if PARTS > 1:
        share = (tl.maximum(beyond - oldest, 0) + PARTS - 1) // PARTS
        oldest += part * share
        beyond = tl.minimum(beyond, oldest + share)
        end = tl.where(part == PARTS - 1, end, 0)
    for start in range(oldest, beyond, KEYS):
        at = start + key
        exists = at < beyond
        page = tl.load(page_table_ptr + batch * TABLE + at // PAGE, mask=exists, other=0).to(tl.int64)
        offset = ((page * K + head) * PAGE + at % PAGE) * H
        keys = key_pool_ptr + (offset[None, :] + channel[:, None]), key_scale
        values = value_pool_ptr + (offset[:, None] + channel[None, :]), has_channel
        state = _step(q, state, keys, values, (at, exists), cached + token, CODE, WINDOW, SOFTCAP)
    for start in range(newest, end, KEYS):
        at = start + key
        offset = ((batch * K + head) * S + at) * H
        keys = new_key_ptr + (offset[None, :] + channel[:, None]), key_scale
        values = new_value_ptr + (offset[:, None] + channel[None, :]), has_channel
        state = _step(q, state, keys, values, (at, at < end), token, CODE, WINDOW, SOFTCAP)
    total = tl.where(state[1] > 0.0, state[1], 1.0)  # 0 if a part has no key in the window
    y = tl.where(is_token[:, None], state[2] * value_scale / total[:, None], 0.0)
    rows = tl.num_programs(2) * K * GROUP * S  # of one part
    _write(y_ptr, at_row, rows, part, state, y, is_row, is_token, has_channel, H, SIZE, PARTS)


def plan(
    shapes: Sequence[Sequence[Any] | None], attributes: PagedAttentionAttributes, cdiv: Callable[[Any, int], Any]
) -> Launch:
    """Return the launch parameters. shapes: of the inputs; B, S, P and n may be TensorRT symbols."""
    q, pool, table = shapes[0], shapes[1], shapes[5]
    assert q is not None
    assert pool is not None
    assert table is not None
    shared, page, size = int(pool[1]), int(pool[2]), int(pool[3])
    group, tokens = int(q[1]) // shared, q[2]
    padded = max(triton.next_power_of_2(size), _LEAST)
    most = max(min(_MOST_ROWS, _QUERY_ELEMENTS // padded), _LEAST)
    heads = min(group, most)
    constants = {
        "H": size, "PAGE": page, "GROUP": group, "WINDOW": attributes.window, "SOFTCAP": float(attributes.softcap),
        "CODE": attributes.quantization, "HEADS": heads, "ROWS": _rows(heads, tokens, most),
        "KEYS": min(max(_KEY_ELEMENTS // padded, _LEAST), _MOST_KEYS), "SIZE": padded, "PARTS": attributes.parts,
    }  # fmt: skip
    scales = np.array([attributes.key_scale, attributes.value_scale], np.float32).view(np.int32).tolist()  # their bits
    scalars = dict(zip(SCALARS, (tokens, shared, table[1], *scales), strict=True))
    grid = (cdiv(tokens, constants["ROWS"] // heads), shared * triton.cdiv(group, heads) * attributes.parts, q[0])
    return Launch(grid, scalars, constants)


def _rows(heads: int, tokens: Any, most: int) -> int:
    """Return the rows per program: a power of 2 with room for the heads, but not for more tokens than there are."""
    wanted: int = triton.next_power_of_2(tokens * heads) if isinstance(tokens, int) else most
    return min(max(wanted, _LEAST), most)


def launch(inputs: Sequence[torch.Tensor | None], attributes: PagedAttentionAttributes) -> list[torch.Tensor]:
    """Run the kernel on tensors, and merge its parts."""
    y = run(inputs, attributes)
    if attributes.parts == 1:
        return [y]
    weights = torch.softmax(y[..., -2] + y[..., -1].log(), 0)
    return [(weights.unsqueeze(-1) * y[..., :-2]).sum(0).to(inputs[0])]


def run(inputs: Sequence[torch.Tensor | None], attributes: PagedAttentionAttributes) -> torch.Tensor:
    """Run the kernel on tensors; return its own output, NaN wherever it writes nothing."""
    tensors = [x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x for x in inputs if x is not None]
    started, q = plan([x.shape for x in tensors], attributes, triton.cdiv), tensors[0]
    dtype = q.dtype if attributes.parts == 1 else torch.float32
    y = q.new_full(output_shape(q.shape, attributes), torch.nan, dtype=dtype)
    if len(tensors) == _SINKS:
        tensors.append(q.new_full((q.shape[1],), NO_SINK))
    paged_attention[started.grid](
        *tensors, *started.scalars.values(), y, **started.constants, num_warps=started.num_warps
    )
    return y


def output_shape(q: Sequence[Any], attributes: PagedAttentionAttributes) -> list[Any]:
    """Return the shape of the kernel's output for queries of shape `q`."""
    return [*q] if attributes.parts == 1 else [attributes.parts, *q[:3], q[3] + 2]


def to_compile(dtype: DType, started: Launch) -> TritonKernel:
    """Return the kernel and the types of its arguments."""
    data = pointer(dtype)
    cached = dict.fromkeys(_CACHED, _CODES.get(started.constants["CODE"], data))
    inputs = {"q_ptr": data, **cached, **dict.fromkeys(_INDICES, "*i32"), "sinks_ptr": data}
    y = data if started.constants["PARTS"] == 1 else "*fp32"
    signature = {**inputs, **dict.fromkeys(SCALARS, "i32"), "y_ptr": y}
    types = dict.fromkeys(started.constants, "constexpr")
    return TritonKernel(paged_attention, signature | types, dict(started.constants), started.num_warps)
