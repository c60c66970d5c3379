"""Benchmarks of networks of arrays: latency and throughput at each shape, under a load, and the hardware's ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling import ceiling_of, of_rate, of_time, phase_layers
from trtkit.benchmarking.contenders import Contender, own_contender, rival
from trtkit.benchmarking.load import RequestOutcome, drive
from trtkit.benchmarking.metrics import duration_s, load_metrics, named_objectives, request_times
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.report import Ratio, ServedCase, ServedResult, TimedCase, TimedResult, VisionReport
from trtkit.benchmarking.schedules import schedules_of
from trtkit.benchmarking.served import Endpoint, workers_of
from trtkit.benchmarking.statistics import Total, distribution, median, ratio_of_medians
from trtkit.benchmarking.timing import STEADY_DRIFT, drift_of, measure
from trtkit.errors import BenchError, SourceError
from trtkit.inputs.samples import Sample, random_sample, read_samples, wrapped_sample
from trtkit.jobs.events import Phase, Progress
from trtkit.planning.count_network import count_layers
from trtkit.planning.roofline import floor
from trtkit.verification.compare import compare, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.benchmarking.ceiling_report import Ceiling, Reached
    from trtkit.benchmarking.metrics import RequestRecord
    from trtkit.benchmarking.report import Provenance
    from trtkit.benchmarking.request import BenchRequest
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.timing import Rules, Timing
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.records import IoRecord
    from trtkit.jobs.runner import Runner
    from trtkit.network.input_spec import ResolvedProfile
    from trtkit.planning.counts import NetworkCounts
    from trtkit.planning.roofline import Roof

ArraysCase = TimedCase | ServedCase
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ShapeCase:
    """The shapes of all inputs in one run. batch: the first input's first dimension, which throughput counts."""

    shapes: Shapes

    @property
    def batch(self) -> int:
        first = next(iter(self.shapes.values()), ())
        return first[0] if first else 1

    @property
    def name(self) -> str:
        """Return `images 8x3x224x224`."""
        return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in self.shapes.items())


Measured = tuple[ShapeCase, Sample, ArraysCase]


def profile_cases(inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]) -> list[ShapeCase]:
    """Return the distinct min, opt and max shapes of all profiles; the only shapes of a static network."""
    static = {tensor.name: tensor.shape for tensor in inputs}
    distinct: list[Shapes] = [] if profiles else [static]
    for profile in profiles:
        for kind in ("min", "opt", "max"):
            shapes = {**static, **{name: tuple(getattr(shape, kind)) for name, shape in profile.items()}}
            if shapes not in distinct:
                distinct.append(shapes)
    return [ShapeCase(shapes) for shapes in distinct]


def batch_cases(
    batches: Sequence[int], inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]
) -> list[ShapeCase]:
    """Return the opt shapes with other batch sizes in every input's first dimension, if dynamic.

    Raises BenchError for a batch size outside all profiles.
    """
    return [_batch_case(batch, inputs, profiles) for batch in dict.fromkeys(batches)]


def _batch_case(batch: int, inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]) -> ShapeCase:
    static = {tensor.name: tensor.shape for tensor in inputs}
    dynamic = [tensor.name for tensor in inputs if tensor.shape and tensor.shape[0] == -1]
    for profile in profiles:
        if dynamic and all(profile[name].min[0] <= batch <= profile[name].max[0] for name in dynamic):
            opt = {name: tuple(shape.opt) for name, shape in profile.items()}
            batched = {name: (batch, *opt[name][1:]) for name in dynamic}
            return ShapeCase({**static, **opt, **batched})
    first = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    if not dynamic and batch == first:
        return ShapeCase(static)
    raise BenchError(f"no profile takes a batch of {batch}", "--batch", _allowed(dynamic, first, profiles))


def _allowed(dynamic: Sequence[str], first: int, profiles: Sequence[ResolvedProfile]) -> str:
    if not dynamic:
        return f"the network is static: its batch is {first}"
    ranges = [f"{profile[dynamic[0]].min[0]} to {profile[dynamic[0]].max[0]}" for profile in profiles]
    return f"give {' or '.join(ranges)}, or widen the profile and build again"


def bench_vision(bundle: Bundle, request: BenchRequest, about: Provenance, runner: Runner) -> VisionReport:
    """Return the report of a run. about: time and command of its start.

    Raises BenchError if the bundle was not verified, does not support a batch, or a rival cannot compute it.
    """
    verified = verification(bundle, is_waived=request.is_waived)
    cases = _cases(bundle, request.batches)
    runner.report(Phase("load"))
    contenders = [_measured(bundle, request)]
    contenders += [rival(name, bundle, request) for name in request.rivals]
    make_sample, inputs = _data(bundle)
    measured = []
    for index, case in enumerate(cases):
        sample, report = make_sample(case), _percent(runner, case.name, index, len(cases))
        measured += [(case, sample, figures) for figures in _measured_cases(case, contenders, sample, request, report)]
    state = gpu_state()
    ceiling, complete = with_ceilings(bundle, contenders, measured, runner)
    return VisionReport(
        provenance=about,
        name=bundle.manifest.name,
        computes=contenders[0].computes,
        bundle=bundle_record(bundle, verified),
        inputs=inputs,
        rules=request.rules,
        cuda_graphs=contenders[0].cuda_graphs,
        ceiling=ceiling,
        gpu_state_after=state,
        cases=complete,
    )


