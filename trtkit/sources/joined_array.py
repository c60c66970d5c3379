"""Arrays and low-bit matrices that are slices or concatenations of others, made on reading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.quantized_matrix import QuantizedMatrix


def take_rows(stored: StoredArray, start: int, count: int) -> StoredArray:
    """Return `count` consecutive rows of an array, without a copy."""
    wanted, shape = slice(start, start + count), (count, *stored.shape[1:])
    if stored.is_quantized:
        return take_listed(stored, np.arange(start, min(start + count, stored.shape[0])))
    return StoredArray(shape, lambda: stored.read()[wanted])


def take_columns(stored: StoredArray, start: int, count: int) -> StoredArray:
    """Return `count` consecutive columns of a matrix. Raises SourceError, when read, for a part of a block."""
    wanted, shape = range(start, start + count), (stored.shape[0], count)
    if stored.is_quantized:
        quantized: Callable[[], Array] = lambda: stored.read().column_range(wanted)  # type: ignore[attr-defined] # noqa: E731
        return StoredArray(shape, quantized, is_quantized=True)
    return StoredArray(shape, lambda: stored.read()[:, wanted.start : wanted.stop])


def zero_rows(stored: StoredArray, count: int) -> StoredArray:
    """Return `count` rows of zeros with an array's type and width."""
    shape = (count, *stored.shape[1:])
    return StoredArray(shape, lambda: np.zeros_like(stored.read()[:1], shape=shape))


def take_listed(stored: StoredArray, rows: Array) -> StoredArray:
    """Return the listed rows of an array, in the order of the list."""
    shape = (len(rows), *stored.shape[1:])
    if stored.is_quantized:
        quantized: Callable[[], Array] = lambda: stored.read().rows(rows)  # type: ignore[attr-defined] # noqa: E731
        return StoredArray(shape, quantized, is_quantized=True)
    return StoredArray(shape, lambda: stored.read()[rows])


def joined(parts: Sequence[StoredArray], axis: int) -> StoredArray:
    """Concatenate arrays; return a single one without a copy."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    if parts[0].is_quantized:
        join = join_columns if axis else join_rows
        quantized: Callable[[], Array] = lambda: join([part.read() for part in parts])  # type: ignore # noqa: E731
        return StoredArray(tuple(shape), quantized, is_quantized=True, parts=tuple(parts), axis=axis)
    read: Callable[[], Array] = lambda: np.concatenate([part.read() for part in parts], axis)  # noqa: E731
    return StoredArray(tuple(shape), read, parts=tuple(parts), axis=axis)


def by_key_head(array: Array, keys: int, queries: int) -> Array:
    """Return rows [q | k | v], each of all heads, regrouped by key head. queries: query heads per key head."""
    size = len(array) // (keys * (queries + 2))
    parts = np.split(array, [keys * queries * size, keys * (queries + 1) * size])
    return np.concatenate([part.reshape(keys, -1, *array.shape[1:]) for part in parts], 1).reshape(array.shape)


def join_rows(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Return matrices with the same inputs as one. Raises SourceError if they treat their inputs differently."""
    first = parts[0]
    for other in parts[1:]:
        same_factors = np.array_equal(_or_one(first.input_factors), _or_one(other.input_factors))
        if not same_factors or first.inputs != other.inputs or first.outer_scale != other.outer_scale:
            raise SourceError("ranks scale a layer's inputs differently", fix="write the checkpoint again")
    scales = [part.scales if part.scales.ndim else np.broadcast_to(part.scales, part.shape[:1]) for part in parts]
    is_one = first.scales.ndim == 0 and len({float(part.scales) for part in parts}) == 1
    return replace(
        first,
        codes=np.concatenate([part.codes for part in parts]),
        scales=first.scales if is_one else np.concatenate(scales),
        offsets=None if first.offsets is None else np.concatenate([part.offsets for part in parts]),
    )


def join_columns(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Return matrices of consecutive inputs as one. Raises SourceError if these are quantized differently."""
    first = parts[0]
    if any(part.inputs != first.inputs or part.outer_scale != first.outer_scale for part in parts):
        raise SourceError("ranks scale a layer's inputs differently", fix="write the checkpoint again")
    is_same = first.scales.ndim < 2 and all(np.array_equal(part.scales, first.scales) for part in parts)
    factors = [part.input_factors for part in parts if part.input_factors is not None]
    return replace(
        first,
        codes=np.concatenate([part.codes for part in parts], axis=1),
        scales=first.scales if is_same else np.concatenate([_blocks(part) for part in parts], axis=1),
        offsets=None if first.offsets is None else np.concatenate([part.offsets for part in parts], axis=1),
        input_factors=np.concatenate(factors) if factors else None,
    )


def _blocks(part: QuantizedMatrix) -> Array:
    """Return scales as [out, blocks]."""
    return part.scales if part.scales.ndim == 2 else np.broadcast_to(part.scales.reshape(-1, 1), (part.shape[0], 1))


def _or_one(factors: Array | None) -> Array:
    return np.ones(1) if factors is None else factors
