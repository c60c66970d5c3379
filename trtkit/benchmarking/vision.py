"""Measure a network of tensors in, tensors out: latency and throughput at each shape, compared with others."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from trtkit.benchmarking.contenders import Contender, own_contender, rival
from trtkit.benchmarking.intervals import ratio_of_medians
from trtkit.benchmarking.metrics import named_objectives
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.report import Ratio, TimedCase, TimedResult, VisionReport
from trtkit.benchmarking.schedules import schedules_of
from trtkit.benchmarking.served import Endpoint
from trtkit.benchmarking.shapes import batch_cases, profile_cases
from trtkit.benchmarking.statistics import Total, distribution, median
from trtkit.benchmarking.timing import measure
from trtkit.benchmarking.vision_ceiling import with_ceilings
from trtkit.benchmarking.vision_load import measure_load
from trtkit.errors import SourceError
from trtkit.inputs.samples import Sample, random_sample, read_samples, wrapped_sample
from trtkit.jobs.events import Phase, Progress
from trtkit.verification.compare import compare, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.benchmarking.report import Provenance, ServedCase
    from trtkit.benchmarking.request import BenchRequest
    from trtkit.benchmarking.shapes import ShapeCase
    from trtkit.benchmarking.timing import Rules, Timing
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner


def bench_vision(bundle: Bundle, request: BenchRequest, about: Provenance, runner: Runner) -> VisionReport:
    """Return the report of a run. about: when and how it was started.

    Raises BenchError if the bundle was not verified, cannot take a batch, or a rival cannot compute it.
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
        yield measure_load(case, schedule, contenders[0], sample, (load.count, objectives))


def _percent(runner: Runner, name: str, index: int, count: int) -> Callable[[float], None]:
    """Return what takes the share of case `index` that is done, and reports it as percent of all cases."""

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
    """Time every contender on one sample, interleaved; return figures, samples and ratios to the first one."""
    outputs = [contender.run(sample.inputs) for contender in contenders]
    calls = {contender.name: partial(contender.run, sample.inputs) for contender in contenders}
    timings = measure(calls, rules, None, report)
    results = [
        _result(contender, timings[contender.name], case.batch, _difference(outputs[0], own))
        for contender, own in zip(contenders, outputs, strict=True)
    ]
    ours = timings[contenders[0].name]
    ratios = [_ratio(contenders[0].name, ours, each.name, timings[each.name]) for each in contenders[1:]]
    return TimedCase(name=case.name, shapes=case.shapes, batch=case.batch, results=tuple(results), ratios=tuple(ratios))


def _measured(bundle: Bundle, request: BenchRequest) -> Contender:
    """Return the bundle in this process, or as a server has it."""
    if request.server is None:
        return own_contender(
            bundle,
            request.options.runtime,
            has_cuda_graphs=request.has_cuda_graphs,
            weight_budget_gib=request.options.weight_budget_gib,
        )
    endpoint = Endpoint(request.server.url, request.server.name or bundle.manifest.name)
    endpoint.check_inputs([each.name for each in bundle.manifest.inputs])
    return Contender("served", endpoint.computes, endpoint.infer)


def _cases(bundle: Bundle, batches: Sequence[int]) -> list[ShapeCase]:
    manifest = bundle.manifest
    if batches:
        return batch_cases(batches, manifest.inputs, manifest.profiles)
    return profile_cases(manifest.inputs, manifest.profiles)


def _data(bundle: Bundle) -> tuple[Callable[[ShapeCase], Sample], str]:
    """Return what makes inputs of a shape, and its description: the config's own data, else seeded random numbers."""
    config, specs = bundle.manifest.config, [each.tensor_spec() for each in bundle.manifest.inputs]
    try:
        samples = read_samples(config.verify.inputs, config, specs)
        description = f"{samples[0].name}, cut or repeated to each shape" if samples else "random"
    except SourceError as error:
        samples, description = [], f"random, for the config's own cannot be read: {error.what}"
    if samples:
        return lambda case: wrapped_sample(case.name, case.shapes, samples[0]), description
    return lambda case: random_sample(case.name, case.shapes, config, specs), description


def _result(contender: Contender, timing: Timing, batch: int, difference: float | None) -> TimedResult:
    """Return one contender's figures. throughput: samples a second at the median latency."""
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