def _measured_cases(
    case: ShapeCase,
    contenders: Sequence[Contender],
    sample: Sample,
    request: BenchRequest,
    report: Callable[[float], None],
) -> Iterator[TimedCase | ServedCase]:
    """Yield one case, or one for each load on the server."""
    load = request.load
    if not load.arrival_fields:
        yield measure_case(case, contenders, sample, request.rules, report)
        return
    objectives = named_objectives(load.goodput)
    schedules = schedules_of(load, load.count)
    for index, schedule in enumerate(schedules):
        report(index / len(schedules))
        yield measure_load(case, schedule, contenders[0], sample, load.count, objectives)


def _percent(runner: Runner, name: str, index: int, count: int) -> Callable[[float], None]:
    """Return a callback that takes the finished share of case `index` and reports it as percent of all cases."""

    def report(share: float) -> None:
        runner.report(Progress("measure", round(100 * (index + share) / count), 100, name))

    report(0.0)
    return report


def measure_case(
    case: ShapeCase,
    contenders: Sequence[Contender],
    sample: Sample,
    rules: Rules,
    report: Callable[[float], None] | None = None,
) -> TimedCase:
    """Time every contender on one sample, interleaved; return figures, samples and ratios to the first contender."""
    outputs = [contender.run(sample.inputs) for contender in contenders]
    calls = {contender.name: partial(contender.run, sample.inputs) for contender in contenders}
    timings = measure(calls, rules, None, report)
    results = [
        _result(contender, timings[contender.name], case.batch, _difference(outputs[0], output))
        for contender, output in zip(contenders, outputs, strict=True)
    ]
    ours = timings[contenders[0].name]
    ratios = [_ratio(contenders[0].name, ours, contender.name, timings[contender.name]) for contender in contenders[1:]]
    return TimedCase(name=case.name, shapes=case.shapes, batch=case.batch, results=tuple(results), ratios=tuple(ratios))


def _measured(bundle: Bundle, request: BenchRequest) -> Contender:
    """Return the bundle in this process, or on a server."""
    if request.server is None:
        return own_contender(
            bundle,
            request.options.runtime,
            has_cuda_graphs=request.has_cuda_graphs,
            weight_budget_gib=request.options.weight_budget_gib,
        )
    endpoint = Endpoint(request.server.url, request.server.name or bundle.manifest.name)
    endpoint.check_inputs([record.name for record in bundle.manifest.inputs])
    return Contender("served", endpoint.computes, endpoint.infer)


def _cases(bundle: Bundle, batches: Sequence[int]) -> list[ShapeCase]:
    manifest = bundle.manifest
    if batches:
        return batch_cases(batches, manifest.inputs, manifest.profiles)
    return profile_cases(manifest.inputs, manifest.profiles)


def _data(bundle: Bundle) -> tuple[Callable[[ShapeCase], Sample], str]:
    """Return a source of inputs for a shape, and its description: the config's own data, or seeded random numbers."""
    config, specs = bundle.manifest.config, [record.tensor_spec() for record in bundle.manifest.inputs]
    try:
        samples = read_samples(config.verify.inputs, config, specs)
        description = f"{samples[0].name}, cut or repeated to each shape" if samples else "random"
    except SourceError as error:
        samples, description = [], f"random, for the config's own cannot be read: {error.what}"
    if samples:
        return lambda case: wrapped_sample(case.name, case.shapes, samples[0]), description
    return lambda case: random_sample(case.name, case.shapes, config, specs), description


def _result(contender: Contender, timing: Timing, batch: int, difference: float | None) -> TimedResult:
    """Return one contender's figures. throughput: samples per second at the median latency."""
    latencies = tuple(seconds * 1e3 for seconds in timing.samples_s)
    return TimedResult(
        contender=contender.name,
        computes=contender.computes,
        metrics={
            "latency": distribution("ms", latencies),
            "throughput": Total("samples/sec", batch / median(timing.samples_s)),
        },
        samples={"latency": latencies},
        starts_ms=tuple(start * 1e3 for start in timing.starts_s),
        warmup_runs=timing.warmup_runs,
        drift=timing.drift,
        is_steady=timing.is_steady,
        difference=difference,
    )


def _ratio(ours: str, our_timing: Timing, theirs: str, their_timing: Timing) -> Ratio:
    """Return how much longer ours takes than theirs; rounds are pairs."""
    interval = ratio_of_medians(our_timing.samples_s, their_timing.samples_s, is_paired=True)
    return Ratio(numerator=ours, denominator=theirs, metric="latency", **vars(interval))


