"""Where tokens lie in caches, and how what is there is copied."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Place = tuple[torch.Tensor, torch.Tensor]
"""Indices of the first axis of caches and of that of tokens, [R] each."""


@dataclass(frozen=True, eq=False)
class NewTokens:
    """Where a call's tokens are written: slots from `first_slot` on, each row's at its start.

    starts, counts: [R] int64, where the caches are. table: [R, n], the rows' pages, if caches are paged.
    """

    first_slot: int
    starts: torch.Tensor
    counts: torch.Tensor
    table: torch.Tensor | None = None


def copy_places(array: torch.Tensor, source: Place, target: Place) -> None:
    """Copy tokens within caches [slots or pages, K, T, H]."""
    array[target[0], :, target[1]] = array[source[0], :, source[1]]


def codes(array: torch.Tensor) -> torch.Tensor:
    """Return values in eight bits as integers, which torch can gather and scatter."""
    return array.view(torch.int8) if array.dtype.itemsize == 1 else array
