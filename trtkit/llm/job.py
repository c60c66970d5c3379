"""A prompt in progress and its answers so far: one engine request per answer, or one for all of a beam search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.llm.engine import Finished, Request
from trtkit.llm.outputs import CompletionOutput, Delta, RequestOutput, combined_metrics
from trtkit.runtime.text import IncrementalDetokenizer, StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.scheduler import SchedulingParams
    from trtkit.runtime.text import Tokenizer


class AnswerText:
    """The text of one answer; the engine's Watcher if a stream or stop strings need every token.

    on_news: called when a stream has new text.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._told_pieces = self._told_tokens = self.told_logprobs = 0
        self.token_ids: list[int] = []
        self.on_news: Callable[[], None] | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def add(self, tokens: Sequence[int]) -> str | None:
        """Add new tokens; return the stop string that they complete, if any."""
        self.token_ids.extend(tokens)
        self._pieces.append(self._stops.add(self._detokenizer.add(tokens)))
        if self.on_news is not None:
            self.on_news()
        return self._stops.matched

    def finish(self, token_ids: Sequence[int], *, has_stop_token: bool) -> None:
        """Take all of the answer's tokens at its end; a token that stopped it gives no text."""
        rest = token_ids[len(self.token_ids) :]
        shown = rest[:-1] if has_stop_token else rest
        if shown and self._stops.matched is None:
            self._pieces.append(self._stops.add(self._detokenizer.add(shown)))
        self.token_ids.extend(rest)
        if self._stops.matched is None:
            self._pieces.append(self._stops.add(self._detokenizer.finish()) + self._stops.finish())

    def news(self) -> tuple[str, tuple[int, ...]]:
        """Return text and tokens that are new since the last call."""
        text = "".join(self._pieces[self._told_pieces :])
        tokens = tuple(self.token_ids[self._told_tokens :])
        self._told_pieces, self._told_tokens = len(self._pieces), len(self.token_ids)
        return text, tokens


@dataclass(eq=False)
class PromptJob:
    """A prompt, its answers so far, and those that have ended, by index."""

    id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    tokenizer: Tokenizer | None
    is_streamed: bool = False
    answers: list[AnswerText] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    completions: dict[int, CompletionOutput] = field(default_factory=dict)
    _has_ended: bool = False

    def start(self, settings: Settings, scheduling: SchedulingParams) -> list[Request]:
        """Return the engine's requests. settings: of the first answer."""
        count = 1 if self.params.num_beams > 1 else self.params.n
        self.answers = [self._answer() for _ in range(count)]
        for index, answer in enumerate(self.answers):
            watcher = answer if self.params.stop or self.is_streamed else None
            name = f"{self.id}/{index}"
            self.requests.append(Request(name, self.prompt_ids, settings.of_answer(index), scheduling, watcher))
        return self.requests

    @property
    def is_done(self) -> bool:
        """Whether all answers have ended."""
        return self._has_ended if self.params.num_beams > 1 else len(self.completions) >= self.params.n

    def finish(self, finished: Finished) -> None:
        """Take an answer's end, or that of a whole beam search."""
        if self.params.num_beams > 1:
            self._finish_beams(finished)
            return
        index = self.requests.index(finished.request)
        answer = self.answers[index]
        has_stop_token = finished.reason == "stop" and isinstance(finished.stop_reason, int)
        answer.finish(finished.token_ids, has_stop_token=has_stop_token)
        logprobs = finished.request.logprobs if self.params.logprobs is not None else None
        self.completions[index] = CompletionOutput(
            index,
            answer.text,
            tuple(answer.token_ids),
            finished.reason,
            finished.stop_reason,
            None if logprobs is None else sum(item.logprob for item in logprobs),
            None if logprobs is None else tuple(logprobs),
        )

    def deltas(self, index: int) -> Delta:
        """Return what is new in answer `index` since the last call."""
        answer, done = self.answers[min(index, len(self.answers) - 1)], self.completions.get(index)
        text, tokens = answer.news()
        logprobs: tuple[TokenLogprobs, ...] = ()
        if self.params.num_beams == 1 and self.params.logprobs is not None:
            logprobs = tuple(self.requests[index].logprobs[answer.told_logprobs :])
            answer.told_logprobs += len(logprobs)
        if self.params.num_beams > 1 and done is not None:
            text, tokens = done.text, done.token_ids
        reason, stop = (None, None) if done is None else (done.finish_reason, done.stop_reason)
        output = self.output() if done is not None and self.is_done and index == self._last_index() else None
        return Delta(self.id, index, text, tokens, logprobs, reason, stop, output)

    def output(self) -> RequestOutput:
        """Return the prompt with all its answers."""
        completions = tuple(self.completions[index] for index in sorted(self.completions))
        tokens = sum(len(item.token_ids) for item in completions)
        metrics = combined_metrics(len(self.prompt_ids), tokens, [request.metrics for request in self.requests])
        has_logprobs = self.params.prompt_logprobs is not None
        prompt_logprobs = tuple(self.requests[0].prompt_logprobs) if has_logprobs else None
        return RequestOutput(self.id, self.prompt, tuple(self.prompt_ids), completions, metrics, prompt_logprobs)

    def _answer(self) -> AnswerText:
        return AnswerText(self.tokenizer, self.prompt_ids, self.params)

    def _last_index(self) -> int:
        return next(reversed(self.completions))

    def _finish_beams(self, finished: Finished) -> None:
        """Take the best answers of a beam search: at most `n`; an empty one if it has none."""
        self._has_ended = True
        for index, (token_ids, logprob) in enumerate(self._hypotheses(finished)):
            answer = self._answer()
            is_stop = bool(token_ids) and token_ids[-1] in finished.request.settings.stop_ids
            answer.finish(token_ids, has_stop_token=is_stop)
            reason = finished.reason if finished.reason in ("abort", "error") else "stop" if is_stop else "length"
            stop_reason = token_ids[-1] if is_stop else finished.stop_reason if reason == "error" else None
            ids = tuple(answer.token_ids)
            self.completions[index] = CompletionOutput(index, answer.text, ids, reason, stop_reason, logprob)

    def _hypotheses(self, finished: Finished) -> Iterator[tuple[list[int], float | None]]:
        """Return tokens and log probability of each requested answer."""
        for beam in finished.beams[: self.params.n]:
            yield beam.token_ids, beam.score * len(beam.token_ids) ** self.params.length_penalty
        if not finished.beams:
            yield [], None
