"""`LLM`: a bundle that answers prompts, in vLLM's shape."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from trtkit.errors import GenerationError, RequestError
from trtkit.llm.frontend import Frontend
from trtkit.llm.named_settings import default_params
from trtkit.llm.offload.decoder import OffloadedDecoder
from trtkit.llm.prompts import PreparedPrompt, problems_of, raise_prompt_problems
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.scheduler import DEFAULT_SCHEDULING
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.engine import Statistics
    from trtkit.llm.offload.decoder import OffloadCounts
    from trtkit.llm.outputs import Delta, RequestOutput
    from trtkit.llm.prompts import AnyPrompt
    from trtkit.llm.scheduler import SchedulingParams
    from trtkit.llm.text_bundle import TextBundle
    from trtkit.runtime.text import Tokenizer


class LLM:
    """An open bundle of a decoder-only language model. Threads may share it; their requests share its steps.

    options: keywords of ServingOptions. Raises GenerationError, RequestError or BundleError if the bundle cannot be
    opened.
    """

    def __init__(self, bundle: TextBundle | Bundle | Path | str, **options: Any) -> None:
        self._frontend = Frontend(bundle, ServingOptions(**options))
        self._lock = threading.RLock()
        # What steps brought for calls and streams other than the one that ran the step.
        self._outputs: dict[str, RequestOutput] = {}
        self._deltas: dict[str, list[Delta]] = {}

    def __repr__(self) -> str:
        state = "closed" if self._frontend.is_closed else f"{self.slots} slots, {self.description}"
        return f"LLM({str(self._frontend.bundle.path)!r}: {state})"

    @property
    def description(self) -> str:
        """What runs the model."""
        return self._frontend.execution.description

    @property
    def slots(self) -> int:
        """Number of concurrent sequences."""
        return self._frontend.execution.slots

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The bundle's tokenizer, None if it has none."""
        return self._frontend.tokenizer

    @property
    def frontend(self) -> Frontend:
        """The engine and its jobs, for programs that run the steps themselves."""
        return self._frontend

    @property
    def statistics(self) -> Statistics:
        """What the engine has done so far."""
        return self._frontend.engine.statistics

    @property
    def offload_counts(self) -> OffloadCounts | None:
        """What stages in turn have loaded and copied so far; None without `offload`."""
        execution = self._frontend.execution
        return execution.counts if isinstance(execution, OffloadedDecoder) else None

    @property
    def adapters(self) -> list[str]:
        """The names of the LoRA adapters that requests may use."""
        adapters = self._frontend.adapters
        return [] if adapters is None else adapters.names

    def load_adapter(self, name: str, folder: Path | str) -> None:
        """Load a LoRA adapter that PEFT saved; requests use it by `SamplingParams(adapter=name)`.

        Raises RequestError if the name is taken or the engine takes no adapters, SourceError or ProblemsError for an
        adapter that does not fit.
        """
        with self._lock:
            self._frontend.engine.load_adapter(name, self._frontend.read_adapter(folder))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter: new requests are refused, running ones finish. Raises RequestError for unknown names."""
        with self._lock:
            self._frontend.engine.unload_adapter(name)

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts in one batch; return their outputs in order.

        sampling_params: one for all, or one for each; prepared prompts have their own. If None, decoding is greedy,
        with up to 128 tokens, as in `trtkit generate`; SamplingParams() samples 16 tokens, as in vLLM.
        on_output: called with each output when it is complete.

        All prompts are checked before anything runs: raises PromptsError that lists every problem with the number of
        its prompt, or RequestError for a single prompt.
        """
        many, is_single = _listed(prompts)
        checked = self._check(many, sampling_params, is_single=is_single)
        names: list[str] = []
        try:
            for prompt in checked:
                names.append(self._start(prompt))
            outputs = self._run(set(names), on_output)
        except BaseException:
            self._cancel(names)
            raise
        return [outputs[name] for name in names]

    def chat(
        self, messages: Sequence[Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: lists of `{"role": ..., "content": ...}`."""
        if messages and not isinstance(messages[0], (list, tuple)):
            return self.generate({"messages": list(messages)}, sampling_params)
        return self.generate([{"messages": list(conversation)} for conversation in messages], sampling_params)

    def stream(
        self,
        prompt: AnyPrompt,
        sampling_params: SamplingParams | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> Iterator[Delta]:
        """Stream the answer to one prompt. Leaving the loop early ends the request.

        Raises RequestError immediately, not at the first piece.
        """
        (checked,) = self._check([prompt], sampling_params, is_single=True)
        with self._lock:
            name = self._frontend.start(checked, scheduling=scheduling, is_streamed=True).id
            self._deltas[name] = []
        return self._pieces(name)

    def answers(self, prompts: Sequence[PreparedPrompt]) -> Iterator[RequestOutput]:
        """Answer any number of prepared prompts; yield each output as soon as it is complete, in any order.

        They run in the order that computes least. Only enough of them wait to keep every slot busy, so that the others'
        outputs, images and recordings take no memory. All prompts are checked before anything runs: raises PromptsError
        that lists every problem.
        """
        checked = self._check(prompts, None, is_single=False)
        yield from self.answers_to(iter(run_order(checked, has_long_first=self.has_long_first)))

    @property
    def has_long_first(self) -> bool:
        """Whether long answers run first; otherwise prompts with the same prefix follow each other."""
        return self._frontend.engine.prefixes.are_pages or self.offload_counts is not None

    def answers_to(self, prompts: Iterator[PreparedPrompt], most: int | None = None) -> Iterator[RequestOutput]:
        """Answer prompts as `answers` does, in the given order, each read when there is room for it.

        most: prompts under way at once; None for as many as keep every slot busy. Raises RequestError for a prompt that
        can never be served.
        """
        names: set[str] = set()
        is_over = False
        try:
            while not is_over or names:
                while not is_over and self._frontend.engine.waiting < self.slots and len(names) != most:
                    prompt = next(prompts, None)
                    if prompt is None:
                        is_over = True
                    else:
                        names.add(self._start(prompt))
                for output in self._next(names) if names else ():
                    names.discard(output.request_id)
                    yield output
        finally:
            self._cancel(sorted(names))

    def sleep(self) -> None:
        """Free the GPU's memory, weights and caches, until `wake`. Raises GenerationError while a stream is read."""
        with self._lock:
            self._frontend.sleep()

    def wake(self) -> None:
        """Load the model again. Answers stay the same; statistics and caches start anew."""
        with self._lock:
            self._frontend.wake()

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._frontend.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pieces(self, name: str) -> Iterator[Delta]:
        try:
            is_over = False
            while not is_over:
                with self._lock:
                    is_over = name not in self._frontend.jobs
                    if not is_over and not self._deltas[name]:
                        self._step()
                    deltas, self._deltas[name] = self._deltas[name], []
                yield from deltas
        finally:
            self._cancel([name])

    def _check(
        self,
        prompts: Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        is_single: bool,
    ) -> list[PreparedPrompt]:
        """Return the prompts, prepared and checked. Raises PromptsError, of a single prompt without a place its own."""
        checked, problems = [], []
        for index, (prompt, params) in enumerate(zip(prompts, _params(sampling_params, len(prompts)), strict=True)):
            where = "" if is_single else f"prompt {index}"
            try:
                prepared = self._frontend.text.prepare(prompt, params)
                where = prepared.where or where
                checked.append(self._frontend.check(prepared))
            except RequestError as error:
                if not where:
                    raise
                problems += problems_of(error, where)
        raise_prompt_problems(problems)
        return checked

    def _run(self, names: set[str], on_output: Callable[[RequestOutput], None] | None) -> dict[str, RequestOutput]:
        """Step until all of `names` are done."""
        outputs: dict[str, RequestOutput] = {}
        while names:
            for output in self._next(names):
                names.discard(output.request_id)
                outputs[output.request_id] = output
                if on_output is not None:
                    on_output(output)
        return outputs

    def _start(self, prompt: PreparedPrompt) -> str:
        """Take a prompt; return its id."""
        with self._lock:
            return self._frontend.start(prompt).id

    def _next(self, names: set[str]) -> list[RequestOutput]:
        """Return outputs of `names` that are done, after a step if there are none."""
        with self._lock:
            if not self._outputs.keys() & names:
                self._step()
            return [self._outputs.pop(name) for name in list(self._outputs) if name in names]

    def _step(self) -> None:
        """Run a step and keep what it brings, by request. Raises GenerationError after `close`."""
        if self._frontend.is_closed:
            raise GenerationError("the model was closed before its answers were complete", fix="close it afterwards")
        self._outputs |= {job.id: job.output() for job in self._frontend.step() if not job.is_streamed}
        for delta in self._frontend.news():
            self._deltas.setdefault(delta.request_id, []).append(delta)

    def _cancel(self, names: Sequence[str]) -> None:
        """End what is still under way, so that the next call begins with an empty engine."""
        with self._lock:
            if not self._frontend.is_closed and [name for name in names if self._frontend.cancel(name)]:
                self._step()
            for name in names:
                self._outputs.pop(name, None)
                self._deltas.pop(name, None)


def run_order(prompts: Sequence[PreparedPrompt], *, has_long_first: bool) -> list[PreparedPrompt]:
    """Return prompts in the order that computes least. has_long_first: see `LLM.has_long_first`."""
    return sorted(prompts, key=_by_length if has_long_first else _by_prefix)


def _by_length(prompt: PreparedPrompt) -> int:
    """Sort key, long answers first: one that starts last leaves slots idle, and a block's should be alike in length.

    Pages of common prefixes are found anyway.
    """
    return -prompt.settings.params.max_tokens


def _by_prefix(prompt: PreparedPrompt) -> tuple[str, list[int]]:
    """Sort key that puts prompts with a common prefix next to each other.

    A slot keeps a prefix until its next request.
    """
    return prompt.settings.params.adapter or "", prompt.read.ids


def _listed(prompts: AnyPrompt | Sequence[AnyPrompt]) -> tuple[list[AnyPrompt], bool]:
    """Return a list of prompts, and whether it was a single one; a bare list of ids is."""
    if isinstance(prompts, (str, dict, PreparedPrompt)):
        return [prompts], True
    many: list[Any] = list(prompts)
    is_single = bool(many) and all(isinstance(item, int) for item in many)
    return ([many], True) if is_single else (many, False)


def _params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Return settings for each prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params or default_params()] * count
    if len(params) != count:
        what = f"got {len(params)} settings for {count} prompts"
        raise RequestError(what, "sampling_params", "give one for all, or one for each prompt")
    return list(params)
