"""Where tokens lie in caches, and how what is there is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.sequences import Ints

Place = tuple["Ints", "Ints"]
"""Indices of the first axis of caches and of that of tokens, [R] int64 each."""


@dataclass(frozen=True, eq=False)
class NewTokens:
    """Where a call's tokens are written: each row's at its start.

    slots, starts, counts: [R] int64, where the caches are. table: [R, n], the rows' pages, if caches are paged; of rows
    of one token, the page of each is enough.
    """

    slots: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    table: torch.Tensor | None = None


def copy_places(arrays: Sequence[torch.Tensor], source: Place, target: Place) -> None:
    """Copy tokens within caches [slots or pages, K, T, H], with indices on the stream that runs this."""
    device = arrays[0].device
    (rows, positions), (new_rows, new_places) = (
        [to_device(array, device) for array in pair] for pair in (source, target)
    )
    for array in arrays:
        array[new_rows, :, new_places] = array[rows, :, positions]


def codes(array: torch.Tensor) -> torch.Tensor:
    """Return values in eight bits as integers, which torch can gather and scatter."""
    return array.view(torch.int8) if array.dtype.itemsize == 1 else array
