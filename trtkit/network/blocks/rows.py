"""The rows of a call that a mixer reads: all of them, or, in a packed call, the decoding rows or the prompt rows.

A packed call computes everything but attention and recurrences, which combine tokens, on its T new tokens as rows of
one, `[T, 1, D]`. Tokens of decoding rows come first, S per row: its own, then guesses of what follows, with padding.
These rows are therefore a slice, reshaped into rows. Prompt rows are padded to the longest of them by a gather.
Source: selective batching, https://www.usenix.org/conference/osdi22/presentation/yu.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trtkit.dtypes import INT32
from trtkit.network.input_spec import PROMPT
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import entries
from trtkit.network.ops.shape import concat, reshape, reshape_to, size_of, slice_of, take, transpose, unsqueeze

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


class Rows(Protocol):
    """Some rows of a call."""

    @property
    def prefix(self) -> str:
        """Prefix of the names of their inputs and outputs."""

    @property
    def is_padded(self) -> bool:
        """Whether `new` has padding."""

    def new(self, x: Tensor) -> Tensor:
        """Return the rows' part [B, K, S, H] of the new keys or values of all tokens."""

    def unpadded(self, x: Tensor) -> Tensor:
        """Return the rows' part of the new keys or values without padding."""

    def queries(self, q: Tensor, fold: int) -> Tensor:
        """Return the rows' queries [B, N / fold, fold * S, H]: the heads that share keys, one after the other."""

    def by_query(self, x: Tensor, heads: int, fold: int) -> Tensor:
        """Return values per head [N] for the queries of `heads` and `fold`: [N], or [B, N / fold, fold * S, 1]."""

    def outputs(self, attended: Tensor, fold: int) -> Tensor:
        """Return attention's results for `queries` of the same `fold`, in the order of the call's tokens."""

    def tokens(self, x: Tensor) -> Tensor:
        """Return the rows' part [B, S, C] of vectors of all tokens."""

    def by_token(self, x: Tensor) -> Tensor:
        """Return vectors [B, S, C] of the rows' tokens in the order of the call's tokens."""


class AllRows:
    """The rows of a call that is not packed."""

    prefix, is_padded = "", False

    def new(self, x: Tensor) -> Tensor:
        return x

    def unpadded(self, x: Tensor) -> Tensor:
        return x

    def queries(self, q: Tensor, fold: int) -> Tensor:
        assert fold == 1
        return q

    def by_query(self, x: Tensor, heads: int, fold: int) -> Tensor:  # noqa: ARG002
        assert fold == 1
        return x

    def outputs(self, attended: Tensor, fold: int) -> Tensor:
        assert fold == 1
        return attended

    def tokens(self, x: Tensor) -> Tensor:
        return x

    def by_token(self, x: Tensor) -> Tensor:
        return x


