"""Ceilings of a language model's figures under load, and the layers furthest from theirs.

Caches are assumed to be only as long as the tokens in them, and all running prompts to be computed at once, so that
nothing that produces these tokens can be faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from trtkit.benchmarking.ceiling import ceiling_of, of_rate, of_time, phase_layers
from trtkit.benchmarking.ceiling_report import Ceiling, StepShape
from trtkit.benchmarking.static_batches import TransformersServer
from trtkit.benchmarking.text_server import EngineServer
from trtkit.builder.decoders import llm_options
from trtkit.jobs.events import Phase
from trtkit.llm.execution import Call
from trtkit.models.parallel import SINGLE
from trtkit.models.registry import decoder_spec
from trtkit.planning.count_decoder import place_of
from trtkit.planning.jobs import COUNT_DECODER, CountRequest
from trtkit.planning.paged import copied_pages
from trtkit.planning.roofline import floor
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.ceiling_report import PhaseLayers, Reached
    from trtkit.benchmarking.report import TextCase, TextResult
    from trtkit.benchmarking.text_server import TextServer
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.llm.execution import DecoderExecution
    from trtkit.planning.counts import NetworkCounts, Point
    from trtkit.planning.roofline import Roof


@dataclass(frozen=True)
class _MeanLoad:
    """A load by its means: computed prompt tokens, all prompt tokens, answer tokens; concurrent requests."""

    new_tokens: int
    input_tokens: int
    output_tokens: int
    under_way: int

    @property
    def prefill(self) -> Point:
        """A single request's prompt."""
        return 1, self.new_tokens, self.input_tokens

    @property
    def prefill_of_all(self) -> Point:
        """The prompts of all running requests."""
        return self.under_way, self.new_tokens, self.input_tokens

    @property
    def decode(self) -> Point:
        """A decode step of all running requests, at the mean length."""
        return self.under_way, 1, self.input_tokens + (self.output_tokens + 1) // 2


def with_ceilings(
    bundle: Bundle, servers: Sequence[TextServer], cases: Sequence[TextCase], runner: Runner
) -> tuple[Ceiling, tuple[TextCase, ...]]:
    """Return the reference for figures, and the cases with their figures' ceilings and layer times.

    The caches of the bundle in this process are overwritten. There are no ceilings for several ranks: the roofline
    excludes links.
    """
    own_server = servers[0]
    if bundle.manifest.grid != SINGLE:
        return Ceiling("none: the roofline has no links between ranks"), tuple(cases)
    if own_server.device is None or not isinstance(own_server, EngineServer):
        return ceiling_of(None, ())[0], tuple(cases)
    counts = _counts(bundle, runner)
    ceiling, roof = ceiling_of(own_server.device, counts.products)
    if roof is None:
        return ceiling, tuple(cases)
    timer = _LayerTimer(own_server.execution, counts, roof)
    complete = []
    for case in cases:
        results = tuple(map(partial(_with_ceilings, counts, roof, own_server), servers, case.results))
        load = _load(case.results[0])
        phases: tuple[PhaseLayers, ...] = ()
        if load is not None:
            runner.report(Phase(f"layers of {case.name}"))
            phases = timer.phases(load)
        complete.append(replace(case, results=results, phases=phases))
    return ceiling, tuple(complete)


def _with_ceilings(
    counts: NetworkCounts, roof: Roof, own_server: EngineServer, server: TextServer, result: TextResult
) -> TextResult:
    """Return a contender's result with its ceilings if it computes the counted network on the same device."""
    load = _load(result)
    is_counted = server is own_server or isinstance(server, TransformersServer)
    if load is None or not is_counted or server.device != own_server.device:
        return result
    return replace(result, ceilings=_figures(counts, roof, load, result))


