"""A prompt on its way: one engine request for each of its answers, or one for all of a beam search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.runtime.generation import Finished, Request
from trtkit.runtime.llm.answer import Answer
from trtkit.runtime.llm.outputs import CompletionOutput, Delta, RequestOutput, combined_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.sampling.sampled import TokenLogprobs
    from trtkit.runtime.sampling.settings import Settings
    from trtkit.runtime.text import Tokenizer


@dataclass(eq=False)
class Job:
    """A prompt, its answers so far, and those that have ended, by index."""

    id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    tokenizer: Tokenizer | None
    is_streamed: bool = False
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    completions: dict[int, CompletionOutput] = field(default_factory=dict)
    _has_ended: bool = False

    def start(self, settings: Settings, priority: int) -> list[Request]:
        """Return the engine's requests. settings: of the first answer."""
        count = 1 if self.params.num_beams > 1 else self.params.n
        self.answers = [self._answer() for _ in range(count)]
        for index, answer in enumerate(self.answers):
            watcher = answer if self.params.stop or self.is_streamed else None
            name = f"{self.id}/{index}"
            self.requests.append(Request(name, self.prompt_ids, settings.of_answer(index), priority, watcher))
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
        """Return what answer `index` has gained since the last time."""
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
        asked = self.params.prompt_logprobs is not None
        prompt_logprobs = tuple(self.requests[0].prompt_logprobs) if asked else None
        return RequestOutput(self.id, self.prompt, tuple(self.prompt_ids), completions, metrics, prompt_logprobs)

    def _answer(self) -> Answer:
        return Answer(self.tokenizer, self.prompt_ids, self.params)

    def _last_index(self) -> int:
        return next(reversed(self.completions))

    def _finish_beams(self, finished: Finished) -> None:
        """Take the best answers of a beam search: as many as were asked and found, one that is empty without any."""
        self._has_ended = True
        for index, found in enumerate(self._hypotheses(finished)):
            answer = self._answer()
            is_stop = bool(found[0]) and found[0][-1] in finished.request.settings.stop_ids
            answer.finish(found[0], has_stop_token=is_stop)
            reason = finished.reason if finished.reason in ("abort", "error") else "stop" if is_stop else "length"
            stop_reason = found[0][-1] if is_stop else finished.stop_reason if reason == "error" else None
            ids = tuple(answer.token_ids)
            self.completions[index] = CompletionOutput(index, answer.text, ids, reason, stop_reason, found[1])

    def _hypotheses(self, finished: Finished) -> Iterator[tuple[list[int], float | None]]:
        """Return tokens and log probability of each answer asked for."""
        for beam in finished.beams[: self.params.n]:
            yield beam.token_ids, beam.score * len(beam.token_ids) ** self.params.length_penalty
        if not finished.beams:
            yield [], None
