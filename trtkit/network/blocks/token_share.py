"""Sequence parallelism: the share of tokens that a rank normalizes and adds, and the collectives around blocks.

Tensor parallel ranks compute attention and feed-forward of all tokens, each a part of the sum. With a share of the
tokens, a rank keeps only its own rows of that sum: norms and residual sums are then computed once, and not by every
rank. The ALL_REDUCE after a block becomes a REDUCE_SCATTER after it and an ALL_GATHER before the next, which move as
many bytes. Source: https://arxiv.org/abs/2205.05198, section 4.2.2.

Tokens are the first axis, as in packed networks. The network itself pads them to a multiple of the ranks, so that a
call may have any number of tokens; what is computed of padding is never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import INT32
from trtkit.models.share import WHOLE
from trtkit.network.ops.arithmetic import cast, select
from trtkit.network.ops.collective import all_gather, all_reduce, reduce_scatter
from trtkit.network.ops.gather import entries
from trtkit.network.ops.shape import padded_to, reshape, size_of, slice_of, take, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.share import Share
    from trtkit.network.graph import Tensor


class TokenShare:
    """Boundaries of the blocks that ranks share. share: of the tokens, which a rank holds between blocks.

    Without a share, ranks hold all tokens everywhere, and `leave` is an ALL_REDUCE.
    """

    def __init__(self, share: Share = WHOLE) -> None:
        self.share = share
        self._count: Tensor | None = None
        self._whole: Tensor | None = None
        self._span: tuple[Tensor, Tensor] | None = None

    @property
    def is_whole(self) -> bool:
        return self.share.count == 1

    def padded(self, x: Tensor, axis: int = 0) -> Tensor:
        """Return x, with all tokens along an axis, padded with zeros to a multiple of the ranks."""
        if self.is_whole:
            return x
        with x.graph.scope("token_share"):
            if self._whole is None:  # the first that is padded is not yet
                ranks, tokens = self.share.count, take(size_of(x), 0, axis, 1)
                rows = x.graph.elementwise("FLOOR_DIV", tokens + (ranks - 1), ranks)
                self._count, self._whole, self._span = tokens, rows * ranks, (rows * self.share.index, rows)
            return padded_to(x, axis, self._whole)

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's rows of x, which has all tokens, padded."""
        if self.is_whole:
            return x
        assert self._span is not None
        return slice_of(x, *self._span)

    def enter(self, x: Tensor) -> Tensor:
        """Gather all tokens from the ranks' shares x, as the input of a block."""
        return x if self.is_whole else all_gather(x, self.share.count)

    def gathered(self, x: Tensor) -> Tensor:
        """Gather all tokens from the ranks' shares x, without padding."""
        if self.is_whole:
            return x
        assert self._count is not None
        return slice_of(self.enter(x), 0, self._count)

    def leave(self, part: Tensor, ranks: int) -> Tensor:
        """Sum the parts that `ranks` computed of all tokens; return this rank's rows.

        part: [T, 1, D], or [1, T, D] from a block that multiplies all rows as one matrix.
        """
        if self.is_whole or ranks == 1:
            return all_reduce(part, ranks)
        assert ranks == self.share.count
        return reduce_scatter(reshape(part, (-1, 1, part.shape[-1])) if part.shape[0] == 1 else part, ranks)

    def picked(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the tokens at `index` [N] of the shares x [T, 1, D]: [N, 1, D], on all ranks.

        They are few, so the ranks sum what each has of them rather than gather all tokens.
        """
        if self.is_whole:
            return entries(x, 0, index)
        assert self._span is not None
        with x.graph.scope("token_share"):
            start, rows = (cast(size, INT32) for size in self._span)
            local = index - start
            is_here = (local > -1) & (local < rows)
            here = entries(x, 0, select(is_here, local, 0))
            return all_reduce(select(unsqueeze(is_here, 1, 2), here, 0.0), self.share.count)


ALL_TOKENS = TokenShare()
"""Of a model whose ranks hold all tokens everywhere."""
