"""A request on its way from prompt to answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.sampling.sampled import TokenLogprobs
    from trtkit.runtime.sampling.settings import Settings
    from trtkit.runtime.soft_tokens import SoftTokens

FinishReason = Literal["stop", "length", "abort", "error"]


class Watcher(Protocol):
    """Told every token as it is made: for streams and for stop strings."""

    def add(self, tokens: Sequence[int]) -> str | None:
        """Take new tokens; return the stop string that they complete, if any."""
        ...


@dataclass
class Metrics:
    """Times of `time.monotonic`, in seconds, and counts of tokens.

    reused: prompt tokens whose keys and values were already in a cache. drafted, accepted: by speculation.
    """

    arrived_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    finished_s: float | None = None
    reused: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0


@dataclass(eq=False)
class Request:
    """What is asked, and how far it is.

    priority: smaller is sooner. generated: tokens made before a preemption. logprobs: one a generated token.
    prompt_logprobs: one a prompt token but the first. soft: vectors that stand in the prompt, such as an image's.
    """

    id: str
    prompt_ids: Sequence[int]
    settings: Settings
    priority: int = 0
    watcher: Watcher | None = None
    generated: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    arrival: int = 0
    soft: SoftTokens | None = None

    @property
    def slots(self) -> int:
        """Slots that it takes."""
        return self.settings.params.num_beams


@dataclass(frozen=True)
class Hypothesis:
    """One answer of a beam search, best first among its request's. score: its length-penalised log probability."""

    token_ids: list[int]
    score: float


@dataclass(frozen=True, eq=False)
class Finished:
    """A request that has ended.

    stop_reason: the stop string, or the token, that ended it; the error's text where it failed.
    beams: the answers of a beam search.
    """

    request: Request
    token_ids: list[int]
    reason: FinishReason
    stop_reason: int | str | None = None
    beams: tuple[Hypothesis, ...] = ()


def check_prompt(prompt_ids: Sequence[int], vocab_size: int, max_length: int, where: str = "") -> None:
    """Raise RequestError for a prompt of no tokens, of unknown ones, or of more than a slot holds."""
    ids = np.asarray(prompt_ids, np.int64)
    if not ids.size:
        raise RequestError("the prompt has no tokens", where, "give at least one")
    if ids.min() < 0 or ids.max() >= vocab_size:
        what = f"token {ids[(ids < 0) | (ids >= vocab_size)][0]} is not in the vocabulary"
        raise RequestError(what, where, f"use 0 to {vocab_size - 1}")
    if ids.size > max_length:
        raise too_long(ids.size, max_length, where)


def too_long(tokens: int, max_length: int, where: str) -> RequestError:
    """Return the error for a prompt of more tokens than a slot holds."""
    fix = "shorten it, or build with a larger `llm.max_sequence_length`"
    return RequestError(f"the prompt has {tokens} tokens; a slot holds {max_length}", where, fix)
