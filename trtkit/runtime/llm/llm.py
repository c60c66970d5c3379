"""`LLM`: a bundle that answers prompts, in vLLM's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import RequestError
from trtkit.runtime.llm.frontend import Frontend, LlmOptions
from trtkit.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.generation import Statistics
    from trtkit.runtime.llm.outputs import Delta, RequestOutput
    from trtkit.runtime.llm.prompts import Prompt
    from trtkit.runtime.llm.text_bundle import TextBundle


class LLM:
    """A bundle of a decoder-only language model, ready to answer.

    options: those of LlmOptions, by keyword. Raises GenerationError, RequestError or BundleError where the bundle
    cannot be opened so.
    """

    def __init__(self, bundle: TextBundle | Bundle | Path | str, **options: Any) -> None:
        self._frontend = Frontend(bundle, LlmOptions(**options))

    @property
    def description(self) -> str:
        """What computes."""
        return self._frontend.execution.description

    @property
    def tokenizer(self) -> Any:
        """The bundle's tokenizer (trtkit.runtime.text.Tokenizer), None where it has none."""
        return self._frontend.tokenizer

    @property
    def frontend(self) -> Frontend:
        """The engine and its jobs, for programs that drive the steps themselves."""
        return self._frontend

    @property
    def statistics(self) -> Statistics:
        """What the engine has done so far."""
        return self._frontend.engine.statistics

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, many at once; return their outputs in order.

        sampling_params: one for all, or one each. on_output: told each output as it is complete.
        Raises RequestError before anything runs where a prompt or its settings cannot be.
        """
        many = _prompts(prompts)
        params = _params(sampling_params, len(many))
        names: list[str] = []
        try:
            for prompt, each in zip(many, params, strict=True):
                names.append(self._frontend.add(prompt, each).id)
            found = self._run(set(names), on_output)
        except BaseException:
            self._cancel(names)
            raise
        return [found[name] for name in names]

    def chat(
        self, messages: Sequence[Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: lists of `{"role": ..., "content": ...}`."""
        conversations = [messages] if messages and not isinstance(messages[0], (list, tuple)) else messages
        return self.generate([{"messages": list(each)} for each in conversations], sampling_params)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, priority: int = 0
    ) -> Iterator[Delta]:
        """Answer one prompt, piece by piece. Leaving the loop early ends the request.

        Raises RequestError at once, not at the first piece.
        """
        job = self._frontend.add(prompt, sampling_params or SamplingParams(), priority=priority, is_streamed=True)
        return self._pieces(job.id)

    def close(self) -> None:
        """Give the memory back."""
        self._frontend.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pieces(self, name: str) -> Iterator[Delta]:
        try:
            while name in self._frontend.jobs:
                self._frontend.step()
                yield from (delta for delta in self._frontend.news() if delta.request_id == name)
        finally:
            self._cancel([name])

    def _run(self, names: set[str], on_output: Callable[[RequestOutput], None] | None) -> dict[str, RequestOutput]:
        """Step until all of `names` are done."""
        found: dict[str, RequestOutput] = {}
        while names - found.keys():
            for job in self._frontend.step():
                found[job.id] = job.output()
                if on_output is not None:
                    on_output(found[job.id])
        return found

    def _cancel(self, names: Sequence[str]) -> None:
        """End what is still under way, so that the next call begins with an empty engine."""
        cancelled = [name for name in names if self._frontend.cancel(name)]
        if cancelled:
            self._frontend.step()


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; a bare list of ids is one prompt."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    many: list[Any] = list(prompts)
    return [many] if many and all(isinstance(item, int) for item in many) else many


def _params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Return settings for each prompt."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if len(given) != count:
        what = f"{len(given)} settings are given for {count} prompts"
        raise RequestError(what, "sampling_params", "give one for all, or one for each prompt")
    return list(given)
