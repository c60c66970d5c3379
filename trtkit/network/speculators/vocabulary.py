"""Heads that can guess some of the model's tokens only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.mask import lowest
from trtkit.network.ops.shape import concat, take

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


def of_all_tokens(logits: Tensor, known: Any, vocab_size: int) -> Tensor:
    """Return logits [..., V] from those of the tokens `known` [V']; the others are never guessed."""
    if len(known) == vocab_size:
        return logits
    rows = np.full(vocab_size, len(known), np.int32)
    rows[known] = np.arange(len(known))
    padded = concat([logits, take(logits, -1, 0, 1) * 0.0 + lowest(FP32)], -1)
    return reorder(padded, rows)