class DecodingRows:
    """The decoding rows of a packed call. positions: [A, S] int32, of their tokens, which are the call's first."""

    prefix, is_padded = "", False

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions
        self._shapes: dict[tuple[int, ...], Tensor] = {}

    def new(self, x: Tensor) -> Tensor:
        _, heads, _, size = x.shape
        return transpose(reshape_to(slice_of(x, 0, self.count), self._shape(heads, size)), (0, 2, 1, 3))

    def tokens(self, x: Tensor) -> Tensor:
        return reshape_to(slice_of(x, 0, self.count), self._shape(x.shape[2]))

    def by_token(self, x: Tensor) -> Tensor:
        return reshape(x, (-1, 1, x.shape[2]))

    def unpadded(self, x: Tensor) -> Tensor:
        return self.new(x)

    def queries(self, q: Tensor, fold: int) -> Tensor:
        by_head = self.new(q)
        return by_head if fold == 1 else reshape(by_head, (0, q.shape[1] // fold, -1, q.shape[3]))

    def by_query(self, x: Tensor, heads: int, fold: int) -> Tensor:
        if fold == 1:
            return x
        by_head = reshape(x, (1, heads, 1, 1)) * cast(unsqueeze(self.positions * 0 + 1, 1, 3), x.dtype)  # [A, N, S, 1]
        return reshape(by_head, (0, heads // fold, -1, 1))

    def outputs(self, attended: Tensor, fold: int) -> Tensor:
        _, heads, _, size = attended.shape
        if fold > 1:
            heads = heads * fold
            attended = reshape_to(attended, self._by_head(heads, size))
        return reshape(_heads_first(attended), (-1, heads, 1, size))

    @cached_property
    def count(self) -> Tensor:
        """Number of their tokens: A * S, int64 [1]."""
        return size_of(reshape(self.positions, (-1,)))

    def _shape(self, *sizes: int) -> Tensor:
        """Return the shape [A, S, *sizes], int64."""
        if sizes not in self._shapes:
            graph = self.positions.graph
            with graph.scope("decoding_rows"):
                last = graph.constant(np.array(sizes, np.int64), "sizes")
                self._shapes[sizes] = concat([self._rows_and_tokens, last], 0)
        return self._shapes[sizes]

    def _by_head(self, heads: int, size: int) -> Tensor:
        """Return the shape [A, heads, S, size], int64."""
        rows, tokens = (take(self._rows_and_tokens, 0, axis, 1) for axis in (0, 1))
        graph = self.positions.graph
        with graph.scope("decoding_rows"):
            heads_, size_ = (graph.constant(np.array([number], np.int64), "sizes") for number in (heads, size))
        return concat([rows, heads_, tokens, size_], 0)

    @cached_property
    def _rows_and_tokens(self) -> Tensor:
        return size_of(self.positions)


class PromptRows:
    """The prompt rows of a packed call, possibly none.

    decoding: int64 [1], number of the decoding rows' tokens. tokens: [B, S], index of the call's token at each position
    of the padded rows; padding has any index. places: [P], the position `row * S + column` of each prompt token.
    """

    prefix, is_padded = PROMPT, True

    def __init__(self, decoding: Tensor, tokens: Tensor, places: Tensor) -> None:
        self._decoding, self._tokens, self._places = decoding, tokens, places
        self._folds: dict[int, tuple[Tensor, Tensor]] = {}

    def new(self, x: Tensor) -> Tensor:
        return _heads_first(entries(reshape(x, (0, x.shape[1], x.shape[3])), 0, self._tokens))

    def unpadded(self, x: Tensor) -> Tensor:
        return slice_of(x, *self._start_and_size)

    def tokens(self, x: Tensor) -> Tensor:
        return entries(reshape(x, (0, x.shape[2])), 0, self._tokens)

    def by_token(self, x: Tensor) -> Tensor:
        return entries(reshape(x, (-1, x.shape[2])), 0, self._fold(1)[1])  # [P, 1, C]

    def queries(self, q: Tensor, fold: int) -> Tensor:
        heads, size = q.shape[1] // fold, q.shape[3]
        by_token = q if fold == 1 else transpose(reshape(q, (0, heads, fold, size)), (0, 2, 1, 3))
        return _heads_first(entries(reshape(by_token, (-1, heads, size)), 0, self._fold(fold)[0]))

    def by_query(self, x: Tensor, heads: int, fold: int) -> Tensor:
        if fold == 1:
            return x
        numbers = self._fold(fold)[0]
        head = numbers - x.graph.elementwise("FLOOR_DIV", numbers, fold) * fold
        return unsqueeze(transpose(entries(reshape(x, (heads // fold, fold)), 1, head), (1, 0, 2)), 3)

    def outputs(self, attended: Tensor, fold: int) -> Tensor:
        heads, size = attended.shape[1], attended.shape[3]
        by_place = reshape(_heads_first(attended), (-1, heads, size))
        by_token = _heads_first(entries(by_place, 0, self._fold(fold)[1]))  # [P, N / fold, fold, H]
        return reshape(by_token, (0, heads * fold, 1, size))

    @cached_property
    def _start_and_size(self) -> tuple[Tensor, Tensor]:
        """Start of the prompts' tokens among all tokens, and their number."""
        return self._decoding, size_of(self._places)

    def _fold(self, fold: int) -> tuple[Tensor, Tensor]:
        """Return the token and head at each position [B, fold * S], and the positions of each token's heads [P, fold].

        Tokens and heads are numbered together: `token * fold + head`.
        """
        if fold not in self._folds:
            graph = self._tokens.graph
            with graph.scope("prompt_rows"):
                sizes = graph.add(graph.network.add_shape(self._tokens.trt), "shape")
                width = cast(take(sizes, 0, 1, 1), INT32)
                first = self._places + graph.elementwise("FLOOR_DIV", self._places, width) * width * (fold - 1)
                heads = graph.constant(np.arange(fold, dtype=np.int32).reshape(1, fold), "heads")
                places = unsqueeze(first, 1) + heads * width
                self._folds[fold] = concat([self._tokens * fold + head for head in range(fold)], 1), places
        return self._folds[fold]


def _heads_first(x: Tensor) -> Tensor:
    """[B, S, heads, H] -> [B, heads, S, H], or back."""
    return transpose(x, (0, 2, 1, 3))
