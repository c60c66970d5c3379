"""What an answer has gained, in the form that Dynamo's frontend takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.outputs import Delta, RequestOutput
    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.runtime.text import Tokenizer

Fields = dict[str, object]
# OpenAI's protocol has numbers only.
_LEAST = -9999.0


def chunk(delta: Delta, tokenizer: Tokenizer | None, *, has_logprobs: bool) -> Fields:
    """Return a delta as a chunk; the last one of a request carries how it ended, the usage, and the prompt's part.

    Dynamo 1.6.1 ends a request at its first chunk with a finish reason: with several answers, only the last to end has
    its own, and the frontend says `stop` for the others.
    """
    data: Fields = {"index": delta.index, "token_ids": list(delta.token_ids)}
    if has_logprobs:
        data["log_probs"] = [_finite(token.logprob) for token in delta.logprobs]
        data["top_logprobs"] = [_top(token, tokenizer) for token in delta.logprobs]
    if delta.output is not None:
        data["finish_reason"] = "cancelled" if delta.finish_reason == "abort" else delta.finish_reason
        data["completion_usage"] = _usage(delta.output)
        if delta.output.prompt_logprobs is not None:
            data["engine_data"] = {"prompt_logprobs": _prompt_logprobs(delta.output.prompt_logprobs, tokenizer)}
    return data


def _usage(output: RequestOutput) -> Fields:
    prompt, answers = output.metrics.prompt_tokens, output.metrics.output_tokens
    cached = {"cached_tokens": output.metrics.reused_tokens}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answers,
        "total_tokens": prompt + answers,
        "prompt_tokens_details": cached,
    }


def _top(token: TokenLogprobs, tokenizer: Tokenizer | None) -> list[Fields]:
    """Return the most likely tokens of a place, best first."""
    ranked = enumerate(token.top, 1)
    return [_entry(token, logprob, rank, tokenizer) for rank, (token, logprob) in ranked]


def _entry(token: int, logprob: float, rank: int, tokenizer: Tokenizer | None) -> Fields:
    text = None if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
    return {"token_id": token, "token": text, "logprob": _finite(logprob), "rank": rank}


def _prompt_logprobs(tokens: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> list[Fields | None]:
    """Return what the model made of each token of the prompt; nothing precedes the first."""
    return [None, *(_prompt_place(token, tokenizer) for token in tokens)]


def _prompt_place(token: TokenLogprobs, tokenizer: Tokenizer | None) -> Fields:
    ranked = [
        (token.token, token.logprob, token.rank),
        *((*alternative, rank) for rank, alternative in enumerate(token.top, 1)),
    ]
    entries = [_entry(*values, tokenizer) for values in ranked]
    return {
        str(entry["token_id"]): {
            "logprob": entry["logprob"],
            "rank": entry["rank"],
            "decoded_token": entry["token"],
        }
        for entry in entries
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST
