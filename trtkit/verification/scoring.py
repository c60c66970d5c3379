"""What lm-evaluation-harness asks of a language model, in tokens: likelihoods of continuations, and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import GenerationError, RequestError
from trtkit.llm.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.llm import LLM

    Done = Callable[[], None]


MAX_NEW_TOKENS = 256
"""Length limit of an answer whose task does not set one."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")
_WORDS = {"until", "do_sample", "temperature", *_LENGTHS, *_FILTERS}
# Prompt tokens are scored, which gives each one's likelihood; the generated token is not used.
_SCORED = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, ignore_eos=True)


@dataclass(frozen=True)
class ScoredContinuation:
    """Tokens to score after a context of at least one token."""

    context: Sequence[int]
    tokens: Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """Score of a continuation.

    log: sum of its tokens' natural log-likelihoods. is_greedy: every token is the most likely.
    """

    log: float
    is_greedy: bool


@dataclass(frozen=True)
class Question:
    """A prompt to answer."""

    prompt: Sequence[int]
    params: SamplingParams


def max_scored(llm: LLM) -> int:
    """Return how many tokens one may be predicted from.

    A slot's capacity less one, since the scored token is fed too.
    """
    return _length(llm) - 1


def _length(llm: LLM) -> int:
    return llm.frontend.text.max_length


def score(llm: LLM, continuations: Sequence[ScoredContinuation], done: Done = lambda: None) -> list[Likelihood]:
    """Return the likelihood of each continuation. Contexts that are too long are truncated on the left.

    done: called for each result. Raises RequestError for a continuation that is empty or exceeds a slot, and for an
    engine without logits of every token.
    """
    for index, continuation in enumerate(continuations):
        if not continuation.context or not 1 <= len(continuation.tokens) < _length(llm):
            what = f"{len(continuation.tokens)} tokens after {len(continuation.context)}; a slot holds {_length(llm)}"
            raise RequestError(what, f"continuation {index}", "build with a larger `llm.max_sequence_length`")
    prompts = [
        {"prompt_token_ids": [*continuation.context, *continuation.tokens][-_length(llm) :]}
        for continuation in continuations
    ]
    likelihoods = []
    outputs = llm.generate(prompts, _SCORED, lambda _: done()) if prompts else []
    for continuation, output in zip(continuations, outputs, strict=True):
        logprobs = (output.prompt_logprobs or ())[-len(continuation.tokens) :]
        if len(logprobs) != len(continuation.tokens):
            raise GenerationError(
                f"{len(logprobs)} likelihoods of {len(continuation.tokens)} tokens", output.request_id
            )
        likelihoods.append(
            Likelihood(sum(token.logprob for token in logprobs), all(token.rank == 1 for token in logprobs))
        )
    return likelihoods


def answer(llm: LLM, questions: Sequence[Question], done: Done = lambda: None) -> list[str]:
    """Return the answer to each question. Prompts that leave too little room for it are truncated on the left."""
    prompts = []
    for index, question in enumerate(questions):
        room = max_scored(llm) - question.params.max_tokens  # as the harness counts
        if room < 1:
            what = f"{question.params.max_tokens} new tokens; a slot holds {_length(llm)}"
            raise RequestError(what, f"question {index}", "build with a larger `llm.max_sequence_length`")
        prompts.append({"prompt_token_ids": list(question.prompt[-room:])})
    params = [question.params for question in questions]
    outputs = llm.generate(prompts, params, lambda _: done()) if prompts else []
    failed = next((output for output in outputs if output.outputs[0].finish_reason == "error"), None)
    if failed is not None:
        raise GenerationError(str(failed.outputs[0].stop_reason), failed.request_id)
    return [output.outputs[0].text for output in outputs]


def answer_params(keys: Mapping[str, object], seed: int) -> SamplingParams:
    """Return the sampling parameters of a task's `generation_kwargs`: greedy unless they sample. seed: of sampling.

    Raises RequestError for unknown keys.
    """
    unknown = sorted(set(keys) - _WORDS)
    if unknown:
        what = f"the task generates with `{unknown[0]}`, which has no counterpart here"
        raise RequestError(what, "generation_kwargs", f"use {', '.join(sorted(_WORDS))}")
    temperature, samples = keys.get("temperature"), keys.get("do_sample")
    is_sampled = bool(temperature) if samples is None else bool(samples)
    until = keys.get("until")
    words = until if isinstance(until, (list, tuple)) else (until,)
    length = next((keys[name] for name in _LENGTHS if keys.get(name) is not None), MAX_NEW_TOKENS)
    values: dict[str, object] = {name: keys[name] for name in _FILTERS if keys.get(name) is not None}
    values["temperature"] = (1.0 if temperature is None else temperature) if is_sampled else 0.0
    return SamplingParams.from_mapping(
        {**values, "max_tokens": length, "stop": [word for word in words if word], "seed": seed}
    )
