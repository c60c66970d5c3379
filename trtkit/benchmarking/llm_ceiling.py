"""The ceilings of a language model's figures under a load, and the layers that are furthest from theirs.

Caches are taken to be as long as the tokens in them, and all prompts that are under way to be computed at once: nothing
that gives these tokens is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.benchmarking.ceiling import Ceiling, ceiling_of, largest_gaps, layer_rows, median_seconds, of_rate, of_time
from trtkit.benchmarking.static_batches import TransformersServer
from trtkit.benchmarking.text_server import EngineServer
from trtkit.engine.decoders import llm_options
from trtkit.jobs.events import Phase
from trtkit.planning.count_decoder import place_of
from trtkit.planning.jobs import COUNT_DECODER, CountRequest
from trtkit.planning.roofline import floor
from trtkit.runtime.decoder import Call
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.benchmarking.text_server import TextServer
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.planning.counts import Counts
    from trtkit.planning.multilinear import Point
    from trtkit.planning.roofline import Roof
    from trtkit.runtime.decoder import DecoderExecution

Json = dict[str, Any]


@dataclass(frozen=True)
class _Load:
    """A load by its means: tokens of a prompt that had to be computed, all of it, of its answer; requests at once."""

    new_tokens: int
    input_tokens: int
    output_tokens: int
    under_way: int

    @property
    def prefill(self) -> Point:
        """One request's prompt, alone."""
        return 1, self.new_tokens, self.input_tokens

    @property
    def prefill_of_all(self) -> Point:
        """The prompts of all that are under way."""
        return self.under_way, self.new_tokens, self.input_tokens

    @property
    def decode(self) -> Point:
        """A step of all that are under way, at the mean length."""
        return self.under_way, 1, self.input_tokens + (self.output_tokens + 1) // 2


def add_ceilings(bundle: Bundle, servers: Sequence[TextServer], cases: Sequence[Json], runner: Runner) -> Ceiling:
    """Add to each case its figures' ceilings, and its layers beside theirs; return what they are held against.

    The caches of the bundle in this process are written over.
    """
    own = servers[0]
    if own.place is None or not isinstance(own, EngineServer):
        return ceiling_of(None, ())
    counts = _counts(bundle, runner)
    ceiling = ceiling_of(own.place, counts.products)
    timed: dict[Point, Json] = {}
    for case in cases if ceiling.roof is not None else ():
        assert ceiling.roof is not None
        for server, result in zip(servers, case["results"], strict=True):
            load = _load(result)
            is_counted = server is own or isinstance(server, TransformersServer)
            if load is not None and is_counted and server.place == own.place:
                result["ceilings"] = _figures(counts, ceiling.roof, load, result)
        load = _load(case["results"][0])
        if load is not None:
            runner.report(Phase(f"layers of {case['name']}"))
            case["phases"] = _phases(own.execution, counts, ceiling.roof, load, timed)
    return ceiling


def _counts(bundle: Bundle, runner: Runner) -> Counts:
    """Count the bundle's network in a process of its own, a group for each layer of a block."""
    where = bundle.path / "model" / "config.json"
    config, quantized = bundle.manifest.config, bundle.network_record().quantization
    length, fields = llm_options(config).max_sequence_length, read_json(where)
    request = CountRequest(bundle.manifest.backend.name, config, fields, str(where), length, quantized, by_layer=True)
    return runner.run(COUNT_DECODER, request)


def _load(result: Json) -> _Load | None:
    """Return what a contender's requests were on average; None where none succeeded."""
    done = [request for request in result["requests"] if not request["error"] and request["token_ms"]]
    if not done:
        return None
    inputs, outputs = (mean(values) for values in _token_counts(done))
    new = max(1.0, inputs - result["reused_tokens"] / len(done))
    spent = sum(request["ended_ms"] - request["sent_ms"] for request in done)
    duration = max(request["ended_ms"] for request in done) - min(request["sent_ms"] for request in done)
    return _Load(round(new), round(inputs), round(outputs), max(1, round(spent / duration)))


def _token_counts(requests: Sequence[Json]) -> tuple[list[int], list[int]]:
    return [each["input_tokens"] for each in requests], [len(each["token_ms"]) for each in requests]


def _figures(counts: Counts, roof: Roof, load: _Load, result: Json) -> Json:
    """Return the ceilings of one contender's figures, times' beside their medians."""
    first, together, step = (floor(counts, at, roof) for at in (load.prefill, load.prefill_of_all, load.decode))
    metrics = result["metrics"]
    steps_s = (load.output_tokens - 1) * step.seconds
    times = {
        "time_to_first_token": (first.seconds, first.bound),
        "inter_token_latency": (step.seconds, step.bound),
        "request_latency": (first.seconds + steps_s, (step if steps_s > first.seconds else first).bound),
    }
    found = {name: of_time(least, metrics[name]["p50"], by) for name, (least, by) in times.items() if name in metrics}
    most = load.under_way * load.output_tokens / (together.seconds + steps_s)
    bound = (step if steps_s > together.seconds else together).bound
    throughput = metrics["output_token_throughput"]["avg"]
    return found | {"output_token_throughput": of_rate(most, throughput, bound)}


def _phases(
    execution: DecoderExecution, counts: Counts, roof: Roof, load: _Load, timed: dict[Point, Json]
) -> list[Json]:
    """Return every layer of a prefill and of a decode step, those of all blocks added up.

    timed: what was already timed, which is not timed again: cases at several concurrencies share their prefill.
    """
    rows = min(load.under_way, execution.slots)
    size = min(load.new_tokens, execution.max_prefill_length)
    known = min(load.input_tokens, execution.max_length - 1)
    prefill = Call(0, np.zeros((1, size), np.int64), np.zeros(1, np.int64), np.full(1, size))
    decode = Call(0, np.zeros((rows, 1), np.int64), np.full(rows, known), np.ones(rows, np.int64))
    points = {"prefill": (1, size, size), "decode": (rows, 1, known + 1)}
    for (name, point), call in zip(points.items(), (prefill, decode), strict=True):
        if point not in timed:
            timed[point] = _phase(name, point, counts, roof, partial(_by_place, execution, call))
    return [timed[point] for point in points.values()]


def _phase(name: str, point: Point, counts: Counts, roof: Roof, run_once: Callable[[], dict[str, float]]) -> Json:
    rows = layer_rows(counts, point, roof, median_seconds(run_once))
    whole = {"flops": counts.flops.at(point), "bytes": counts.fused_bytes.at(point)}
    at = {"batch": point[0], "new_tokens": point[1], "cached_tokens": point[2]}
    return {"name": name, "at": at, **whole, "layers": rows, "gaps": largest_gaps(rows)}


def _by_place(execution: DecoderExecution, call: Call) -> dict[str, float]:
    """Return the seconds of layers, those of all blocks added up."""
    seconds: dict[str, float] = {}
    for name, took in execution.layer_seconds(call).items():
        place = " + ".join(place_of(part) for part in name.split(" + "))
        seconds[place] = seconds.get(place, 0.0) + took
    return seconds
