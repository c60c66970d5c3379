"""A language model of Triton's Python backend, with in-flight batching, streamed answers and metrics."""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtkit.deployment.engine_metrics import COUNTERS, gauges
from trtkit.deployment.triton.backend.llm_request import Defaults, check_parameters, read_asks, renamed
from trtkit.deployment.triton.backend.requests import answer, arrays_of, read_settings, refusal, version_folder
from trtkit.errors import DeployError
from trtkit.llm.engine_thread import EngineThread
from trtkit.llm.sampling.params import SamplingParams
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.deployment.triton.backend.llm_request import Ask
    from trtkit.llm.engine import LLMEngine
    from trtkit.llm.outputs import CompletionOutput, Delta


# Interval of checks for disconnected clients.
POLL_S, IDLE_S = 0.05, 1.0
_LAST_WORDS_S = 0.5  # for answers to reach the server
log = logging.getLogger(__name__)


class RequestStream:
    """A running request: its answers so far, and where they are sent. asks: its unfinished prompts by name."""

    def __init__(self, request: Any, asks: Mapping[str, Ask]) -> None:
        self.sender = request.get_response_sender()
        self.outputs = frozenset(request.requested_output_names())
        self.asks = dict(asks)


class LlmModel:
    """The class that Triton's Python backend calls. Three threads: the server's, the engine's, and a sender."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle in the version's folder and, if requested, answer a warm-up prompt."""
        settings = read_settings(args)
        if "serving" not in settings:
            raise DeployError("an older trtkit deployed this model", fix="deploy it again")
        serving = ServingOptions.of(settings["serving"])
        if serving.cache_dir is not None:
            serving = replace(serving, cache_dir=Path(serving.cache_dir) / args["model_instance_name"])
        self._engine = EngineThread(version_folder(args) / "bundle", **vars(serving))
        encode = partial(self._engine.frontend.reader.encode, add_special_tokens=False)
        self._defaults = Defaults(settings["default_max_tokens"], encode)
        self._metrics = EngineMetrics(self._engine.frontend.engine, _labels(args))
        self._numbers = itertools.count()
        self._streams: dict[str, RequestStream] = {}
        self._news: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="trtkit-sender", daemon=True)
        self._sender.start()
        if settings["warmup"]:
            self._warm_up()

    def execute(self, requests: Sequence[Any]) -> None:
        """Pass requests to the engine; their answers are sent as they arrive."""
        for request in requests:
            try:
                check_parameters(json.loads(request.parameters() or "{}"))
                rows = read_asks(arrays_of(request), self._defaults)
                asks = {str(next(self._numbers)): ask for ask in rows}
            except Exception as error:
                _refuse(request.get_response_sender(), error)
                continue
            stream = RequestStream(request, asks)
            for name, ask in asks.items():
                self._streams[name] = stream
                self._engine.submit(ask.prompt, ask.params, name, _Putter(self._news, name), ask.scheduling)

    def finalize(self) -> None:
        """Stop the engine and the sender."""
        self._engine.close()
        self._news.put(None)
        self._sender.join()

    def _send_all(self) -> None:
        """Send deltas as they arrive, check for disconnected clients, and update the metrics."""
        item: tuple[str, Any] | tuple[()] | None
        looked_s = 0.0
        while True:
            try:
                item = self._news.get(timeout=POLL_S if self._streams else IDLE_S)
            except queue.Empty:
                item = ()
            if item is None:
                return
            if item:
                self._send(*item)
            if self._engine.failure is not None and not self._streams:
                _end_process(self._engine.failure)
            if time.monotonic() - looked_s > POLL_S:
                self._abort_cancelled()
                self._metrics.update()
                looked_s = time.monotonic()

    def _send(self, name: str, news: Any) -> None:
        stream = self._streams.get(name)
        if stream is None:
            return
        ask = stream.asks[name]
        is_last = isinstance(news, Exception) or news.output is not None
        if is_last:
            self._metrics.update()  # who has an answer finds its tokens counted
        if isinstance(news, Exception):
            stream.sender.send(refusal(renamed(news)))
        else:
            for outputs in pieces(ask, news):
                stream.sender.send(answer({key: array for key, array in outputs.items() if key in stream.outputs}))
        if is_last:
            del self._streams[name], stream.asks[name]
            if not stream.asks:
                stream.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _abort_cancelled(self) -> None:
        """Abort requests whose client disconnected or cancelled."""
        for name, stream in list(self._streams.items()):
            if stream.sender.is_cancelled():
                self._engine.abort(name)

    def _warm_up(self) -> None:
        """Answer a prompt, so that one-time work is done."""
        done = threading.Event()
        params = SamplingParams(temperature=0.0, max_tokens=2)
        errors: list[Exception] = []

        def on_news(news: Any) -> None:
            if isinstance(news, Exception):
                errors.append(news)
            if errors or news.output is not None:
                done.set()

        self._engine.submit([0], params, "warm-up", on_news)
        done.wait()
        if errors:
            raise errors[0]


