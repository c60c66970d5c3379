"""What sampling answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

FAILED, NOTHING = -1, -2
"""In the place of a token: of logits that hold NaN or infinity, and of those that are all -inf."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log probability of a token among the model's own, before any setting changes them.

    rank: 1 for the most likely token. top: the most likely tokens, best first, as (token, log probability); token
    `top[i]` has rank i + 1.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()

    def limited(self, count: int) -> TokenLogprobs:
        """Return the same with `count` of the most likely tokens."""
        return replace(self, top=self.top[:count])


@dataclass(frozen=True)
class Sampled:
    """The next token of each row.

    tokens: [R] int64; -1 (FAILED) in rows that have none. logprobs: of rows that ask, else None.
    errors: why a row has no token, else None: its request ends, the others go on.
    """

    tokens: np.ndarray[Any, np.dtype[np.int64]]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]
