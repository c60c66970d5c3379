"""trtkit's language models as models of lm-evaluation-harness, which this module requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from trtkit.errors import GenerationError, RequestError
from trtkit.jobs.events import Progress, ignore
from trtkit.llm.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.llm import LLM

    Done = Callable[[], None]
    from lm_eval.api.instance import Instance

    from trtkit.jobs.events import Listener
    from trtkit.runtime.text import Tokenizer


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A bundle as a harness model, to pass to `lm_eval.simple_evaluate`.

    Tokenization, special tokens and truncation follow the harness's own Hugging Face model. llm: with logits of every
    token. report: called with the number of finished requests. Raises GenerationError for a bundle without a tokenizer.
    """

    def __init__(self, llm: LLM, report: Listener = ignore) -> None:
        super().__init__()
        if llm.tokenizer is None:
            fix = "build it from a source that has one"
            raise GenerationError("the bundle has no tokenizer", str(llm.frontend.bundle.path), fix)
        self._llm, self._report, self._words = llm, report, llm.tokenizer
        self.tokenizer = llm.tokenizer.hf  # the harness reads its chat template

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return _end_of_text(self._words)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        bos = self._words.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """Maximum number of tokens that a token is predicted from."""
        return max_scored(self._llm)

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches rendered chats."""
        return str(self._llm.frontend.bundle.manifest.name)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Return a text's tokens, with the tokenizer's special tokens unless the text already has them."""
        if add_special_tokens is None:
            bos = self._words.decode([self.prefix_token_id], skip_special_tokens=False)
            add_special_tokens = not string.startswith(bos)
        return self._words.encode(string, add_special_tokens)

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as text."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return str(self.tokenizer.apply_chat_template(list(chat_history), tokenize=False, **options))

    def loglikelihood(self, requests: Sequence[Instance], **_: object) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return scored

    def loglikelihood_rolling(self, requests: Sequence[Instance], **_: object) -> list[float]:
        """Return the log-likelihood of each whole text, in windows that cover each token once."""
        windows = [self._windows(request.args[0]) for request in requests]
        likelihoods = iter(self._scored([window for text in windows for window in text], "loglikelihood_rolling"))
        return [sum(next(likelihoods)[0] for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Instance], **_: object) -> list[str]:
        """Return the answer to each prompt."""
        questions = [
            Question(self.tok_encode(prompt), answer_params(keys, index))
            for index, (prompt, keys) in enumerate(request.args for request in requests)
        ]
        return answer(self._llm, questions, self._counted("generate_until", len(questions)))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        return self._scored([ScoredContinuation(context, tokens) for _, context, tokens in requests], "loglikelihood")

    def _scored(self, continuations: Sequence[ScoredContinuation], name: str) -> list[tuple[float, bool]]:
        scored = score(self._llm, continuations, self._counted(name, len(continuations)))
        return [(result.log, result.is_greedy) for result in scored]

    def _windows(self, text: str) -> list[ScoredContinuation]:
        """Return a text in windows; each token is predicted once, from as much context as fits."""
        options = {"prefix_token": self.prefix_token_id, "max_seq_len": self.max_length, "context_len": 1}
        pieces = get_rolling_token_windows(token_list=self.tok_encode(text), **options)
        return [ScoredContinuation(*make_disjoint_window(piece)) for piece in pieces]

    def _counted(self, name: str, total: int) -> Callable[[], None]:
        """Return a callback that reports one more finished request."""
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            self._report(Progress(name, done, total))

        return count


def _end_of_text(words: Tokenizer) -> int:
    """Return the tokenizer's end-of-text token, otherwise the model's."""
    token_id = words.hf.eos_token_id
    if token_id is None and not words.eos_token_ids:
        raise GenerationError("neither tokenizer nor model names a token that ends a text", "eos_token_id")
    return int(words.eos_token_ids[0] if token_id is None else token_id)


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
