"""Context parallelism: ranks share a sequence's cached positions, in blocks of adjacent tokens assigned round-robin.

At any length, the ranks' shares differ by at most one block, so all ranks read about equally much in each step. Each
rank's pool holds its block of every page, so page tables are the same on all ranks.
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
"""Tokens per block of linear caches."""


@dataclass(frozen=True)
class ContextShare:
    """One rank's share of a sequence's cached positions. block: how many adjacent tokens go to the same rank."""

    share: Share = WHOLE
    block: int = LINEAR_BLOCK

    @property
    def is_whole(self) -> bool:
        """Whether this rank caches all positions."""
        return self.share.count == 1

    @property
    def period(self) -> int:
        """Number of tokens after which the assignment to ranks repeats."""
        return self.block * self.share.count

    @property
    def multiple(self) -> int:
        """Multiples of this many tokens are split equally among the ranks, from any such multiple on."""
        return 1 if self.is_whole else self.period

    def count(self, tokens: int) -> int:
        """Return how many of a sequence's first `tokens` this rank caches."""
        if self.is_whole:
            return tokens
        turns, rest = divmod(tokens, self.period)
        return turns * self.block + min(max(rest - self.share.index * self.block, 0), self.block)

    def linear_length(self, tokens: int) -> int:
        """Return this rank's length of a linear cache of `tokens` tokens.

        It is the same on all ranks. The extra last block takes the new tokens that other ranks cache.
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
        """Return where in this rank's cache the tokens at these positions are; the rank must hold them."""
        return positions if self.is_whole else positions // self.period * self.block + positions % self.block


ALL_POSITIONS = ContextShare()


def context_of(share: Share, page_tokens: int | None) -> ContextShare:
    """Return a rank's share of linear caches, or of pages of `page_tokens` tokens, counted over all ranks."""
    if share.count == 1:
        return ALL_POSITIONS
    return ContextShare(share, LINEAR_BLOCK if page_tokens is None else page_tokens // share.count)
