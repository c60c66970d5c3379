"""Arrays that are cut out of others, or joined from them, when they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.joined import join_columns, join_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array


def take_rows(stored: StoredArray, start: int, count: int) -> StoredArray:
    """Return `count` neighbouring rows of an array, without a copy."""
    wanted, shape = slice(start, start + count), (count, *stored.shape[1:])
    if stored.is_quantized:
        return take_listed(stored, np.arange(start, min(start + count, stored.shape[0])))
    return StoredArray(shape, lambda: stored.read()[wanted])


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
    """Return rows [q | k | v], each of all heads, as those of each key head in turn. queries: heads for a key head."""
    size = len(array) // (keys * (queries + 2))
    parts = np.split(array, [keys * queries * size, keys * (queries + 1) * size])
    return np.concatenate([part.reshape(keys, -1, *array.shape[1:]) for part in parts], 1).reshape(array.shape)
