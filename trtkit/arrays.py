"""What arrays are called in annotations: their types and shapes are in docstrings."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
"""By the name of an input or an output."""
HeightWidth = tuple[int, int]
"""Of pictures, kernels and feature maps; of a grid, its rows and columns."""
WidthHeight = tuple[int, int]
"""Of pictures as PIL gives them, in pixels."""
MatrixShape = tuple[int, int]
"""Rows and columns of a matrix or of a block."""


def compact(array: Array) -> Array:
    """Return a view without the rest of the memory that it is a part of; as it is where that is mapped from a file."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    is_part = isinstance(owner, np.ndarray) and owner.nbytes > array.nbytes
    return array.copy() if is_part else array
