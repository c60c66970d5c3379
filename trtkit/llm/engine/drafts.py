"""Draft tokens of sequences: chains, or trees with alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.execution import CallTree
from trtkit.runtime.device import start_copy

if TYPE_CHECKING:
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True, eq=False)
class Drafts:
    """Draft tokens ("guesses") of R sequences.

    tokens: [R, K], padded with -1. parents: [R, K], in depth-first order, the column of the guess that each one
    follows, -1 for the sequence's last token; None for chains, in which each guess follows the one before it.
    """

    tokens: Ints
    parents: Ints | None = None

    @property
    def counts(self) -> Ints:
        """Number of guesses of each row, [R]."""
        counts: Ints = (self.tokens >= 0).sum(1)
        return counts

    @cached_property
    def depths(self) -> Ints:
        """Distance of each guess from the sequence's last token, [R, K]; 1 for the next token."""
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
        """Return the guesses spread over `count` rows: row i becomes row `rows[i]`; the others have none."""
        parents = None if self.parents is None else _spread(self.parents, rows, count)
        return Drafts(_spread(self.tokens, rows, count), parents)

    def up_to(self, depths: Ints, most: int) -> Drafts:
        """Return at most the first `most` guesses of each row, up to depth `depths` [R]."""
        is_kept = (self.tokens >= 0) & (self.depths <= depths[:, None]) & (np.arange(self.tokens.shape[1]) < most)
        if self.parents is None:
            return Drafts(np.where(is_kept, self.tokens, -1)[:, : is_kept.sum(1).max(initial=0)])
        return self._only(is_kept)

    def padded(self, width: int) -> Drafts:
        """Return the guesses padded to `width` columns."""
        more = ((0, 0), (0, width - self.tokens.shape[1]))
        parents = None if self.parents is None else np.pad(self.parents, more, constant_values=-1)
        return Drafts(np.pad(self.tokens, more, constant_values=-1), parents)

    def tree(self) -> CallTree | None:
        """Return the tree that each sequence's last token and guesses form in a call; None for chains."""
        if self.parents is None:
            return None
        return CallTree(np.pad(self.depths, ((0, 0), (1, 0))), self.ends_after_last())

    def children(self, rows: Ints, columns: Ints, tokens: Ints) -> Ints:
        """Return the columns of those children of guesses `columns` [N] that guess `tokens` [N]; -1 if there is none.

        rows: [N]. Column -1 is the sequence's last token.
        """
        own_tokens = self.tokens[rows]
        parents = np.arange(-1, own_tokens.shape[1] - 1)[None] if self.parents is None else self.parents[rows]
        is_child = (parents == columns[:, None]) & (own_tokens == tokens[:, None])
        children: Ints = np.where(is_child.any(1), is_child.argmax(1), -1)
        return children

    def ends_after_last(self) -> Ints:
        """Return the index after the last descendant of the sequence's last token and of each guess, [R, 1 + K]."""
        rows, width = self.tokens.shape
        assert self.parents is not None
        ends = np.broadcast_to(np.arange(1, width + 2), (rows, width + 1)).copy()
        for column in reversed(range(width)):
            parent, row = self.parents[:, column] + 1, np.arange(rows)
            ends[row, parent] = np.maximum(ends[row, parent], ends[:, column + 1])
        return ends

    def _only(self, is_kept: Bools) -> Drafts:
        """Return the guesses to keep whose ancestors are kept too, in the same order."""
        assert self.parents is not None
        for column in range(self.tokens.shape[1]):  # a guess goes with its parent
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


