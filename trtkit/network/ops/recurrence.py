"""Recurrences for all new tokens of a call at once: decaying attention, gated delta rule, causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.arithmetic import cast, exponential, sum_over
from trtkit.network.ops.gather import token_at
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.shape import concat, take_as_many, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.attention import QKV


@dataclass(frozen=True, eq=False)
class BlockLevels:
    """Ones and zeros [1, 1, L, S, S] in fp32 for blocks of 1, 2, 4, ... tokens, after a level of single tokens.

    pairs: per row, the columns that the level joins to it: those of the block before, if the row's block is the second
        of a pair; in the first level, its own. Every column up to a row's own is in exactly one level.
    since_block: columns from the start of the row's block up to the row.
    to_block_end: columns after the row up to the end of its block. Both are empty in the first level.
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
    """The new tokens of a call: at most `most` per row.

    The first `counts` [B] of a row are tokens, the rest padding.
    """

    def __init__(self, counts: Tensor, most: int) -> None:
        self._counts, self._most = counts, most
        self._is_token: Tensor | None = None
        self._masks: dict[bool, Masks] = {}

    def is_token(self, x: Tensor) -> Tensor:
        """Return [B, 1, S], whether each position of x [B, S, ...] is a token rather than padding."""
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
    """Return the masks for these block sizes."""
    blocks = [index // size for size in sizes]
    is_same = [block[:, None] == block for block in blocks]
    same, none = index[:, None] == index, np.zeros((len(index), len(index)), dtype=bool)
    return BlockLevels(
        _sliced("level_pairs", np.stack([same, *map(_pairs, blocks)]), x),
        _sliced("since_block", np.stack([none, *(same & (index[:, None] >= index) for same in is_same)]), x),
        _sliced("to_block_end", np.stack([none, *(same & (index[:, None] < index) for same in is_same)]), x),
    )


def _pairs(block: Array) -> Array:
    """Return where the row's block is the second of a pair and the column's block the first."""
    pairs: Array = (block[:, None] == block + 1) & (block[:, None] % 2 == 1)
    return pairs


def _sliced(name: str, mask: Array, x: Tensor) -> Tensor:
    """Return the first S rows and columns of a mask, the last two axes."""
    whole = x.graph.constant(mask.astype(np.float32)[None, None], name)
    return take_as_many(take_as_many(whole, -2, x, axis_of_other=1), -1, x, axis_of_other=1)


@dataclass(frozen=True, eq=False)
class Decays:
    """Remaining shares of earlier additions after decay, in fp32.

    between: of each token (column) at each later token or itself (row) [B, H, S, S]. to_end: of each token after the
    last one [B, H, S, 1]. of_state: of the state at each token [B, H, S, 1]. whole: of the state after the last [B, H,
    1, 1].
    """

    between: Tensor
    to_end: Tensor
    of_state: Tensor
    whole: Tensor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the products of each row with each column up to its own, times the remaining share [B, H, S, S]."""
        return matmul(q, k, transpose_b=True) * self.between


@dataclass(frozen=True, eq=False)
class ChannelDecays:
    """`Decays` with separate decays per channel.

    The remaining share between two tokens is a row's factor times a column's, each at most 1, in the level that joins
    the two tokens' blocks: with one origin for all tokens, one of the factors would be a reciprocal of a share. rows,
    columns: [B, H, L, S, D]. levels: [1, 1, L, S, S], the pairs of each level. to_end, of_state: [B, H, S, D]. whole:
    [B, H, D, 1].
    """

    rows: Tensor
    columns: Tensor
    levels: Tensor
    to_end: Tensor
    of_state: Tensor
    whole: Tensor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the products of each row with each column up to its own, times the remaining share [B, H, S, S]."""
        q, k = unsqueeze(q, 2) * self.rows, unsqueeze(k, 2) * self.columns
        return sum_over(matmul(q, k, transpose_b=True) * self.levels, 2)


def decays(g: Tensor, masks: Masks) -> Decays:
    """Return the remaining shares for each token's decay, the exponential of g [B, H, S, 1].

    Logarithms are summed over the tokens between two tokens: differences of prefix sums are not exact.
    """
    later = g * (masks.up_to - masks.identity)  # rows: tokens after the columns' own
    between = exponential(matmul(masks.up_to, later)) * masks.up_to
    to_end = exponential(unsqueeze(sum_over(later, 2), 3))
    return Decays(between, to_end, exponential(matmul(masks.up_to, g)), exponential(unsqueeze(sum_over(g, 2), 2)))


def channel_decays(g: Tensor, masks: Masks) -> ChannelDecays:
    """Return the remaining shares for each token's decays by channel, the exponentials of g [B, H, S, D]."""
    assert masks.levels is not None
    levels, by_level = masks.levels, unsqueeze(g, 2)
    after = masks.up_to - masks.identity  # columns: tokens before the rows' own
    return ChannelDecays(
        exponential(matmul(levels.since_block, by_level)),
        exponential(matmul(levels.to_block_end, by_level)),
        levels.pairs,
        exponential(matmul(after, g, transpose_a=True)),
        exponential(matmul(masks.up_to, g)),
        exponential(unsqueeze(sum_over(g, 2), 3)),
    )


def decayed_sums(qkv: QKV, left: Decays | ChannelDecays, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's output [B, H, S, E] and the state after the last one [B, H, D, E].

    Each token updates the state M to `M exp(g) + k v^T` and outputs `M^T q`. qkv: [B, H, S, D], the same, [B, H, S, E].
    Source: https://arxiv.org/abs/2405.21060, section 6.
    """
    q, k, v = qkv
    read = matmul(q * left.of_state, state) + matmul(left.scores(q, k), v)
    return read, state * left.whole + matmul(k * left.to_end, v, transpose_a=True)


def gated_delta_rule(qkv: QKV, g: Tensor, beta: Tensor, state: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """Return each token's output [B, H, S, E] and the state after the last one, all in fp32.

    Each token t updates the state M to `M exp(g) + k (beta (v - (M exp(g))^T k))^T` and outputs `M^T q`. qkv: queries
    and keys [B, H, S, D], scaled and of length 1, and values [B, H, S, E]. g: the logarithm of the decay [B, H, S, 1],
    or of each channel's [B, H, S, D]. beta: [B, H, S, 1]; both are 0 for padding, which therefore leaves the state
    unchanged. state: [B, H, D, E]. masks: with levels if channels have their own decays.
    Source: https://arxiv.org/abs/2412.06464, section 3.3.
    """
    q, k, v = qkv
    left = decays(g, masks) if g.shape[3] == 1 else channel_decays(g, masks)
    inverse = unit_lower_inverse(left.scores(k * beta, k), masks)
    learned = matmul(inverse, v * beta) - matmul(matmul(inverse, k * beta * left.of_state), state)
    return decayed_sums((q, k, learned), left, state)


def unit_lower_inverse(lower: Tensor, masks: Masks) -> Tensor:
    """Return the inverse of I + the strictly lower part of a matrix: lower [B, H, S, S], in fp32.

    Blocks on the diagonal are inverted first, then joined two by two: the inverse of [[a, 0], [c, b]] has -b' c a'
    below a' and b'. A product of powers of the matrix would take as many products, but its terms outgrow their sum: of
    64 equal keys, they have 18 digits.
    """
    inverse = masks.identity - lower * masks.merges[0]
    for mask in masks.merges[1:]:
        inverse = inverse - matmul(matmul(inverse, lower * mask), inverse)
    return inverse


def causal_convolution(x: Tensor, past: Tensor, taps: Sequence[Tensor], bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum each channel's last tokens times its taps, in fp32: x [B, S, C], past [B, L - 1, C] -> [B, S, C].

    past: the tokens before x. taps: L of [1, 1, C], for the oldest token first. bias: [1, 1, C]. Also returns all
    tokens [B, L - 1 + S, C].
    """
    tokens = concat([past, x], axis=1)
    parts = (
        cast(take_as_many(tokens, 1, x, start=start, axis_of_other=1), FP32) * tap for start, tap in enumerate(taps)
    )
    y = next(parts)
    for part in parts:
        y = y + part
    return cast(y if bias is None else y + bias, x.dtype), tokens


def last_tokens(tokens: Tensor, counts: Tensor, size: int) -> Tensor:
    """Return the `size` tokens up to each row's last one: tokens [B, size + S, C] -> [B, size, C].

    counts: [B], how many of the last S are tokens; if none, the first `size` tokens of the row are returned.
    """
    offsets = tokens.graph.constant(np.arange(size, dtype=np.int32)[None], "offsets")
    return token_at(tokens, unsqueeze(counts, 1) + offsets)