class _Putter:
    """Puts the engine's deltas of one prompt into the sender's queue."""

    def __init__(self, news: queue.SimpleQueue[Any], name: str) -> None:
        self._news, self._name = news, name

    def __call__(self, news: Any) -> None:
        self._news.put((self._name, news))


def _labels(args: Mapping[str, str]) -> dict[str, str]:
    return {"model": args["model_name"], "version": args["model_version"]}


def _end_process(failure: Exception) -> None:
    """Exit this process once its clients know: a failed engine cannot continue, and Triton would not report it."""
    log.critical("the engine has failed, its process ends", exc_info=failure)
    time.sleep(_LAST_WORDS_S)
    os._exit(1)


def _refuse(sender: Any, error: Exception) -> None:
    sender.send(refusal(error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def pieces(ask: Ask, news: Delta) -> Iterator[dict[str, Array]]:
    """Yield the responses for a delta: the delta itself if the prompt is streamed, otherwise all answers at the end."""
    if ask.is_streamed and ask.params.num_beams == 1:
        yield _streamed(ask, news)
    elif news.output is not None:
        text = ask.input_text or ""
        yield _whole(ask, news.output.outputs, text, len(news.output.prompt_token_ids))


def _streamed(ask: Ask, news: Delta) -> dict[str, Array]:
    """Return the new part of one answer."""
    arrays = {
        "text_output": _text([news.text]),
        "output_ids": np.array([[news.token_ids]], dtype=np.int32),
        "sequence_length": np.array([[len(news.token_ids)]], dtype=np.int32),
        "finish_reason": _text([news.finish_reason or ""]),
        **_places(ask, [news.index]),
        "num_output_tokens": np.array([[len(news.token_ids)]], dtype=np.int32),
    }
    if ask.has_logprobs:
        arrays["output_log_probs"] = np.array([[[token.logprob for token in news.logprobs]]], dtype=np.float32)
    return arrays


def _whole(ask: Ask, answers: Sequence[CompletionOutput], text: str, prompt_tokens: int) -> dict[str, Array]:
    """Return all answers of a prompt; shorter ones are padded with -1."""
    longest = max(len(completion.token_ids) for completion in answers)
    ids = np.full((1, len(answers), longest), -1, dtype=np.int32)
    for row, completion in enumerate(answers):
        ids[0, row, : len(completion.token_ids)] = completion.token_ids
    lengths = [len(completion.token_ids) for completion in answers]
    arrays = {
        "text_output": _text([text + completion.text for completion in answers]),
        "output_ids": ids,
        "sequence_length": np.array([lengths], dtype=np.int32),
        "finish_reason": _text([completion.finish_reason or "" for completion in answers]),
        **_places(ask, range(len(answers))),
        "num_input_tokens": np.array([[prompt_tokens]], dtype=np.int32),
        "num_output_tokens": np.array([[sum(lengths)]], dtype=np.int32),
    }
    if ask.has_logprobs:
        arrays |= _logprobs(answers, longest)
    return arrays


def _logprobs(answers: Sequence[CompletionOutput], longest: int) -> dict[str, Array]:
    """Return the log probabilities of all tokens, padded with 0, and their sums."""
    array = np.zeros((1, len(answers), longest), dtype=np.float32)
    for row, output in enumerate(answers):
        values = [item.logprob for item in output.logprobs or ()]
        array[0, row, : len(values)] = values
    sums = [answer.cumulative_logprob or 0.0 for answer in answers]
    return {"output_log_probs": array, "cum_log_probs": np.array([sums], dtype=np.float32)}


def _places(ask: Ask, indices: Sequence[int]) -> dict[str, Array]:
    """Return the index of the prompt in the request, and the indices of its answers."""
    return {
        "batch_index": np.array([[ask.row]], dtype=np.int32),
        "sequence_index": np.array([list(indices)], dtype=np.int32),
    }


def _text(values: Sequence[str]) -> Array:
    """Return text as [N] rather than [1, N], the shape that TensorRT-LLM's clients expect."""
    return np.array([value.encode() for value in values], dtype=np.object_)


class EngineMetrics:
    """Metrics `trtkit_*` of one model."""

    def __init__(self, engine: LLMEngine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._families: list[Any] = []
        self._counters = {
            name: self._metric(f"{name}_total", text, "COUNTER", labels) for name, text in COUNTERS.items()
        }
        self._gauges = {name: self._metric(name, text, "GAUGE", labels) for name, (text, _) in gauges(engine).items()}
        self._told = dict.fromkeys(COUNTERS, 0)

    def update(self) -> None:
        """Report the current values to the server."""
        for name, metric in self._counters.items():
            count = getattr(self._engine.statistics, name)
            metric.increment(count - self._told[name])
            self._told[name] = count
        for name, (_, value) in gauges(self._engine).items():
            self._gauges[name].set(value)

    def _metric(self, name: str, text: str, kind: str, labels: dict[str, str]) -> Any:
        family = pb_utils.MetricFamily(f"trtkit_{name}", text, getattr(pb_utils.MetricFamily, kind))
        self._families.append(family)  # a metric ends with its family
        return family.Metric(labels=labels)