class GuessTree:
    """A draft tree for each of R sequences: the chain of drawn guesses, and the likeliest alternatives.

    The chain is always kept. An alternative's likelihood is the product of the draft head's probabilities along its
    branch, so that its ancestors are at least as likely and are kept with it.
    Source: dynamic draft trees (EAGLE-2), https://arxiv.org/abs/2406.16858.

    depth: length of the chain. most: limit on guesses per sequence, the chain included.
    """

    def __init__(self, rows: int, depth: int, most: int) -> None:
        self._depth, self._most = depth, most
        self._drawn: list[tuple[torch.Tensor, bool]] = []  # each level, and whether all its parents branch
        self._tokens, self._parents = np.zeros((2, rows, 0), np.int64)
        self._scores = np.zeros((rows, 0))  # logarithms; -inf for no guess
        self._is_drawn = np.zeros((rows, 0), np.bool_)
        self._paths = np.zeros((rows, 0, depth), np.int64)  # 1-based ranks among siblings along the branch
        self._level = np.full((rows, 1), -1)  # columns of the last level's guesses, the drawn one first
        self._levels = 0

    def grow(self, logits: torch.Tensor, drawn: torch.Tensor) -> None:
        """Add a level after the last drawn guesses: `drawn` [R], and alternatives that are likely by logits [R, V].

        Does not wait: the tree is built when `drafts` is called.
        """
        self._drawn.append((_likely(logits, drawn, self._most - self._depth), False))

    def grow_everywhere(self, logits: torch.Tensor, drawn: torch.Tensor) -> None:
        """Add a level after all likely guesses of the last one, for draft heads whose logits do not depend on them."""
        self._drawn.append((_likely(logits, drawn, self._most - self._depth), True))

    def drafts(self) -> Drafts:
        """Wait for all levels at once and return the guesses."""
        levels = start_copy(torch.stack([level for level, _ in self._drawn]))()
        if self._most == self._depth:
            return Drafts(levels[:, :, 0].T.astype(np.int64))
        for level, (_, is_everywhere) in zip(levels, self._drawn, strict=True):
            branches = max(1, self._most - self._depth) if is_everywhere else 1
            self._lay_out(self._level[:, :branches], level)
        order = np.lexsort((-self._scores, ~self._is_drawn), axis=-1)[:, : self._most]
        is_none = np.isneginf(_of(self._scores, order))
        paths = np.where(is_none[..., None], self._tokens.shape[1] + 1, _of(self._paths, order))
        depth_first = np.lexsort(tuple(np.moveaxis(paths, -1, 0)[::-1]), axis=-1)
        order, is_none = _of(order, depth_first), _of(is_none, depth_first)
        places = np.zeros_like(self._tokens)
        np.put_along_axis(places, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), 1)
        parents = _of(self._parents, order)
        parents = np.where((parents < 0) | is_none, -1, _of(places, np.maximum(parents, 0)))
        return Drafts(np.where(is_none, -1, _of(self._tokens, order)), parents)

    def _lay_out(self, parents: Ints, level: np.ndarray) -> None:
        """Add a level after `parents` [R, N], guesses of the last level, the drawn one first.

        level: a result of `_likely`.
        """
        count = level.shape[1] // 2 - 1
        drawn, tokens = level[:, 0].astype(np.int64), level[:, 2 : 2 + count].astype(np.int64)
        of_drawn, logprobs = level[:, 1], level[:, 2 + count :]
        logprobs = np.where(logprobs < _UNKNOWN, -np.inf, logprobs)
        held = _of(self._scores, np.maximum(parents, 0)) if self._levels else np.zeros(parents.shape)
        scores = held[:, :, None] + logprobs[:, None]
        scores[:, 0][tokens == drawn[:, None]] = -np.inf  # already in the chain
        shape, first = scores.shape, self._tokens.shape[1]
        self._add(
            np.concatenate([drawn[:, None], np.tile(tokens, (1, shape[1]))], 1),
            np.concatenate([parents[:, :1], np.repeat(parents, shape[2], 1)], 1),
            np.concatenate([np.where(drawn < 0, -np.inf, held[:, 0] + of_drawn)[:, None], _flat(scores)], 1),
            np.concatenate([[1], np.tile(np.arange(2, 2 + shape[2]), shape[1])]),
        )
        by_score = np.argsort(-self._scores[:, first + 1 :], axis=1, kind="stable") + first + 1
        self._level = np.concatenate([np.full((len(drawn), 1), first), by_score], 1)

    def _add(self, tokens: Ints, parents: Ints, scores: np.ndarray, ranks: Ints) -> None:
        """Add guesses [R, N], the drawn one first. ranks: [N], their 1-based positions among their siblings."""
        paths = np.zeros((*tokens.shape, self._depth), np.int64)
        if self._levels:
            paths = _of(self._paths, np.maximum(parents, 0))
        paths[..., self._levels] = ranks
        is_drawn = np.zeros(tokens.shape, np.bool_)
        is_drawn[:, 0] = ~np.isneginf(scores[:, 0])
        self._tokens, self._parents = (
            np.concatenate(pair, 1) for pair in ((self._tokens, tokens), (self._parents, parents))
        )
        self._scores = np.concatenate([self._scores, scores], 1)
        self._is_drawn = np.concatenate([self._is_drawn, is_drawn], 1)
        self._paths = np.concatenate([self._paths, paths], 1)
        self._levels += 1


def _likely(logits: torch.Tensor, drawn: torch.Tensor, alternatives: int) -> torch.Tensor:
    """Return a level as [R, 2 + 2N] float64: drawn tokens, their log probabilities, the likeliest tokens, theirs.

    Without alternatives, only the drawn tokens, [R, 1]. float64 holds token ids exactly, so one copy takes all of it
    to the host.
    """
    if not alternatives:
        return drawn[:, None].double()
    logprobs = torch.log_softmax(logits.float(), -1)
    of_drawn = logprobs.gather(1, drawn.clamp(min=0)[:, None])
    values, tokens = logprobs.topk(min(alternatives + 1, logits.shape[1]))
    return torch.cat([part.double() for part in (drawn[:, None], of_drawn, tokens, values)], 1)


def _flat(array: np.ndarray) -> np.ndarray:
    """Join the last two axes."""
    return array.reshape(len(array), -1)


def _of(array: np.ndarray, order: Ints) -> np.ndarray:
    """Return the elements of the second axis of [R, N, ...] in `order` [R, M]."""
    return array[np.arange(len(order))[:, None], order]


_UNKNOWN = -1e30  # log probabilities below this are of tokens that the draft head cannot guess
