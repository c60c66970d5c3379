"""What a language model's request has gained, as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.deployment.triton.backend.llm_request import Ask
    from trtkit.runtime.llm.outputs import CompletionOutput, Delta


def pieces(ask: Ask, news: Delta) -> Iterator[dict[str, Array]]:
    """Yield the responses that a delta makes: itself where the prompt is streamed, else all answers at the end."""
    if ask.is_streamed and ask.params.num_beams == 1:
        yield _streamed(ask, news)
    elif news.output is not None:
        text = ask.input_text or ""
        yield _whole(ask, news.output.outputs, text, len(news.output.prompt_token_ids))


def _streamed(ask: Ask, news: Delta) -> dict[str, Array]:
    """Return what one answer has gained."""
    arrays = {
        "text_output": _text([news.text]),
        "output_ids": np.array([[news.token_ids]], dtype=np.int32),
        "sequence_length": np.array([[len(news.token_ids)]], dtype=np.int32),
        "finish_reason": _text([news.finish_reason or ""]),
        **_places(ask, [news.index]),
        "num_output_tokens": np.array([[len(news.token_ids)]], dtype=np.int32),
    }
    if ask.has_logprobs:
        arrays["output_log_probs"] = np.array([[[each.logprob for each in news.logprobs]]], dtype=np.float32)
    return arrays


def _whole(ask: Ask, answers: Sequence[CompletionOutput], text: str, prompt_tokens: int) -> dict[str, Array]:
    """Return all answers of a prompt; shorter ones are filled up with -1."""
    longest = max(len(each.token_ids) for each in answers)
    ids = np.full((1, len(answers), longest), -1, dtype=np.int32)
    for row, each in enumerate(answers):
        ids[0, row, : len(each.token_ids)] = each.token_ids
    lengths = [len(each.token_ids) for each in answers]
    arrays = {
        "text_output": _text([text + each.text for each in answers]),
        "output_ids": ids,
        "sequence_length": np.array([lengths], dtype=np.int32),
        "finish_reason": _text([each.finish_reason or "" for each in answers]),
        **_places(ask, range(len(answers))),
        "num_input_tokens": np.array([[prompt_tokens]], dtype=np.int32),
        "num_output_tokens": np.array([[sum(lengths)]], dtype=np.int32),
    }
    if ask.has_logprobs:
        arrays |= _logprobs(answers, longest)
    return arrays


def _logprobs(answers: Sequence[CompletionOutput], longest: int) -> dict[str, Array]:
    """Return log probabilities of every token, 0 behind shorter answers, and their sums."""
    each = np.zeros((1, len(answers), longest), dtype=np.float32)
    for row, answer in enumerate(answers):
        values = [item.logprob for item in answer.logprobs or ()]
        each[0, row, : len(values)] = values
    sums = [answer.cumulative_logprob or 0.0 for answer in answers]
    return {"output_log_probs": each, "cum_log_probs": np.array([sums], dtype=np.float32)}


def _places(ask: Ask, indices: Sequence[int]) -> dict[str, Array]:
    """Return which prompt of the request this is, and which of its answers."""
    return {
        "batch_index": np.array([[ask.row]], dtype=np.int32),
        "sequence_index": np.array([list(indices)], dtype=np.int32),
    }


def _text(values: Sequence[str]) -> Array:
    """Return text [N]; not [1, N], since TensorRT-LLM's clients read it so."""
    return np.array([value.encode() for value in values], dtype=np.object_)
