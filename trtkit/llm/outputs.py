"""Outputs of generation, in the shape that vLLM's users know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.llm.scheduler.request import FinishReason, Metrics
    from trtkit.runtime.text import Tokenizer

JsonObject = dict[str, object]


@dataclass(frozen=True)
class CompletionOutput:
    """One answer.

    token_ids: including the token that ended it, which is not in `text`. cumulative_logprob: known for beams, and if
    log probabilities were requested. stop_reason: the stop string or token that ended it, or an error's text.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None

    def to_json(self, tokenizer: Tokenizer | None) -> JsonObject:
        """Return the answer as a JSON object; an error's text is `error`."""
        data: JsonObject = {"text": self.text, "token_ids": list(self.token_ids)}
        data |= {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        if self.finish_reason == "error":
            data |= {"stop_reason": None, "error": self.stop_reason}
        if self.cumulative_logprob is not None:
            data["cumulative_logprob"] = _finite(self.cumulative_logprob)
        if self.logprobs is not None:
            data["logprobs"] = _logprobs_json(self.logprobs, tokenizer)
        return data


@dataclass(frozen=True)
class RequestMetrics:
    """Times in seconds from the request's arrival, and token counts.

    ttft_s: to the first token. tpot_s: per later token, on average. e2e_s: to the end. reused_tokens: prompt tokens
    found in a cache; restored_tokens: those of them found in host memory. drafted_tokens, accepted_tokens: of
    speculative decoding.
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
    restored_tokens: int = 0

    def to_json(self) -> JsonObject:
        """Return the figures as a JSON object; times in milliseconds."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "restored_tokens": self.restored_tokens,
            "output_tokens": self.output_tokens,
            "ttft_ms": _milliseconds(self.ttft_s),
            "tpot_ms": _milliseconds(self.tpot_s),
            "e2e_ms": _milliseconds(self.e2e_s),
            "tokens_per_second": self.output_tokens / self.e2e_s if self.e2e_s > 0 else None,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance": self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None,
            "preemptions": self.preemptions,
        }


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its answers. prompt: its text; None if it was given as token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    metrics: RequestMetrics
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None

    def to_json(self, tokenizer: Tokenizer | None, *, has_outputs: bool = True) -> JsonObject:
        """Return the answers as a JSON object: the fields of the first one, and all of them as `outputs`.

        tokenizer: decodes tokens. has_outputs: whether to include `outputs`.
        """
        answers = [answer.to_json(tokenizer) for answer in self.outputs]
        data = dict(answers[0])
        if self.prompt_logprobs is not None:
            data["prompt_logprobs"] = _logprobs_json(self.prompt_logprobs, tokenizer)
        if has_outputs:
            data["outputs"] = answers
        return {**data, "metrics": self.metrics.to_json()}


@dataclass(frozen=True)
class Delta:
    """The next piece of a streamed answer. output: the complete output, in the last piece of a request."""

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
    return RequestMetrics(
        prompt_tokens,
        output_tokens,
        None if first is None else first - arrived,
        None if first is None or later < 1 else (finished - first) * len(answers) / later,
        finished - arrived,
        sum(answer.reused for answer in answers),
        sum(answer.drafted for answer in answers),
        sum(answer.accepted for answer in answers),
        sum(answer.preemptions for answer in answers),
        sum(answer.restored for answer in answers),
    )


def _logprobs_json(entries: Iterable[TokenLogprobs], tokenizer: Tokenizer | None) -> list[JsonObject]:
    return [
        {
            **_token_json(entry.token, entry.logprob, tokenizer),
            "rank": entry.rank,
            "top": [_token_json(token, logprob, tokenizer) for token, logprob in entry.top],
        }
        for entry in entries
    ]


def _token_json(token: int, logprob: float, tokenizer: Tokenizer | None) -> JsonObject:
    text = {} if tokenizer is None else {"text": tokenizer.decode([token], skip_special_tokens=False)}
    return {"token": token, **text, "logprob": _finite(logprob)}


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; null for infinity."""
    return value if math.isfinite(value) else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
