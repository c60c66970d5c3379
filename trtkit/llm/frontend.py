"""Prompts in, answers out: the shared part of the synchronous and the asynchronous API."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.bundle.known import read_all_known
from trtkit.errors import GenerationError, RankError, RequestError
from trtkit.llm.adapters import Adapters, bundle_adapters, no_adapters
from trtkit.llm.distributed.world import launched_count
from trtkit.llm.engine import CacheFolder, EngineOptions, LLMEngine, Request
from trtkit.llm.job import PromptJob
from trtkit.llm.networks import open_networks
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.scheduler import DEFAULT_SCHEDULING
from trtkit.llm.text_bundle import TextBundle, read_text_bundle
from trtkit.runtime.device import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.adapters import LoadedAdapter, PreparedAdapter
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.networks import Networks
    from trtkit.llm.outputs import CompletionOutput, Delta
    from trtkit.llm.prompts import PreparedPrompt, Prompt, ReadPrompt
    from trtkit.llm.scheduler import SchedulingParams
    from trtkit.llm.soft_tokens import SoftTokens
    from trtkit.serving_options import ServingOptions


class Frontend:
    """A bundle ready to answer: tokenizer, engine, and running jobs. Not thread-safe."""

    def __init__(self, bundle: TextBundle | Bundle | Path | str, options: ServingOptions) -> None:
        text = bundle if isinstance(bundle, TextBundle) else read_text_bundle(bundle)
        self.bundle, self._options = text.bundle, options
        self._networks: Networks | None = open_networks(text, options)
        self._engine: LLMEngine | None = None
        text = replace(text, has_all_logits=self.execution.has_all_logits)
        self.text, self.tokenizer, self.reader = text, text.tokenizer, text.reader
        self._words = text.tokenizer if options.detokenizes else None
        self.vocabulary = text.vocabulary  # here, since two threads will prepare prompts by it
        self.jobs: dict[str, PromptJob] = {}
        self._numbers = itertools.count()
        self._news: dict[tuple[str, int], PromptJob] = {}
        self.adapters: Adapters | None = None
        self.is_closed = False
        self._begin()

    @property
    def execution(self) -> DecoderExecution:
        """The network's execution. Raises GenerationError while the model is asleep."""
        return self._awake_networks.execution

    @property
    def engine(self) -> LLMEngine:
        """The engine. Raises GenerationError while the model is asleep."""
        if self._engine is None:
            raise asleep()
        return self._engine

    @property
    def awake_engine(self) -> LLMEngine | None:
        """The engine; None while the model is asleep."""
        return self._engine

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._engine is not None and self._engine.has_work

    def warm_up(self) -> None:
        """Compile and capture what steps will run, so that the first request does not wait for it."""
        self.engine.warm_up()

    def sleep(self) -> None:
        """Free the memory of weights and caches, on the GPU and on the host.

        Raises GenerationError while requests run, and for ranks that a launcher started, which could not start again.
        """
        if self._networks is None:
            return
        if self.jobs or self.has_work:
            raise GenerationError("requests are running", fix="wait for their answers, or cancel them")
        if self.bundle.manifest.grid.ranks > 1 and launched_count() is not None:
            raise GenerationError("launched ranks cannot sleep: they would exit", fix="start without a launcher")
        self._unload()

    def wake(self) -> None:
        """Load the model again, with empty caches. Answers stay the same. Raises what opening raises."""
        if self._networks is not None:
            return
        try:
            self._networks = open_networks(self.text, self._options)
            self._begin()
        except BaseException:
            self._unload()
            raise

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        is_streamed: bool = False,
    ) -> PromptJob:
        """Submit a prompt. Raises RequestError if it cannot be served; then nothing of it is kept."""
        return self.start(self.text.prepare(prompt, params), request_id, scheduling, is_streamed=is_streamed)

    def check(self, prepared: PreparedPrompt) -> PreparedPrompt:
        """Return the prompt with its images inserted.

        Raises RequestError if it can never be served, GenerationError after `close`.
        """
        if self.is_closed:
            raise GenerationError("the model is closed", fix="open it again")
        checked = self.text.check(prepared)
        self.engine.check(Request("", checked.read.ids, checked.settings))
        self._adapter_of(checked)
        return checked

    def read_adapter(self, folder: str | Path) -> PreparedAdapter:
        """Read and check an adapter, from any thread. Raises RequestError if the engine takes none, SourceError."""
        if self.adapters is None:
            raise no_adapters()
        return self.adapters.read(folder)

    def _adapter_of(self, prepared: PreparedPrompt) -> LoadedAdapter | None:
        """Return the adapter that a prompt's settings name. Raises RequestError if it is not loaded."""
        name = prepared.settings.params.adapter
        return None if name is None else self.engine.adapter(name)

    def start(
        self,
        prepared: PreparedPrompt,
        request_id: str | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        is_streamed: bool = False,
    ) -> PromptJob:
        """Submit a prepared prompt. Raises as `add` does."""
        name = request_id or prepared.request_id or f"request-{next(self._numbers)}"
        if name in self.jobs:
            raise RequestError("a request with this id is already running", name, "give each request a unique id")
        params = prepared.settings.params
        self.engine.check_room(1 if params.num_beams > 1 else params.n)
        read, adapter = self.check(prepared).read, self._adapter_of(prepared)
        job = PromptJob(name, read.text, read.ids, params, self._words, is_streamed)
        self._submit(job.start(prepared.settings, scheduling), read, adapter)
        self.jobs[name] = job
        if is_streamed:
            for index, answer in enumerate(job.answers):
                answer.on_news = partial(self._news_of, job, index)
        return job

    def step(self) -> list[PromptJob]:
        """Run the engine one step; return the jobs that are done."""
        done = []
        for finished in self._engine.step() if self._engine is not None else ():
            name, _, index = finished.request.id.rpartition("/")
            job = self.jobs.get(name)
            if job is None:
                continue
            job.finish(finished)
            if job.is_streamed:
                indexes = list(job.completions) if job.params.num_beams > 1 else [int(index)]
                self._news |= {(name, index): job for index in indexes}
            if job.is_done:
                del self.jobs[name]
                done.append(job)
        return done

    def news(self) -> list[Delta]:
        """Return the new pieces of streamed answers since the last call."""
        news, self._news = self._news, {}
        return [job.deltas(index) for (_, index), job in news.items()]

    def cancel(self, request_id: str) -> bool:
        """Cancel a job; the next step returns what it has generated. Returns False for an unknown id."""
        job = self.jobs.get(request_id)
        for request in job.requests if job else ():
            self.engine.cancel(request.id)
        return job is not None

    def soft_tokens(self, read: ReadPrompt) -> SoftTokens | None:
        """Run the vision tower on a prompt's images, or the encoder on its text or audio; None if it has neither."""
        tower, encoder = self._awake_networks.tower, self._awake_networks.encoder
        if self.text.encoded is not None and encoder is not None and read.encoded is not None:
            return self.text.encoded.soft_tokens(read.encoded, encoder)
        if self.text.images is None or tower is None or read.merged is None:
            return None
        return self.text.images.soft_tokens(read.merged, tower)

    def close(self) -> None:
        """Write cached prefixes to the cache folder, if there is one, and free the memory."""
        self.is_closed = True
        self._free()

    def _free(self) -> None:
        try:
            if self._engine is not None:
                self._engine.close()
        finally:
            if self._networks is not None:
                self._networks.execution.close()

    def _cache_folder(self, options: ServingOptions) -> CacheFolder | None:
        """Return the cache folder. Raises RequestError if host memory, from which files are written, is off."""
        if options.cache_dir is None:
            return None
        if options.offload is not None:
            raise RequestError("stages in turn keep caches in no folder", "cache_dir", "leave it out")
        limit_bytes = _bytes_of(options.cache_dir_gib, "cache_dir_gib")
        if not options.host_cache_gib:
            what = "files are written from host memory, but `host_cache_gib` is 0"
            raise RequestError(what, "cache_dir", "raise it, or leave `cache_dir` out")
        model = f"{self.text.bundle.manifest.build_key} {self.execution.cache.model}"
        return CacheFolder(Path(options.cache_dir).expanduser(), limit_bytes, model)

    @property
    def _awake_networks(self) -> Networks:
        if self._networks is None:
            raise asleep()
        return self._networks

    def _begin(self) -> None:
        """Create the engine."""
        options = self._options
        if self.bundle.manifest.grid.ranks > 1:
            self._check_ranks()
        engine_options = replace(
            EngineOptions.from_serving(options),
            proposer=self._awake_networks.proposer,
            host_cache_bytes=0 if options.offload else _bytes_of(options.host_cache_gib, "host_cache_gib"),
            cache_folder=self._cache_folder(options),
        )
        slots = self.execution.adapters
        if self.adapters is not None and slots is not None:
            self.adapters.wake(slots)
        begins, self.adapters = self.adapters is None, self.adapters or bundle_adapters(self.bundle, slots)
        self._engine = LLMEngine(self.execution, engine_options, self.adapters)
        for name, folder in (options.lora or {}).items() if begins else ():
            self._engine.load_adapter(name, self.read_adapter(folder))

    def _unload(self) -> None:
        """Close the networks and drop everything that uses them."""
        self._free()
        self._networks = self._engine = None
        if self.adapters is not None:
            self.adapters.sleep()
        release_memory()

    def _check_ranks(self) -> None:
        """Answer the bundle's known request, in an engine of its own."""
        self._engine = LLMEngine(self.execution, EngineOptions(host_cache_bytes=0))
        try:
            check_known_answer(self.text.bundle, self._answer)
        except BaseException:
            self.execution.close()
            raise

    def _answer(self, prompt: str | list[int], params: SamplingParams) -> CompletionOutput:
        """Answer one prompt now."""
        job = self.add(prompt, params)
        while not job.is_done:
            self.step()
        return job.completions[0]

    def _news_of(self, job: PromptJob, index: int) -> None:
        self._news[job.id, index] = job

    def _submit(self, requests: list[Request], read: ReadPrompt, adapter: LoadedAdapter | None) -> None:
        """Submit all of a job's requests or none. The vision tower runs once for all of them."""
        soft = self.soft_tokens(read)
        for index, request in enumerate(requests):
            request.soft, request.adapter = soft, adapter
            try:
                self.engine.submit(request)
            except Exception:
                for earlier in requests[:index]:
                    self.engine.cancel(earlier.id)
                raise