def _difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float | None:
    """Return the largest relative RMS error between outputs of the same names; None if it is not a number."""
    shared = [name for name in ours if name in theirs]
    error = worst([compare(ours[name], theirs[name]) for name in shared]).relative_rms_error if shared else math.inf
    return error if math.isfinite(error) else None


_POINT = (1, 0, 0)  # counts are taken at the case's own shapes


def with_ceilings(
    bundle: Bundle, contenders: Sequence[Contender], measured: Sequence[Measured], runner: Runner
) -> tuple[Ceiling, tuple[ArraysCase, ...]]:
    """Return the reference for figures, and the cases with their figures' ceilings and layer times.

    Only contenders that compute the counted network in its precision on the same device have a ceiling.
    """
    cases = tuple(case for _, _, case in measured)
    if contenders[0].device is None:
        return ceiling_of(None, ())[0], cases
    runner.report(Phase("count operations and bytes"))
    counts = [count_layers(bundle, shapes.shapes, runner) for shapes, _, _ in measured]
    ceiling, roof = ceiling_of(contenders[0].device, {dtype for count in counts if count for dtype in count.products})
    if roof is None:
        return ceiling, cases
    pairs = zip(measured, counts, strict=True)
    return ceiling, tuple(_with_ceilings(result, count, roof, contenders, runner) for result, count in pairs)


def _with_ceilings(
    measured: Measured, counts: NetworkCounts | None, roof: Roof, contenders: Sequence[Contender], runner: Runner
) -> ArraysCase:
    """Return one case with its ceilings and layers; unchanged if its network cannot be counted."""
    ours, (shapes, sample, case) = contenders[0], measured
    if counts is None or not isinstance(case, TimedCase):
        return case
    results = tuple(
        replace(result, ceilings=_figures(counts, roof, case.batch, result))
        if (contender.device, contender.precision) == (ours.device, ours.precision)
        else result
        for contender, result in zip(contenders, case.results, strict=True)
    )
    if ours.layer_seconds is None:
        return replace(case, results=results)
    runner.report(Phase(f"layers of {shapes.name}"))
    phase = phase_layers("run", counts, _POINT, roof, partial(ours.layer_seconds, sample.inputs))
    return replace(case, results=results, phases=(phase,))


def _figures(counts: NetworkCounts, roof: Roof, batch: int, result: TimedResult) -> dict[str, Reached]:
    """Return the ceilings of one contender's figures; for latency, of the median."""
    least, latency = floor(counts, _POINT, roof), result.distribution("latency")
    assert latency is not None
    most = batch / least.seconds
    return {
        "latency": of_time(least.seconds, latency.p50, least.bound),
        "throughput": of_rate(most, result.metrics["throughput"].avg, least.bound),
    }


_WARMUP = 3
_COUNTED = ("request_count", "error_request_count", "request_throughput", "goodput", "good_request_count")


def measure_load(
    case: ShapeCase,
    schedule: Schedule,
    served: Contender,
    sample: Sample,
    count: int,
    objectives: Mapping[str, float],
) -> ServedCase:
    """Send one sample repeatedly; return figures and requests. count: of requests. objectives: in ms.

    Latencies count from a request's due time. Raises BenchError if no request succeeds.
    """
    for _ in range(_WARMUP):
        served.run(sample.inputs)

    def send(_index: int) -> RequestOutcome:
        served.run(sample.inputs)
        return RequestOutcome()

    records = drive(send, *workers_of(schedule, count))
    return ServedCase(
        name=f"{case.name}, {schedule.name}",
        shapes=case.shapes,
        batch=case.batch,
        concurrency=schedule.concurrency,
        results=(_load_result(served, records, case.batch, objectives),),
    )


def _load_result(
    served: Contender, records: Sequence[RequestRecord], batch: int, objectives: Mapping[str, float]
) -> ServedResult:
    """Return the load's figures. throughput: samples per second over the whole load."""
    done = sorted((record for record in records if not record.error), key=lambda record: record.due_s)
    if not done:
        raise BenchError(f"no request succeeded: {records[0].error}", served.computes)
    latencies, drift = [record.latency_s * 1e3 for record in done], drift_of([record.latency_s for record in done])
    counted = load_metrics(records, objectives)
    rate = batch * len(done) / duration_s(records)
    return ServedResult(
        contender=served.name,
        computes=served.computes,
        metrics={
            "latency": distribution("ms", latencies),
            "throughput": Total("samples/sec", rate),
            **{name: counted[name] for name in _COUNTED if name in counted},
        },
        samples={"latency": tuple(latencies)},
        requests=tuple(map(request_times, records)),
        drift=drift,
        is_steady=abs(drift) <= STEADY_DRIFT,
    )
