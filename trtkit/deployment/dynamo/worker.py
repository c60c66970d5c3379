"""One bundle as an NVIDIA Dynamo worker: `python -m trtkit.deployment.dynamo.worker BUNDLE --name NAME`.

Dynamo's frontend applies chat templates, tokenizes, detokenizes, detects stop strings and parses tool calls; the worker
receives and returns token ids. It finds the frontend through Dynamo's environment variables, such as `DYN_FILE_KV`.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo.common.backend.engine import EngineConfig, GenerateChunk, GenerateRequest, LLMEngine, LlmRegistration
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.publisher import KvEventSource, PushSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import EngineShutdown, HttpError, InvalidArgument, Unknown
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trtkit.deployment.dynamo.adapters import LOAD, UNLOAD, ServedAdapters
from trtkit.deployment.dynamo.cache_events import CacheEvents, blocks_of
from trtkit.deployment.dynamo.disaggregation import Decode, Prefill, prompt_alone
from trtkit.deployment.dynamo.extra import require_nixl
from trtkit.deployment.dynamo.options import (
    ADMIN_TOKEN,
    ASLEEP,
    BLOCK_SIZE,
    SILENT,
    SLEEP,
    WAKE_UP,
    worker_parser,
)
from trtkit.deployment.dynamo.requests import chunk, default_settings, read_request, read_scheduling
from trtkit.deployment.engine_metrics import COUNTERS, gauges
from trtkit.errors import (
    GenerationError,
    OverloadedError,
    Problem,
    ProblemsError,
    RequestError,
    SourceError,
    TrtkitError,
)
from trtkit.llm import AsyncLLM

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from dynamo._core import Context, Endpoint
    from dynamo._core.backend import EngineMetrics  # type: ignore[import-not-found]
    from prometheus_client import Metric

    from trtkit.deployment.dynamo.cache_events import EventPublisher, LoadPublisher
    from trtkit.llm import EngineThread
    from trtkit.llm.engine import LLMEngine as Engine


_LAST_WORDS_S = 0.5
_MOST_PROBLEMS = 20
log = logging.getLogger("trtkit.dynamo")


class BundleWorker(LLMEngine):
    """Runs a bundle for Dynamo."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._model = options.bundle / "model"
        self._llm: AsyncLLM | None = None
        self._cache = CacheEvents()
        self._prefill: Prefill | None = None
        self._decode: Decode | None = None
        self._numbers = itertools.count()
        self._names: dict[str, str] = {}
        self._adapters = ServedAdapters(options, _served_name(options))
        self._admin_token, self._is_listed = os.environ.get(ADMIN_TOKEN, ""), True

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[BundleWorker, WorkerConfig]:
        """Return the worker for a command line, and its registration."""
        parser = worker_parser()
        options = parser.parse_args(argv)
        if options.serving.lora and options.role != "agg":
            parser.error("LoRA adapters go with --role agg")
        return cls(options), WorkerConfig(
            namespace=options.namespace,
            component="prefill" if options.role == "prefill" else "trtkit",
            disaggregation_mode=DisaggregationMode(options.role),
            endpoint="generate",
            model_name=str(options.bundle / "model"),
            served_model_name=_served_name(options),
            endpoint_types=options.endpoint_types,
            discovery_backend=options.discovery,
            request_plane="tcp",
            event_plane="zmq",
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
            enable_kv_routing=options.has_kv_routing,
        )

    async def start(self, worker_id: int) -> EngineConfig:  # noqa: ARG002
        await asyncio.to_thread(self._open_transfers)
        serving = replace(self._options.serving, detokenizes=False)
        self._llm = await asyncio.to_thread(AsyncLLM, self._options.bundle, on_step=self._after_step, **vars(serving))
        frontend = self._llm.thread.frontend
        text, execution = frontend.text, frontend.execution
        self._defaults = default_settings(self._model)
        registration = LlmRegistration(
            context_length=text.max_length,
            kv_cache_block_size=BLOCK_SIZE,
            total_kv_blocks=blocks_of(execution),
            max_num_seqs=execution.slots,
            max_num_batched_tokens=execution.max_prefill_length,
        )
        return EngineConfig(str(self._model), llm=registration)

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        """Answer a request token by token. Closing the generator, or `abort`, frees its slot."""
        llm = self._opened
        text = llm.thread.frontend.text
        name = self._names[context.id()] = f"{context.id()}/{next(self._numbers)}"
        try:
            if self._decode is not None:
                await self._decode.fetch(request, llm.thread)
            if self._prefill is not None:
                self._prefill.expect(name, request)
                request = prompt_alone(request)
            prompt, params = read_request(request, self._defaults, text.max_length)
            params = replace(params, adapter=self._adapters.of(request))
            async for delta in llm.generate(prompt, params, name, read_scheduling(request)):
                if delta.finish_reason == "error":
                    raise Unknown(str(delta.stop_reason))
                data = chunk(delta, text.tokenizer, has_logprobs=params.logprobs is not None)
                if self._prefill is not None and delta.finish_reason is not None:
                    data |= self._prefill.result(name)
                yield data  # type: ignore[misc]
        except TrtkitError as error:
            raise self._told(error) from None
        finally:
            self._names.pop(context.id(), None)
            if self._prefill is not None:
                self._prefill.result(name)

    async def abort(self, context: Context) -> None:
        """Abort a request whose client has disconnected."""
        name = self._names.get(context.id())
        if name is not None:
            await self._opened.abort(name)

    async def health_check_payload(self) -> dict[str, object]:
        """Return the request with which an idle worker is probed."""
        return {"token_ids": [0], "stop_conditions": {"max_tokens": 1}, "sampling_options": {"temperature": 0.0}}

    async def kv_event_sources(self) -> list[KvEventSource]:
        """Return the sources from which the router learns the cache's contents."""
        return [PushSource(self._begin_events)]  # type: ignore[arg-type]

    def component_metrics_dp_ranks(self) -> list[int]:
        """Return the ranks whose load is reported."""
        return [0]

    def attach_snapshot_publisher(self, publisher: LoadPublisher) -> None:
        self._cache.load = publisher

    async def register_prometheus(self, metrics: EngineMetrics) -> None:
        """Add the engine's metrics to the process's metrics."""
        register_engine_registry(metrics, engine_registry(self._opened.thread))

    def supported_updates(self) -> set[str]:
        """Return the updates that `POST /engine/update/<name>` on this worker's own port accepts: none without a token.

        Sleeping is not one of Dynamo's own controls, since Dynamo takes a worker out of service before it asks whether
        the worker complies. Caches of adapters are not transferred, so disaggregated workers accept no adapters.
        """
        if not self._admin_token:
            return set()
        return {SLEEP, WAKE_UP, *((LOAD, UNLOAD) if self._options.role == "agg" else ())}

    async def engine_update(self, update: str, body: dict[str, object]) -> dict[str, object]:
        """Sleep, wake up, load or unload a LoRA adapter, if the request has the token. Exceptions become HTTP 500."""
        token = body.get("token") if isinstance(body, dict) else None
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._admin_token.encode()):
            raise InvalidArgument(f"{update}: `token` is missing or wrong; `trtkit serve --json` prints it")
        try:
            if update == SLEEP:
                await self._sleep()
            elif update == WAKE_UP:
                await self._opened.wake()
                await self._list(is_listed=True)
            else:
                await self._adapters.update(self._opened, update, body)
        except TrtkitError as error:
            raise InvalidArgument(_one_line(error)) from None
        return {"status": "ok"}

    async def on_endpoint_ready(self, endpoint: Endpoint) -> None:
        """Announce the loaded adapters."""
        llm = self._opened
        await self._adapters.serve(endpoint, llm, llm.thread.frontend.text.max_length)

    async def is_quiescent(self) -> bool:
        """Return whether this worker may exit: no loan can still be read."""
        return self._prefill is None or self._prefill.is_quiescent()

    async def cleanup(self) -> None:
        """End all requests and free the memory."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.close)

    async def _sleep(self) -> None:
        """Free the GPU memory once running requests have ended; new ones go to other workers."""
        await self._list(is_listed=False)
        try:
            await self._opened.sleep()
        except BaseException:
            await self._list(is_listed=True)
            raise

    async def _list(self, *, is_listed: bool) -> None:
        """List this worker at the frontend for requests, or unlist it."""
        endpoint = self._adapters.endpoint
        if endpoint is None:
            raise EngineShutdown("the worker does not serve yet")
        if is_listed != self._is_listed:
            await (endpoint.register_endpoint_instance() if is_listed else endpoint.unregister_endpoint_instance())
            self._is_listed = is_listed

    def _open_transfers(self) -> None:
        """Open the cache transfers that this worker's role needs."""
        options = self._options
        if options.role != "agg":
            require_nixl()
        if options.role == "prefill":
            self._prefill = Prefill(options.lent_mib << 20, options.lent_s)
        elif options.role == "decode":
            self._decode = Decode(options.transfer_s)

    def _after_step(self, engine: Engine) -> None:
        """Report the step's cache changes to the router and lend the caches it completed; in the engine's thread."""
        self._cache.update(engine)
        if self._prefill is not None:
            self._prefill.update(engine)

    def _begin_events(self, publisher: EventPublisher) -> None:
        """Set the publisher of cache events, and report the current contents to it."""
        self._cache.events = publisher
        self._opened.thread.run(self._cache.update)

    @property
    def _opened(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineShutdown("the worker is stopping")
        return self._llm

    def _told(self, error: TrtkitError) -> Exception:
        """Return an error as Dynamo's kind: an invalid request, a full queue, or a stopped engine.

        Dynamo sends nothing more to a worker that reports it has stopped, and retries the request elsewhere.
        """
        if isinstance(error, (RequestError, SourceError)):  # a source is an image that cannot be read
            return InvalidArgument(_one_line(error))
        if isinstance(error, OverloadedError):
            return HttpError(503, _one_line(error))
        if self._llm is not None and self._llm.thread.failure is not None:
            log.critical("the engine has failed, its process ends", exc_info=self._llm.thread.failure)
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
        return (EngineShutdown if isinstance(error, GenerationError) else Unknown)(_one_line(error))


def _served_name(options: argparse.Namespace) -> str:
    """Return the model's name in requests."""
    return str(options.name or options.bundle.resolve().name)


def _one_line(error: TrtkitError) -> str:
    """Return an error's first problems and their fixes on one line."""
    problems: Sequence[Problem | TrtkitError] = error.problems if isinstance(error, ProblemsError) else (error,)
    parts = [f"{problem.where}: {problem.what}" if problem.where else problem.what for problem in problems]
    fixes = [f"{part} ({problem.fix})" if problem.fix else part for part, problem in zip(parts, problems, strict=True)]
    more = len(fixes) - _MOST_PROBLEMS
    return "; ".join([*fixes[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


class EngineCollector(Collector):
    """Collects an engine's metrics on request."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics `trtkit_*`."""
        engine = self._thread.frontend.awake_engine
        yield GaugeMetricFamily(SILENT, "Seconds that the engine's step takes by now.", self._thread.silent_s)
        yield GaugeMetricFamily(ASLEEP, "1 while the model is asleep.", float(engine is None))
        if engine is None:
            return
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"trtkit_{name}", text, getattr(engine.statistics, name))
        for name, (text, value) in gauges(engine).items():
            yield GaugeMetricFamily(f"trtkit_{name}", text, value)


def engine_registry(thread: EngineThread) -> CollectorRegistry:
    """Return a registry with the metrics of a thread's engine."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(thread))
    return registry


if __name__ == "__main__":
    run(BundleWorker)
