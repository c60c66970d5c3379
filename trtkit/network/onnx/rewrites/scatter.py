"""ScatterND and ScatterElements with a reduction.

Constant indices: rounds in which no index occurs twice, each gathered, combined and scattered: exact. Computed ones:
every update is combined with every position through a mask of zeros and ones. `add` sums by a matrix product in fp32
(integers are exact below 2^24); the others reduce the masked updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT32
from trtkit.network.foreign import NotYetKnownError, Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.rule import Writer

_BINARY = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_REDUCED = {"mul": ("prod", 1.0), "max": ("max", -3.4e38), "min": ("min", 3.4e38)}
_MOST_ELEMENTS = 2**26
"""Limit on the mask's elements."""


@dataclass(frozen=True)
class _Places:
    """Updates [R, M, I] for data [R, P, I] at places [R, M]: R rows, M updates, P places, I elements each."""

    data: OnnxValue
    index: OnnxValue
    updates: OnnxValue


def scatter_nd(o: Writer, node: Node) -> Written:
    """Write data, indices [..., k], updates."""
    reduction = node.only("reduction", ("none", *_BINARY), "none")
    node.check_all_read()
    if reduction == "none":
        return None
    data, indices, updates = (node.x(index) for index in (0, 1, 2))
    depth = indices.shape[-1]
    _require_sizes(data, indices)
    sizes = data.shape[:depth]
    if node.known(1):
        return [_in_rounds(o, reduction, node, sizes)]
    weights = [math.prod(sizes[axis + 1 :]) for axis in range(depth)]
    parts = o.split(o.cast(indices, INT32), -1)
    flat = [o.select(part < 0, part + size, part) * weight
            for part, size, weight in zip(parts, sizes, weights, strict=True)]  # fmt: skip
    total = flat[0]
    for part in flat[1:]:
        total = total + part
    count, inner = math.prod(sizes), math.prod(data.shape[depth:])
    many = math.prod(indices.shape[:-1])
    targets = _Places(
        o.reshape(data, [1, count, inner]), o.reshape(total, [1, many]), o.reshape(updates, [1, many, inner])
    )
    return [o.reshape(_masked(o, reduction, targets), data.shape)]


def scatter_elements(o: Writer, node: Node) -> Written:
    """Write data, indices and updates of its rank, along one axis."""
    reduction = node.only("reduction", ("none", *_BINARY), "none")
    axis = node.number("axis", 0)
    node.check_all_read()
    if reduction == "none":
        return None
    data, indices, updates = (node.x(index) for index in (0, 1, 2))
    _require_sizes(data, indices)
    axis %= len(data.shape)
    size, many = data.shape[axis], indices.shape[axis]
    part = data
    for other, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
        part = o.take(part, other, 0, want) if other != axis and have != want else part
    last = [*(other for other in range(len(data.shape)) if other != axis), axis]
    rows = math.prod(size for other, size in enumerate(indices.shape) if other != axis)
    index = o.reshape(o.transpose(o.cast(indices, INT32), last), [rows, many])
    targets = _Places(
        o.reshape(o.transpose(part, last), [rows, size, 1]),
        o.select(index < 0, index + size, index),
        o.reshape(o.transpose(updates, last), [rows, many, 1]),
    )
    result = o.reshape(_masked(o, reduction, targets), [part.shape[other] for other in last])
    result = o.transpose(result, [last.index(other) for other in range(len(last))])
    return [_put_back(o, data, result)]


def _require_sizes(*tensors: OnnxValue) -> None:
    for x in tensors:
        if -1 in x.shape:
            raise NotYetKnownError(f"the shape of `{x.name}` must be known for a reduction; it is {list(x.shape)}")


def _put_back(o: Writer, data: OnnxValue, part: OnnxValue) -> OnnxValue:
    """Return data with the first elements along every axis replaced by `part`."""
    for axis, (have, want) in enumerate(zip(data.shape, part.shape, strict=True)):
        if have != want:
            rest = data
            for other in range(axis + 1, len(data.shape)):
                rest = o.take(rest, other, 0, part.shape[other]) if rest.shape[other] != part.shape[other] else rest
            part = o.concat([part, o.take(rest, axis, want, have - want)], axis)
    return part


def _in_rounds(o: Writer, reduction: str, node: Node, sizes: Sequence[int]) -> OnnxValue:
    """Combine updates at constant positions, in rounds with each position at most once."""
    data, updates = node.x(0), node.x(2)
    indices = node.constant(1, "indices")
    depth = indices.shape[-1]
    flat = indices.reshape(-1, depth) + np.where(indices.reshape(-1, depth) < 0, np.array(sizes), 0)
    rounds = _occurrences([tuple(row) for row in flat])
    rows = o.reshape(updates, [len(flat), *data.shape[depth:]])
    for number in range(max(rounds, default=-1) + 1):
        chosen = np.flatnonzero(np.array(rounds) == number)
        at = o.constant(flat[chosen].astype(np.int64))
        picked = o.gather(rows, o.constant(chosen.astype(np.int32)), 0)
        data = o.scatter_nd(data, at, o.binary(_BINARY[reduction], o.gather_nd(data, at), picked))
    return data


def _occurrences(targets: Sequence[tuple[int, ...]]) -> list[int]:
    """Return, for each position, how often it occurred before."""
    seen: dict[tuple[int, ...], int] = {}
    counts = []
    for target in targets:
        counts.append(seen.get(target, 0))
        seen[target] = counts[-1] + 1
    return counts


def _masked(o: Writer, reduction: str, targets: _Places) -> OnnxValue:
    """Return data combined with all updates of each position."""
    rows, count, inner = targets.data.shape
    many = targets.index.shape[1]
    elements = rows * count * many * (1 if reduction == "add" else inner)
    if elements > _MOST_ELEMENTS:
        raise Refusal(
            f"reduction `{reduction}` of {many} updates at {count} places takes a mask of {elements} elements, "
            f"allowed: {_MOST_ELEMENTS}",
            "scatter what is unique, or fewer updates",
        )
    hit = o.binary("eq", o.unsqueeze(targets.index, 1), o.reshape(o.arange(count, INT32), [1, count, 1]))  # [R, P, M]
    if reduction == "add":
        summed = o.matmul(o.cast(hit, FP32), o.cast(targets.updates, FP32))
        return targets.data + o.cast(summed, targets.data.dtype)
    name, neutral = _REDUCED[reduction]
    wide = o.cast(targets.updates, FP32)
    masked = o.select(o.unsqueeze(hit, 3), o.unsqueeze(wide, 1), neutral)  # [R, P, M, I]
    combined = o.binary(_BINARY[reduction], o.cast(targets.data, FP32), o.reduce(name, masked, [2]))
    return o.cast(combined, targets.data.dtype)


RULES = (Rule("", "ScatterND", scatter_nd), Rule("", "ScatterElements", scatter_elements))
