"""Linear attention whose past decays, for all new tokens of a call at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.network.ops.arithmetic import exponential, sum_over
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.shape import unsqueeze

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.attention import QKV
    from trtkit.network.ops.chunk import Masks


@dataclass(frozen=True, eq=False)
class Decays:
    """How much is left of what was added before, in fp32.

    between: of each token (column) at each one from it on (row) [B, H, S, S]. to_end: of each token after the last one
    [B, H, S, 1]. of_state: of the state at each token [B, H, S, 1]. whole: of the state after the last [B, H, 1, 1].
    """

    between: Tensor
    to_end: Tensor
    of_state: Tensor
    whole: Tensor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the products of each row with each column up to its own, as far as that is left [B, H, S, S]."""
        return matmul(q, k, transpose_b=True) * self.between


@dataclass(frozen=True, eq=False)
class ChannelDecays:
    """`Decays` of channels that each have their own.

    What is left between two tokens is a row's factor times a column's, each at most 1, in the level that joins the two
    tokens' blocks: measured from one beginning for all tokens, one of the two would be the reciprocal of what is left.
    rows, columns: [B, H, L, S, D]. levels: [1, 1, L, S, S], which pairs each level joins. to_end, of_state:
    [B, H, S, D]. whole: [B, H, D, 1].
    """

    rows: Tensor
    columns: Tensor
    levels: Tensor
    to_end: Tensor
    of_state: Tensor
    whole: Tensor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the products of each row with each column up to its own, as far as that is left [B, H, S, S]."""
        q, k = unsqueeze(q, 2) * self.rows, unsqueeze(k, 2) * self.columns
        return sum_over(matmul(q, k, transpose_b=True) * self.levels, 2)


def decays(g: Tensor, masks: Masks) -> Decays:
    """Return how much each token's decay, the exponential of g [B, H, S, 1], leaves.

    Logarithms are summed over the tokens between two: differences of sums from the beginning are not exact.
    """
    later = g * (masks.up_to - masks.identity)  # rows: tokens after the columns' own
    between = exponential(matmul(masks.up_to, later)) * masks.up_to
    to_end = exponential(unsqueeze(sum_over(later, 2), 3))
    return Decays(between, to_end, exponential(matmul(masks.up_to, g)), exponential(unsqueeze(sum_over(g, 2), 2)))


def channel_decays(g: Tensor, masks: Masks) -> ChannelDecays:
    """Return how much each token's decays, the exponentials of g [B, H, S, D], leave."""
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
    """Return what each token reads [B, H, S, E] and the state after the last one [B, H, D, E].

    Each token turns the state M to `M exp(g) + k v^T` and reads `M^T q`. qkv: [B, H, S, D], the same, [B, H, S, E].
    Source: https://arxiv.org/abs/2405.21060, section 6.
    """
    q, k, v = qkv
    read = matmul(q * left.of_state, state) + matmul(left.scores(q, k), v)
    return read, state * left.whole + matmul(k * left.to_end, v, transpose_a=True)
