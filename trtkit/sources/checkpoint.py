"""A model's weights by name, each mapped or decoded on request."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trtkit.arrays import Array
from trtkit.errors import Problem, ProblemsError
from trtkit.quantized_matrix import QuantizedMatrix

"""A NumPy array; bf16 and fp8 through ml_dtypes."""

_CHUNK_ELEMENTS = 1 << 22
_SHOWN_PROBLEMS = 20
_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class StoredArray:
    """An array that has not been read yet.

    read: maps or decodes it, again at each call. is_quantized: whether it is a `QuantizedMatrix` [out, in], which is
    its layout in all families. parts: the arrays it is concatenated from along `axis`, in order; empty if it is a
    single array. dtype: name of its type in NumPy or ml_dtypes, if the file states it; empty if it is known only after
    reading.
    """

    shape: tuple[int, ...]
    read: Callable[[], Array]
    is_quantized: bool = False
    parts: tuple[StoredArray, ...] = ()
    axis: int = 0
    dtype: str = ""

    @property
    def first(self) -> StoredArray:
        """The first of its parts that is a single array: all have the same type."""
        return self.parts[0].first if self.parts else self

    def matrix(self) -> QuantizedMatrix:
        """Read a quantized matrix."""
        array: object = self.read()
        assert isinstance(array, QuantizedMatrix)
        return array

    def part_with(self, axis: int, start: int, stop: int) -> tuple[StoredArray, int] | None:
        """Return the part that contains all of these rows or columns, and its start; None if no single part does."""
        first = 0
        for part in self.parts if axis == self.axis else ():
            if first <= start and stop <= first + part.shape[axis]:
                return part, first
            first += part.shape[axis]
        return None


class Checkpoint(Mapping[str, Array]):
    """Arrays by name. Accessing one reads it; names and shapes are known without reading."""

    def __init__(self, stored: Mapping[str, StoredArray]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Array:
        return self._stored[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def stored(self, name: str) -> StoredArray:
        return self._stored[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return an array's shape without reading it."""
        return self._stored[name].shape

    def is_quantized(self, name: str) -> bool:
        """Whether an array is a `QuantizedMatrix`, without reading it."""
        return self._stored[name].is_quantized


def converted_elements(checkpoint: Mapping[str, Array], dtype: str, names: Container[str] | None = None) -> int:
    """Return how many floats are known, without reading, to have a type other than `dtype`. names: all if None.

    Quantized matrices are excluded, since they may stay as they are.
    """
    if not isinstance(checkpoint, Checkpoint):
        return 0
    arrays = [checkpoint.stored(name) for name in checkpoint if names is None or name in names]
    floats = (array for array in arrays if not array.is_quantized and array.first.dtype in _FLOATS)
    return sum(math.prod(array.shape) for array in floats if array.first.dtype != dtype)


def check_finite(checkpoint: Mapping[str, Array], where: str = "") -> None:
    """Raise ProblemsError naming every array that contains a NaN or an infinity.

    Works on pieces of a few million elements, so that memory use is constant.
    """
    problems = [problem for name, array in checkpoint.items() if (problem := _not_finite(name, array, where))]
    if problems:
        shown, more = problems[:_SHOWN_PROBLEMS], len(problems) - _SHOWN_PROBLEMS
        rest = [Problem(f"and {more} more")] if more > 0 else []
        fix = "take the weights from their origin again: these are damaged, or overflowed when they were converted"
        raise ProblemsError("weights that are not finite numbers", [*shown, *rest], fix)


def _not_finite(name: str, array: Array, where: str) -> Problem | None:
    """Return what is wrong with one array, None if every value is finite."""
    if isinstance(array, QuantizedMatrix):
        array = array.scales.astype(np.float32)  # codes are finite
    if array.dtype.kind in "biu":
        return None
    bad = sum(int(np.count_nonzero(~np.isfinite(piece))) for piece in _pieces(array))
    return Problem(f"`{name}` has {bad} of {array.size} values that are NaN or infinite", where) if bad else None


def _pieces(array: Array) -> Iterator[Array]:
    """Yield views of an array, split along its first axis."""
    rows = np.atleast_1d(array)
    step = max(1, _CHUNK_ELEMENTS * len(rows) // max(rows.size, 1))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
