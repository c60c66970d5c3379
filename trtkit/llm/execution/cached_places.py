"""Locations of tokens in caches, and copies between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.sequences import Ints

Place = tuple["Ints", "Ints"]
"""Indices of the first axis of caches and of the token axis, [R] int64 each."""


@dataclass(frozen=True, eq=False)
class NewTokens:
    """Where a call's tokens are written: from each row's start on.

    slots, starts, counts: [R] int64, on the caches' device. table: [R, n], the rows' pages if caches are paged; for
    rows of one token, [R, 1] is enough.
    """

    slots: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    table: torch.Tensor | None = None


def copy_places(arrays: Sequence[torch.Tensor], source: Place, target: Place) -> None:
    """Copy tokens within caches [slots or pages, K, T, H], with indices on the current stream."""
    device = arrays[0].device
    (rows, positions), (new_rows, new_places) = (
        [to_device(array, device) for array in pair] for pair in (source, target)
    )
    for array in arrays:
        array[new_rows, :, new_places] = array[rows, :, positions]


def codes(array: torch.Tensor) -> torch.Tensor:
    """Return 8-bit values as integers, which torch can gather and scatter."""
    return array.view(torch.int8) if array.dtype.itemsize == 1 else array
