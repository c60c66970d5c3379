"""What sampling answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array

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

    tokens: [R] int64; -1 (FAILED) in rows that have none. logprobs: of rows that ask, by row.
    errors: why a row has no token, by row: its request ends, the others go on.
    """

    tokens: Array
    logprobs: Mapping[int, TokenLogprobs]
    errors: Mapping[int, str]

    def logprobs_of(self, rows: Array) -> Mapping[int, TokenLogprobs]:
        """Return the log probabilities of some rows, by their places among those."""
        if not self.logprobs or len(rows) == len(self.tokens):
            return self.logprobs
        return {index: self.logprobs[row] for index, row in enumerate(rows.tolist()) if row in self.logprobs}
