"""Which positions of a sequence each of several ranks caches: blocks of neighboring tokens, dealt out in turn.

Every rank has a share of any sequence that differs from the others' by a block at most, however long the sequence is,
so that ranks read equally much in each step. Pages are dealt out within: each rank's pool holds a block of every page,
and page tables are the same on all ranks.
Source: Helix, https://arxiv.org/abs/2507.07120, section 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.models.share import WHOLE, Share

if TYPE_CHECKING:
    import torch

    from trtkit.arrays import Array

LINEAR_BLOCK = 16
"""Tokens of a block of linear caches."""


@dataclass(frozen=True)
class ContextShare:
    """The positions that one of several ranks caches. block: neighboring tokens that lie on one rank."""

    share: Share = WHOLE
    block: int = LINEAR_BLOCK

    @property
    def is_whole(self) -> bool:
        """Whether one rank caches all positions."""
        return self.share.count == 1

    @property
    def period(self) -> int:
        """Tokens after which it is the same rank's turn again."""
        return self.block * self.share.count

    @property
    def multiple(self) -> int:
        """Numbers of tokens that this divides lie on all ranks equally, from any such number of tokens on."""
        return 1 if self.is_whole else self.period

    def count(self, tokens: int) -> int:
        """Return how many of a sequence's first `tokens` this rank caches."""
        if self.is_whole:
            return tokens
        turns, rest = divmod(tokens, self.period)
        return turns * self.block + min(max(rest - self.share.index * self.block, 0), self.block)

    def linear_length(self, tokens: int) -> int:
        """Return how many tokens this rank's part of a linear cache of `tokens` holds.

        It is equally long on all ranks. The last block takes new tokens that other ranks cache.
        """
        return tokens if self.is_whole else (-(-tokens // self.period) + 1) * self.block

    def positions(self, length: int) -> Array:
        """Return the positions of the first `length` tokens that this rank caches."""
        places = np.arange(length)
        if self.is_whole:
            return places
        return places // self.block * self.period + self.share.index * self.block + places % self.block

    def is_here(self, positions: torch.Tensor) -> torch.Tensor:
        """Return whether this rank caches the tokens at these positions."""
        return positions // self.block % self.share.count == self.share.index

    def places(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the places of tokens that this rank caches, among all that it does."""
        return positions if self.is_whole else positions // self.period * self.block + positions % self.block


ALL_POSITIONS = ContextShare()


def context_of(share: Share, page_tokens: int | None) -> ContextShare:
    """Return the layout of caches that are linear, or pages of `page_tokens` on all ranks together."""
    if share.count == 1:
        return ALL_POSITIONS
    return ContextShare(share, LINEAR_BLOCK if page_tokens is None else page_tokens // share.count)