def _counts(bundle: Bundle, runner: Runner) -> NetworkCounts:
    """Count the bundle's network in its own process, with one group per layer of a block."""
    where = bundle.path / "model" / "config.json"
    config, quantized = bundle.manifest.config, bundle.network_record().quantization
    length, fields = llm_options(config).max_sequence_length, read_json(where)
    request = CountRequest(bundle.manifest.backend.name, config, fields, str(where), length, quantized, by_layer=True)
    counts, spec = runner.run(COUNT_DECODER, request), decoder_spec(fields, str(where))
    pages = copied_pages(config, request.backend, spec, None if quantized is None else quantized.kv_cache)
    return counts if pages is None else counts.with_gathered_pages(pages)


def _load(result: TextResult) -> _MeanLoad | None:
    """Return the means of a contender's requests; None if none succeeded."""
    done = [request for request in result.requests if not request.error and request.token_ms]
    if not done:
        return None
    inputs = mean([request.input_tokens for request in done])
    outputs = mean([len(request.token_ms) for request in done])
    new = max(1.0, inputs - result.reused_tokens / len(done))
    spent = sum(request.ended_ms - request.sent_ms for request in done)
    duration = max(request.ended_ms for request in done) - min(request.sent_ms for request in done)
    return _MeanLoad(round(new), round(inputs), round(outputs), max(1, round(spent / duration)))


def _figures(counts: NetworkCounts, roof: Roof, load: _MeanLoad, result: TextResult) -> dict[str, Reached]:
    """Return the ceilings of one contender's figures; for times, of their medians."""
    first, together, step = (floor(counts, at, roof) for at in (load.prefill, load.prefill_of_all, load.decode))
    steps_s = (load.output_tokens - 1) * step.seconds
    times = {
        "time_to_first_token": (first.seconds, first.bound),
        "inter_token_latency": (step.seconds, step.bound),
        "request_latency": (first.seconds + steps_s, (step if steps_s > first.seconds else first).bound),
    }
    reached = {
        name: of_time(least_s, measured.p50, bound)
        for name, (least_s, bound) in times.items()
        if (measured := result.distribution(name))
    }
    most = load.under_way * load.output_tokens / (together.seconds + steps_s)
    bound = (step if steps_s > together.seconds else together).bound
    return reached | {"output_token_throughput": of_rate(most, result.metrics["output_token_throughput"].avg, bound)}


@dataclass
class _LayerTimer:
    """Times every layer of a prefill and of a decode step, summed over all blocks.

    timed: results reused for repeated steps: cases with several concurrencies share their prefill.
    """

    execution: DecoderExecution
    counts: NetworkCounts
    roof: Roof
    timed: dict[Point, PhaseLayers] = field(default_factory=dict)

    def phases(self, load: _MeanLoad) -> tuple[PhaseLayers, PhaseLayers]:
        """Return the layers of a load's prefill and decode steps."""
        rows = min(load.under_way, self.execution.slots)
        size = min(load.new_tokens, self.execution.max_prefill_length)
        known = min(load.input_tokens, self.execution.max_length - 1)
        prefill = Call(0, np.zeros((1, size), np.int64), np.zeros(1, np.int64), np.full(1, size))
        decode = Call(0, np.zeros((rows, 1), np.int64), np.full(rows, known), np.ones(rows, np.int64))
        return self._phase("prefill", (1, size, size), prefill), self._phase("decode", (rows, 1, known + 1), decode)

    def _phase(self, name: str, point: Point, call: Call) -> PhaseLayers:
        if point not in self.timed:
            run_once = partial(_by_place, self.execution, call)
            layers = phase_layers(name, self.counts, point, self.roof, run_once)
            self.timed[point] = replace(layers, at=StepShape(*point))
        return self.timed[point]


def _by_place(execution: DecoderExecution, call: Call) -> dict[str, float]:
    """Return the seconds of layers, summed over all blocks."""
    seconds: dict[str, float] = {}
    for name, layer_s in execution.layer_seconds(call).items():
        path = " + ".join(place_of(part) for part in name.split(" + "))
        seconds[path] = seconds.get(path, 0.0) + layer_s
    return seconds
