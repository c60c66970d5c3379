"""Convolutions over the tokens of sequences, channel by channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import token_at
from trtkit.network.ops.shape import concat, take_as_many, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.graph import Tensor


def causal_convolution(x: Tensor, past: Tensor, taps: Sequence[Tensor], bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum each channel's last tokens times its taps, in fp32: x [B, S, C], past [B, L - 1, C] -> [B, S, C].

    past: the tokens before x. taps: L of [1, 1, C], for the oldest token first. bias: [1, 1, C].
    Return also all tokens [B, L - 1 + S, C].
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
    """Return the `size` tokens up to each row's own last one: tokens [B, size + S, C] -> [B, size, C].

    counts: [B], how many of the last S are tokens; with none, the first `size` tokens of the row stay.
    """
    offsets = tokens.graph.constant(np.arange(size, dtype=np.int32)[None], "offsets")
    return token_at(tokens, unsqueeze(counts, 1) + offsets)
