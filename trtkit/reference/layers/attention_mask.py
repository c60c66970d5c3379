"""What the queries of an attention may attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trtkit.reference.layer import Tensor

# Shapes: B sequences, S new tokens, T cached tokens, N query heads, K key/value heads.

_BLOCK_ROWS = 128
"""Rows of a block: fewer make too many small products, more read columns that only some rows need; measured."""


@dataclass(frozen=True)
class MaskSizes:
    """What a mask is made for. group: query heads per key/value head. dtype: of scores. causal: CausalMaskKind."""

    rows: int
    columns: int
    heads: int
    group: int
    dtype: torch.dtype
    causal: str
    device: torch.device


@dataclass(frozen=True)
class Block:
    """Rows of the queries, the first columns of the keys that they may attend to, and the mask for both."""

    rows: slice
    columns: int
    mask: Tensor | None


def visible_blocks(mask: Tensor | None, lengths: Tensor | None, to: MaskSizes) -> list[Block]:
    """Return what mask, causality and lengths together let the queries see, which layers of the same sizes share.

    Columns after the last that any row of a block may attend to are left out: they would get no weight. Not on a GPU,
    which would have to be waited for.
    """
    columns, is_on_cpu = to.columns, to.device.type == "cpu"
    if lengths is not None and is_on_cpu:
        columns = min(columns, max(int(lengths.max()), 1))
        mask = mask if mask is None or mask.shape[-1] == 1 else mask[..., :columns]
    combined = _combined_mask(mask, lengths, columns, to)
    if combined is None:
        return [Block(slice(None), columns, None)]
    if not is_on_cpu or combined.dtype != torch.bool or combined.shape[-1] != columns:
        return [Block(slice(None), columns, _rows_of_groups(combined, to.rows, to))]
    size = _BLOCK_ROWS if combined.shape[2] == to.rows > _BLOCK_ROWS else max(to.rows, 1)
    starts = range(0, max(to.rows, 1), size)
    return [_block(combined[:, :, start : start + size], slice(start, start + size), to) for start in starts]


def _block(mask: Tensor, rows: slice, to: MaskSizes) -> Block:
    """Return a block of rows without the columns after the last that is true in any of them; one at least stays."""
    used = mask.flatten(0, -2).any(0).nonzero()
    columns = int(used[-1]) + 1 if len(used) else 1
    count = min(rows.stop, to.rows) - rows.start
    return Block(rows, columns, _rows_of_groups(mask[..., :columns], count, to))


def _rows_of_groups(mask: Tensor, rows: int, to: MaskSizes) -> Tensor:
    """Return a mask [B, N or 1, S or 1, T] for queries whose heads became rows: [B, K or 1, group * S or 1, T]."""
    if to.group == 1 or mask.shape[1:3] == (1, 1):
        return mask
    mask = mask.expand(-1, -1, rows, -1)
    if mask.shape[1] > 1:
        return mask.reshape(mask.shape[0], to.heads, to.group * rows, -1)
    return mask.repeat(1, 1, to.group, 1)


def _combined_mask(mask: Tensor | None, lengths: Tensor | None, columns: int, to: MaskSizes) -> Tensor | None:
    """Return the mask of mask, causality and lengths together: true where a row may attend, or what is added."""
    allowed = _allowed(lengths, columns, to)
    if mask is None or allowed is None:
        return allowed if mask is None else mask if mask.dtype == torch.bool else mask.to(to.dtype)
    if mask.dtype == torch.bool:
        return mask & allowed
    return torch.where(allowed, mask.to(to.dtype), -float("inf"))


def _allowed(lengths: Tensor | None, columns: int, to: MaskSizes) -> Tensor | None:
    """Return what causality and lengths allow, [B or 1, 1, S or 1, columns]; None if that is all."""
    column = torch.arange(columns, device=to.device)
    allowed = None if lengths is None else (column < lengths.reshape(-1, 1)).reshape(-1, 1, 1, columns)
    if to.causal == "NONE":
        return allowed
    row = torch.arange(to.rows, device=to.device).reshape(1, 1, -1, 1)
    if to.causal == "LOWER_RIGHT":
        row = row + ((columns if lengths is None else lengths.reshape(-1, 1, 1, 1)) - to.rows)
    causal = column <= row
    return causal if allowed is None else allowed & causal
