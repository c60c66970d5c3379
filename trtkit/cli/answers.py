"""Answers as text for people and as JSON for programs, with their times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtkit.cli.requests import Ask
    from trtkit.runtime.llm import LLM, CompletionOutput, RequestMetrics, RequestOutput
    from trtkit.runtime.sampling.sampled import TokenLogprobs
    from trtkit.runtime.text import Tokenizer

Json = dict[str, Any]


def answer_json(ask: Ask, output: RequestOutput, tokenizer: Tokenizer | None) -> Json:
    """Return one request as a JSON object: the first answer's fields, and `outputs` where several were asked."""
    found: Json = {"id": ask.prompt.id, ask.prompt.kind: ask.prompt.content}
    found |= {"images": list(ask.prompt.images)} if ask.prompt.images else {}
    answers = [_completion(answer, tokenizer) for answer in output.outputs]
    found |= answers[0]
    if output.prompt_logprobs is not None:
        found["prompt_logprobs"] = _logprobs(output.prompt_logprobs, tokenizer)
    if ask.params.n > 1:
        found["outputs"] = answers
    return {**found, "metrics": metrics_json(output.metrics)}


def _completion(answer: CompletionOutput, tokenizer: Tokenizer | None) -> Json:
    found: Json = {"text": answer.text, "token_ids": list(answer.token_ids)}
    found |= {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
    if answer.finish_reason == "error":
        found |= {"stop_reason": None, "error": answer.stop_reason}
    if answer.cumulative_logprob is not None:
        found["cumulative_logprob"] = _finite(answer.cumulative_logprob)
    if answer.logprobs is not None:
        found["logprobs"] = _logprobs(answer.logprobs, tokenizer)
    return found


def _logprobs(places: Iterable[TokenLogprobs], tokenizer: Tokenizer | None) -> list[Json]:
    return [
        {
            **_token(place.token, place.logprob, tokenizer),
            "rank": place.rank,
            "top": [_token(token, logprob, tokenizer) for token, logprob in place.top],
        }
        for place in places
    ]


def _token(token: int, logprob: float, tokenizer: Tokenizer | None) -> Json:
    text = {} if tokenizer is None else {"text": tokenizer.decode([token], skip_special_tokens=False)}
    return {"token": token, **text, "logprob": _finite(logprob)}


def _finite(value: float) -> float | None:
    """Return a number that JSON has; null for infinity."""
    return value if math.isfinite(value) else None


def metrics_json(metrics: RequestMetrics) -> Json:
    """Return a request's figures; times in milliseconds."""
    rate = metrics.output_tokens / metrics.e2e_s if metrics.e2e_s > 0 else None
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "reused_tokens": metrics.reused_tokens,
        "output_tokens": metrics.output_tokens,
        "ttft_ms": _milliseconds(metrics.ttft_s),
        "tpot_ms": _milliseconds(metrics.tpot_s),
        "e2e_ms": _milliseconds(metrics.e2e_s),
        "tokens_per_second": rate,
        "drafted_tokens": metrics.drafted_tokens,
        "accepted_tokens": metrics.accepted_tokens,
        "acceptance": _share(metrics.accepted_tokens, metrics.drafted_tokens),
        "preemptions": metrics.preemptions,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def answer_text(answer: CompletionOutput, tokenizer: Tokenizer | None) -> str:
    """Return an answer's text, its token ids where there is no tokenizer."""
    return answer.text if tokenizer is not None else ids_text(answer.token_ids)


def ids_text(ids: Iterable[int]) -> str:
    """Return token ids as a line."""
    return " ".join(map(str, ids))


def errors_of(output: RequestOutput) -> list[str]:
    """Return why answers failed."""
    return [str(answer.stop_reason) for answer in output.outputs if answer.finish_reason == "error"]


def request_stats(metrics: RequestMetrics) -> str:
    """Return a request's figures as one line."""
    found = metrics_json(metrics)
    parts = [f"{metrics.output_tokens} tokens in {metrics.e2e_s:.2f} s"]
    parts += [f"TTFT {found['ttft_ms']:.1f} ms"] if found["ttft_ms"] is not None else []
    parts += [f"TPOT {found['tpot_ms']:.1f} ms"] if found["tpot_ms"] is not None else []
    parts += [f"{found['tokens_per_second']:.1f} tokens/s"] if found["tokens_per_second"] else []
    parts.append(f"prompt {metrics.prompt_tokens} tokens, {metrics.reused_tokens} reused")
    return "; ".join(parts + _speculation(metrics.accepted_tokens, metrics.drafted_tokens))


def total_stats(llm: LLM, outputs: Sequence[RequestOutput], seconds: float) -> str:
    """Return what a run did as one line."""
    done = llm.statistics
    tokens = sum(output.metrics.output_tokens for output in outputs)
    parts = [f"{len(outputs)} requests on {llm.frontend.execution.slots} slots in {seconds:.2f} s"]
    parts += [f"{tokens} tokens", f"{tokens / seconds:.1f} tokens/s"]
    first = sorted(output.metrics.ttft_s for output in outputs if output.metrics.ttft_s is not None)
    each = sorted(output.metrics.tpot_s for output in outputs if output.metrics.tpot_s is not None)
    parts += [f"TTFT {1000 * first[len(first) // 2]:.1f} ms (median)"] if first else []
    parts += [f"TPOT {1000 * each[len(each) // 2]:.1f} ms (median)"] if each else []
    parts.append(f"prompts {done.prompt_tokens + done.reused_tokens} tokens, {done.reused_tokens} reused")
    parts += [f"{done.preemptions} preemptions"] if done.preemptions else []
    return "; ".join(parts + _speculation(done.accepted_tokens, done.drafted_tokens))


def _speculation(accepted: int, drafted: int) -> list[str]:
    return [f"{accepted} of {drafted} drafted tokens accepted ({accepted / drafted:.0%})"] if drafted else []
