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
class Masks:
    """Ones and zeros [1, 1, S, S] in fp32, a row for each token.

    up_to: columns of the token and those before it. identity: its own column. merges: for blocks of 1, 2, 4, ...
    tokens, columns of the first block of a pair in the rows of its second.
    """

    up_to: Tensor
    identity: Tensor
    merges: tuple[Tensor, ...]


class Chunk:
    """The new tokens of a call: at most `most` a row. The first `counts` [B] of a row are tokens, the rest padding."""

    def __init__(self, counts: Tensor, most: int) -> None:
        self._counts, self._most = counts, most
        self._is_token: Tensor | None = None
        self._masks: Masks | None = None

    def is_token(self, x: Tensor) -> Tensor:
        """Return [B, 1, S], whether each of the new tokens x [B, S, ...] is one."""
        if self._is_token is None:
            index = x.graph.constant(np.arange(self._most, dtype=np.int32)[None, None], "index")
            self._is_token = take_as_many(index, 2, x, axis_of_other=1) < unsqueeze(self._counts, 1, 2)
        return self._is_token

    def masks(self, x: Tensor) -> Masks:
        """Return the masks for new tokens x [B, S, ...]."""
        if self._masks is None:
            index = np.arange(self._most)
            sizes = [1 << level for level in range((self._most - 1).bit_length())]
            self._masks = Masks(
                _sliced("up_to", index[:, None] >= index, x),
                _sliced("identity", index[:, None] == index, x),
                tuple(_sliced(f"merge_{size}", _pairs(index // size), x) for size in sizes),
            )
        return self._masks


def _pairs(block: Array) -> Array:
    """Return where the rows' block is the second of a pair and the columns' block the first."""
    pairs: Array = (block[:, None] == block + 1) & (block[:, None] % 2 == 1)
    return pairs


def _sliced(name: str, mask: Array, x: Tensor) -> Tensor:
    """Return the first S rows and columns of a mask."""
    whole = x.graph.constant(mask.astype(np.float32)[None, None], name)
    return take_as_many(take_as_many(whole, 2, x, axis_of_other=1), 3, x, axis_of_other=1)
