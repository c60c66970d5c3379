"""What generation answers, in the shape that vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.runtime.generation.request import FinishReason, Metrics
    from trtkit.runtime.sampling.sampled import TokenLogprobs


@dataclass(frozen=True)
class CompletionOutput:
    """One answer.

    token_ids: with the token that ended it, which `text` leaves out. cumulative_logprob: known for beams, and where
    log probabilities were asked. stop_reason: the stop string or token that ended it; an error's text.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """Times in seconds from the request's arrival, and counts of tokens.

    ttft_s: to the first token. tpot_s: between tokens after it, on average. e2e_s: to the end.
    reused_tokens: of the prompt, found in a cache. drafted_tokens, accepted_tokens: by speculation.
    """

    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its answers. prompt: its text, None where token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True)
class Delta:
    """What a streamed answer has gained. output: the whole, with the last delta of a request."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    output: RequestOutput | None = None


def combined_metrics(prompt_tokens: int, output_tokens: int, answers: list[Metrics]) -> RequestMetrics:
    """Return the metrics of a request from those of its answers."""
    arrived = min(answer.arrived_s for answer in answers)
    finished = max(answer.finished_s or arrived for answer in answers)
    first = min((answer.first_token_s for answer in answers if answer.first_token_s is not None), default=None)
    later = output_tokens - len(answers)
    sums: dict[str, Any] = {
        f"{name}_tokens": sum(getattr(answer, name) for answer in answers) for name in ("reused", "drafted", "accepted")
    }
    return RequestMetrics(
        prompt_tokens,
        output_tokens,
        None if first is None else first - arrived,
        None if first is None or later < 1 else (finished - first) * len(answers) / later,
        finished - arrived,
        preemptions=sum(answer.preemptions for answer in answers),
        **sums,
    )
