"""Guesses of what follows sequences: chains, or trees with alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.execution import CallTree

if TYPE_CHECKING:
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True, eq=False)
class Drafts:
    """Guesses of what follows sequences.

    tokens: [R, K], -1 after a row's last. parents: [R, K], the column of the guess that each follows, -1 for the
    sequence's last token; in depth-first order. None: each follows the one before it.
    """

    tokens: Ints
    parents: Ints | None = None

    @property
    def counts(self) -> Ints:
        """How many guesses each row has, [R]."""
        counts: Ints = (self.tokens >= 0).sum(1)
        return counts

    @cached_property
    def depths(self) -> Ints:
        """How many tokens each guess is after the sequence's last, [R, K]."""
        rows, width = self.tokens.shape
        if self.parents is None:
            return np.broadcast_to(np.arange(1, width + 1), (rows, width))
        depths = np.ones((rows, width), np.int64)
        for column in range(width):
            parent = self.parents[:, column]
            above = depths[np.arange(rows), np.maximum(parent, 0)]
            depths[:, column] = np.where(parent < 0, 1, above + 1)
        return depths

    def of_rows(self, rows: Ints, count: int) -> Drafts:
        """Return these as the guesses of `rows` of `count`; the other rows have none."""
        parents = None if self.parents is None else _spread(self.parents, rows, count)
        return Drafts(_spread(self.tokens, rows, count), parents)

    def up_to(self, depths: Ints, most: int) -> Drafts:
        """Return at most the first `most` guesses of each row, and none after `depths` [R] more tokens."""
        is_kept = (self.tokens >= 0) & (self.depths <= depths[:, None]) & (np.arange(self.tokens.shape[1]) < most)
        if self.parents is None:
            return Drafts(np.where(is_kept, self.tokens, -1)[:, : is_kept.sum(1).max(initial=0)])
        return self._only(is_kept)

    def padded(self, width: int) -> Drafts:
        """Return the same guesses in `width` columns."""
        more = ((0, 0), (0, width - self.tokens.shape[1]))
        parents = None if self.parents is None else np.pad(self.parents, more, constant_values=-1)
        return Drafts(np.pad(self.tokens, more, constant_values=-1), parents)

    def tree(self) -> CallTree | None:
        """Return how the sequence's last token and its guesses lie in a call; None for chains."""
        if self.parents is None:
            return None
        return CallTree(np.pad(self.depths, ((0, 0), (1, 0))), self.ends_after_last())

    def children(self, rows: Ints, columns: Ints, tokens: Ints) -> Ints:
        """Return the columns of the guesses of `tokens` that follow those in `columns`, [N] each; -1 for none.

        rows: [N]. A column of -1 is the sequence's last token.
        """
        own = self.tokens[rows]
        parents = np.arange(-1, own.shape[1] - 1)[None] if self.parents is None else self.parents[rows]
        is_child = (parents == columns[:, None]) & (own == tokens[:, None])
        children: Ints = np.where(is_child.any(1), is_child.argmax(1), -1)
        return children

    def ends_after_last(self) -> Ints:
        """Return the place after the last descendant of the sequence's last token and of each guess, [R, 1 + K]."""
        rows, width = self.tokens.shape
        assert self.parents is not None
        ends = np.broadcast_to(np.arange(1, width + 2), (rows, width + 1)).copy()
        for column in reversed(range(width)):
            parent, row = self.parents[:, column] + 1, np.arange(rows)
            ends[row, parent] = np.maximum(ends[row, parent], ends[:, column + 1])
        return ends

    def _only(self, is_kept: Bools) -> Drafts:
        """Return guesses that are kept, with all that they follow, in the same order."""
        assert self.parents is not None
        for column in range(self.tokens.shape[1]):  # nothing follows what is not kept
            parent = self.parents[:, column]
            is_kept[:, column] &= (parent < 0) | is_kept[np.arange(len(parent)), np.maximum(parent, 0)]
        order = np.argsort(~is_kept, axis=1, kind="stable")[:, : is_kept.sum(1).max(initial=0)]
        places = np.cumsum(is_kept, 1) - 1
        moved = np.where(self.parents < 0, -1, np.take_along_axis(places, np.maximum(self.parents, 0), 1))
        tokens = np.take_along_axis(np.where(is_kept, self.tokens, -1), order, 1)
        return Drafts(tokens, np.where(tokens < 0, -1, np.take_along_axis(moved, order, 1)))


def _spread(array: Ints, rows: Ints, count: int) -> Ints:
    spread = np.full((count, array.shape[1]), -1)
    spread[rows] = array
    return spread