def asleep() -> GenerationError:
    """Return the error for operations that need the model in memory."""
    return GenerationError("the model is asleep", fix="wake it first")


def _bytes_of(gib: float, name: str) -> int:
    """Return GiB in bytes. Raises RequestError if `gib` is negative or not finite."""
    if not 0 <= gib < float("inf"):
        what = f"{gib:g} GiB is negative" if gib < 0 else f"{gib:g} GiB is not a finite number"
        raise RequestError(what, name, "give 0 or more")
    return int(gib * 2**30)


def check_known_answer(bundle: Bundle, answer: Callable[[str | list[int], SamplingParams], CompletionOutput]) -> None:
    """Answer the bundle's known request, if it has one. Raises RankError if the ranks answer something else."""
    known = next(
        (request for request in read_all_known(bundle) if {"text_output", "output_ids"} & request.outputs.keys()), None
    )
    if known is None:
        return
    params = SamplingParams(temperature=0.0, max_tokens=int(known.inputs["max_tokens"].item()))
    if "input_ids" in known.inputs:
        output = answer(known.inputs["input_ids"].reshape(-1).tolist(), params)
        got, expected = str(list(output.token_ids)), str(known.outputs["output_ids"].reshape(-1).tolist())
    else:
        output = answer(known.inputs["text_input"].item().decode(), params)
        got, expected = output.text, known.outputs["text_output"].item().decode()
    if got != expected:
        fix = (
            "the ranks' collectives may do nothing: see `docs/parallel.md`; for a bundle that is right, deploy it again"
        )
        raise RankError(f"the ranks answer the known request with `{got}`, not `{expected}`", str(bundle.path), fix)
