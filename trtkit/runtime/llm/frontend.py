"""Prompts in, answers out: what the synchronous and the asynchronous API share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.bundle.bundle import open_bundle
from trtkit.errors import RequestError
from trtkit.runtime.decoder import ExecutionOptions, open_execution
from trtkit.runtime.encoded import open_encoder
from trtkit.runtime.generation import CacheFolder, DraftProposer, Engine, EngineOptions, LookupProposer, Request
from trtkit.runtime.llm.job import Job
from trtkit.runtime.llm.known_answer import check_known_answer
from trtkit.runtime.llm.text_bundle import TextBundle, read_text_bundle
from trtkit.runtime.scheduling import DEFAULT_SCHEDULING, ScheduleOptions
from trtkit.runtime.vision_language import open_tower

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.decoder import DecoderExecution, Runtime
    from trtkit.runtime.generation.proposers import Proposer
    from trtkit.runtime.llm.outputs import CompletionOutput, Delta
    from trtkit.runtime.llm.prompts import PreparedPrompt, Prompt, ReadPrompt
    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.scheduling import ScheduleName, SchedulingParams
    from trtkit.runtime.soft_tokens import SoftTokens


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """How to open a bundle.

    runtime: "tensorrt", "reference", or "auto" for TensorRT if a GPU is present. slots: concurrent sequences; the
    engine's number if None. cache_gib: memory for paged caches on each GPU; as much as full slots would take if None.
    host_cache_gib: host memory for what the caches have no room for; 0: none. cache_dir: folder where all of that is
    written too, up to `cache_dir_gib`, and found by the next process.
    weight_budget_gib: GPU memory for an engine's weights, of which the others stay in host memory; all if None.
    prefill_budget: new tokens per step. schedule: which request runs next, by name or with its options.
    max_queue: maximum requests that wait for a slot.
    lookup: number of tokens to guess from earlier text. draft: bundle of a smaller model that guesses `draft_tokens`.
    has_cuda_graphs: whether to capture and replay an engine's decode steps.
    detokenizes: whether answers have text; without, stop strings cannot end them.
    needs_all_logits: run on the reference executor if the engine returns only the last token's logits.
    """

    runtime: Runtime = "auto"
    slots: int | None = None
    cache_gib: float | None = None
    host_cache_gib: float = 2.0
    weight_budget_gib: float | None = None
    cache_dir: str | Path | None = None
    cache_dir_gib: float = 16.0
    prefill_budget: int | None = None
    schedule: ScheduleName | ScheduleOptions = "priority"
    max_queue: int | None = None
    min_shared_tokens: int = 16
    lookup: int = 0
    draft: str | Path | None = None
    draft_tokens: int = 4
    has_cuda_graphs: bool = True
    detokenizes: bool = True
    needs_all_logits: bool = False


class Frontend:
    """A bundle ready to answer: tokenizer, engine, and the jobs in it. Not for several threads at once."""

    def __init__(self, bundle: TextBundle | Bundle | Path | str, options: RuntimeOptions) -> None:
        text = bundle if isinstance(bundle, TextBundle) else read_text_bundle(bundle)
        opened = self.bundle = text.bundle
        how = ExecutionOptions(
            options.has_cuda_graphs, options.needs_all_logits, options.cache_gib, options.weight_budget_gib
        )
        self.execution = open_execution(opened, options.runtime, options.slots, how)
        text = replace(text, has_all_logits=self.execution.has_all_logits)
        self.text, self.tokenizer, self.reader = text, text.tokenizer, text.reader
        self._words = text.tokenizer if options.detokenizes else None
        self.vocabulary = text.vocabulary  # here, since two threads will prepare prompts by it
        self._tower = None if text.images is None else open_tower(opened, options.runtime)
        self._encoder = None if text.encoded is None else open_encoder(opened, options.runtime)
        self.jobs: dict[str, Job] = {}
        self._numbers = itertools.count()
        self._news: dict[tuple[str, int], Job] = {}
        if opened.manifest.grid.ranks > 1:
            self._check_ranks()
        engine_options = EngineOptions(
            options.prefill_budget,
            options.max_queue,
            options.min_shared_tokens,
            self._proposer(options),
            schedule=ScheduleOptions.of(options.schedule),
            host_cache_bytes=_bytes_of(options.host_cache_gib, "host_cache_gib"),
            cache_folder=self._cache_folder(options),
        )
        self.engine = Engine(self.execution, engine_options)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        is_streamed: bool = False,
    ) -> Job:
        """Take a prompt. Raises RequestError where it cannot be served; then nothing of it is kept."""
        return self.start(self.text.prepare(prompt, params), request_id, scheduling, is_streamed=is_streamed)

    def check(self, prepared: PreparedPrompt) -> PreparedPrompt:
        """Return the prompt with its images in their places. Raises RequestError if no run could serve it."""
        checked = self.text.check(prepared)
        self.engine.check(Request("", checked.read.ids, checked.settings))
        return checked

    def start(
        self,
        prepared: PreparedPrompt,
        request_id: str | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        is_streamed: bool = False,
    ) -> Job:
        """Take a prompt that was prepared. Raises as `add` does."""
        name = request_id or prepared.request_id or f"request-{next(self._numbers)}"
        if name in self.jobs:
            raise RequestError("a request with this id is already running", name, "give each request a unique id")
        params = prepared.settings.params
        self.engine.check_room(1 if params.num_beams > 1 else params.n)
        read = self.check(prepared).read
        job = Job(name, read.text, read.ids, params, self._words, is_streamed)
        self._submit(job.start(prepared.settings, scheduling), read)
        self.jobs[name] = job
        if is_streamed:
            for index, answer in enumerate(job.answers):
                answer.on_news = partial(self._news_of, job, index)
        return job

    def step(self) -> list[Job]:
        """Run the engine one step; return the jobs that are done."""
        done = []
        for finished in self.engine.step():
            name, _, index = finished.request.id.rpartition("/")
            job = self.jobs.get(name)
            if job is None:
                continue
            job.finish(finished)
            if job.is_streamed:
                indexes = list(job.completions) if job.params.num_beams > 1 else [int(index)]
                self._news |= {(name, each): job for each in indexes}
            if job.is_done:
                del self.jobs[name]
                done.append(job)
        return done

    def news(self) -> list[Delta]:
        """Return what streamed answers have gained since the last call."""
        news, self._news = self._news, {}
        return [job.deltas(index) for (_, index), job in news.items()]

    def cancel(self, request_id: str) -> bool:
        """End a job; the next step returns it with what it has. Return whether there was one."""
        job = self.jobs.get(request_id)
        for request in job.requests if job else ():
            self.engine.cancel(request.id)
        return job is not None

    def soft_tokens(self, read: ReadPrompt) -> SoftTokens | None:
        """Run the vision tower on a prompt's images, or the encoder on its text or audio; None where it has neither."""
        if self.text.encoded is not None and self._encoder is not None and read.encoded is not None:
            return self.text.encoded.soft_tokens(read.encoded, self._encoder)
        if self.text.images is None or self._tower is None or read.merged is None:
            return None
        return self.text.images.soft_tokens(read.merged, self._tower)

    def close(self) -> None:
        """Give the memory back, after writing what is cached to the folder for caches, if there is one."""
        try:
            self.engine.close()
        finally:
            self.execution.close()

    def _cache_folder(self, options: RuntimeOptions) -> CacheFolder | None:
        """Return the folder for caches. Raises RequestError if there is no host memory that it could follow."""
        if options.cache_dir is None:
            return None
        limit_bytes = _bytes_of(options.cache_dir_gib, "cache_dir_gib")
        if not options.host_cache_gib:
            what = "files are written from host memory, and `host_cache_gib` is 0"
            raise RequestError(what, "cache_dir", "raise it, or leave `cache_dir` out")
        model = f"{self.text.bundle.manifest.build_key} {self.execution.cache.model}"
        return CacheFolder(Path(options.cache_dir).expanduser(), limit_bytes, model)

    def _check_ranks(self) -> None:
        """Ask the known request, in an engine of its own."""
        self.engine = Engine(self.execution, EngineOptions(host_cache_bytes=0))
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

    def _news_of(self, job: Job, index: int) -> None:
        self._news[job.id, index] = job

    def _submit(self, requests: list[Request], read: ReadPrompt) -> None:
        """Give the engine all of a job's requests or none. The vision tower runs once for all of them."""
        soft = self.soft_tokens(read)
        for index, request in enumerate(requests):
            request.soft = soft
            try:
                self.engine.submit(request)
            except Exception:
                for earlier in requests[:index]:
                    self.engine.cancel(earlier.id)
                raise

    def _proposer(self, options: RuntimeOptions) -> Proposer | None:
        """Return what guesses tokens ahead."""
        if options.lookup < 0 or options.draft_tokens < 1:
            raise RequestError("a negative number of tokens to guess", "lookup", "give 0 or more")
        if options.draft is not None and options.lookup:
            raise RequestError("`draft` and `lookup` cannot be combined", "speculation", "choose one")
        if options.draft is not None:
            return DraftProposer(self._draft(Path(options.draft), options.runtime), options.draft_tokens)
        return LookupProposer(options.lookup) if options.lookup else None

    def _draft(self, path: Path, runtime: Runtime) -> DecoderExecution:
        """Open the draft model with as many slots. Raises RequestError where its tokens are others."""
        draft = open_execution(open_bundle(path), runtime, self.execution.slots)
        if draft.vocab_size != self.execution.vocab_size:
            own = self.execution.vocab_size
            what = f"the draft model's vocabulary has {draft.vocab_size} tokens, the model's has {own}"
            raise RequestError(what, str(path), "use a draft model of the same tokenizer")
        return draft


def _bytes_of(gib: float, name: str) -> int:
    """Return the bytes of so many GiB. Raises RequestError for less than none."""
    if gib < 0:
        raise RequestError(f"{gib:g} GiB are less than none", name, "give 0 or more")
    return int(gib * 2**30)
