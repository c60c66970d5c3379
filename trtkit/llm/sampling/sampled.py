"""Results of sampling: tokens, their log probabilities, and why a row has none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.llm.sampling.columns import Use
from trtkit.runtime.device import start_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from trtkit.arrays import Array

FAILED, NOTHING = -1, -2
"""Stand for the token of a row whose logits contain NaN or infinity, and of one whose logits are all -inf."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log probability of a token by the model's own distribution, before any setting changes it.

    rank: 1 for the most likely token. top: the most likely tokens, best first, as (token, log probability); token
    `top[i]` has rank i + 1.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()

    def limited(self, count: int) -> TokenLogprobs:
        """Return the report with only `count` of the most likely tokens."""
        return replace(self, top=self.top[:count])


@dataclass(frozen=True)
class Sampled:
    """The next token of each row.

    tokens: [R] int64; -1 (FAILED) in rows that have none. logprobs: of rows that request them, by row. errors: why a
    row has no token, by row: its request ends, the others continue.
    """

    tokens: Array
    logprobs: Mapping[int, TokenLogprobs]
    errors: Mapping[int, str]

    def logprobs_of(self, rows: Array) -> Mapping[int, TokenLogprobs]:
        """Return the log probabilities of some rows, by their index among those."""
        if not self.logprobs or len(rows) == len(self.tokens):
            return self.logprobs
        return {index: self.logprobs[row] for index, row in enumerate(rows.tolist()) if row in self.logprobs}


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> Callable[[], list[TokenLogprobs]]:
    """Start computing the reports of tokens [R] under logits [R, V]; return a function that waits for them.

    top: number of most likely tokens to report per row.
    """
    logs = logits.log_softmax(-1)
    chosen = logs.gather(-1, tokens.clamp(min=0).unsqueeze(-1))
    best = logs.topk(min(top, logs.shape[-1]), -1)
    ranks = (logs > chosen).sum(-1) + 1
    copies = [start_copy(values) for values in (tokens, chosen.squeeze(-1), ranks, best.indices, best.values)]

    def arrived() -> list[TokenLogprobs]:
        *columns, ids, values = (copy().tolist() for copy in copies)
        tops = (tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True))
        return [TokenLogprobs(*row) for row in zip(*columns, tops, strict=True)]

    return arrived


# Settings that can ban tokens.
_BARS = {
    Use.NGRAM: "no_repeat_ngram_size",
    Use.BAD_WORDS: "bad_words",
    Use.MIN_TOKENS: "min_tokens",
    Use.FORCE_WORDS: "force_words",
    Use.FUNCTIONS: "logits_processors",
}


def reason(largest: float, uses: int, guided: str | None) -> str:
    """Return why a row has no token, given its largest score `largest`, which is not finite."""
    if largest != -math.inf:
        return "the model's logits hold NaN or infinity"
    names = [name for use, name in _BARS.items() if uses & use]
    names += [guided] if guided else []
    if not names:
        return "the model's logits are all -inf"
    verb = "bars" if len(names) == 1 else "bar"
    return f"no token is left: {' and '.join(f'`{name}`' for name in names)} {verb} every one"
