"""Which tokens of a call come before which, for recurrences that are computed for all new tokens at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.ops.shape import take_as_many, unsqueeze

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class BlockLevels:
    """Ones and zeros [1, 1, L, S, S] in fp32 for blocks of 1, 2, 4, ... tokens, after a level of single tokens.

    pairs: of each row, the columns that the level joins it with: those of the block before, if the row's is the second
    of a pair; in the first level, its own. Every column up to a row's own is in one level.
    since_block: columns from the beginning of the row's block up to the row. to_block_end: those after the row up to
    the end of its block. Neither has any in the first level.
    """

    pairs: Tensor
    since_block: Tensor
    to_block_end: Tensor


@dataclass(frozen=True, eq=False)
class Masks:
    """Ones and zeros [1, 1, S, S] in fp32, a row for each token.

    up_to: columns of the token and those before it. identity: its own column. merges: for blocks of 1, 2, 4, ...
    tokens, columns of the first block of a pair in the rows of its second. levels: None if nothing needs them.
    """

    up_to: Tensor
    identity: Tensor
    merges: tuple[Tensor, ...]
    levels: BlockLevels | None = None


class TokenChunk:
    """The new tokens of a call: at most `most` a row. The first `counts` [B] of a row are tokens, the rest padding."""

    def __init__(self, counts: Tensor, most: int) -> None:
        self._counts, self._most = counts, most
        self._is_token: Tensor | None = None
        self._masks: dict[bool, Masks] = {}

    def is_token(self, x: Tensor) -> Tensor:
        """Return [B, 1, S], whether each of the new tokens x [B, S, ...] is one."""
        if self._is_token is None:
            index = x.graph.constant(np.arange(self._most, dtype=np.int32)[None, None], "index")
            self._is_token = take_as_many(index, 2, x, axis_of_other=1) < unsqueeze(self._counts, 1, 2)
        return self._is_token

    def masks(self, x: Tensor, *, has_levels: bool = False) -> Masks:
        """Return the masks for new tokens x [B, S, ...]."""
        if has_levels not in self._masks:
            index = np.arange(self._most)
            sizes = [1 << level for level in range((self._most - 1).bit_length())]
            self._masks[has_levels] = Masks(
                _sliced("up_to", index[:, None] >= index, x),
                _sliced("identity", index[:, None] == index, x),
                tuple(_sliced(f"merge_{size}", _pairs(index // size), x) for size in sizes),
                _levels(index, sizes, x) if has_levels else None,
            )
        return self._masks[has_levels]


def _levels(index: Array, sizes: list[int], x: Tensor) -> BlockLevels:
    """Return the masks of blocks of these sizes."""
    blocks = [index // size for size in sizes]
    is_same = [block[:, None] == block for block in blocks]
    same, none = index[:, None] == index, np.zeros((len(index), len(index)), dtype=bool)
    return BlockLevels(
        _sliced("level_pairs", np.stack([same, *map(_pairs, blocks)]), x),
        _sliced("since_block", np.stack([none, *(same & (index[:, None] >= index) for same in is_same)]), x),
        _sliced("to_block_end", np.stack([none, *(same & (index[:, None] < index) for same in is_same)]), x),
    )


def _pairs(block: Array) -> Array:
    """Return where the rows' block is the second of a pair and the columns' block the first."""
    pairs: Array = (block[:, None] == block + 1) & (block[:, None] % 2 == 1)
    return pairs


def _sliced(name: str, mask: Array, x: Tensor) -> Tensor:
    """Return the first S rows and columns of a mask, the last two axes."""
    whole = x.graph.constant(mask.astype(np.float32)[None, None], name)
    return take_as_many(take_as_many(whole, -2, x, axis_of_other=1), -1, x, axis_of_other=1)
