"""Recurrent states of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.network.graph import Tensor
    from trtkit.network.ops.chunk import TokenChunk


@dataclass(frozen=True, eq=False)
class States:
    """A layer's states [B, ...] by name, zeros where a sequence begins.

    token_counts: [B], how many of each row's new tokens are tokens; the rest is padding, which no state may read.
    chunk: the new tokens, for layers that take a limited number of them at once.
    """

    arrays: Mapping[str, Tensor]
    token_counts: Tensor
    chunk: TokenChunk
