"""Measure a network of tensors in, tensors out: latency and throughput at each shape, beside others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trtkit.benchmarking.contenders import Contender, Trust, own_contender, rival
from trtkit.benchmarking.intervals import ratio_of_medians
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.report import Ratio, TimedCase, TimedResult, VisionReport
from trtkit.benchmarking.served import Endpoint
from trtkit.benchmarking.shapes import batch_cases, profile_cases
from trtkit.benchmarking.statistics import Total, distribution, median
from trtkit.benchmarking.timing import Rules, measure
from trtkit.benchmarking.vision_ceiling import with_ceilings
from trtkit.benchmarking.vision_load import measure_load
from trtkit.errors import BenchError, SourceError
from trtkit.inputs.samples import Sample, random_sample, read_samples, wrapped_sample
from trtkit.jobs.events import Phase
from trtkit.network.onnx.io import TensorSpec
from trtkit.verification.compare import compare, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.benchmarking.report import Provenance, ServedCase
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.shapes import ShapeCase
    from trtkit.benchmarking.timing import Timing
    from trtkit.bundle.bundle import Bundle
    from trtkit.inputs.samples import Array
    from trtkit.jobs.runner import Runner


@dataclass(frozen=True)
class VisionRequest:
    """What to measure. batches: the profiles' min, opt and max shapes when empty. rivals: as `--compare` has them.

    endpoint: URL and model of a server that has the bundle, None to run it in this process. has_cuda_graphs: None for
    what is usual. schedules, requests, objectives: a load on the server, a case for each schedule; objectives in ms.
    trusts_source: whether a factory that the bundle names may run.
    """

    batches: tuple[int, ...] = ()
    rivals: tuple[str, ...] = ()
    runtime: str = "auto"
    is_waived: bool = False
    rules: Rules = field(default_factory=Rules)
    endpoint: tuple[str, str | None] | None = None
    has_cuda_graphs: bool | None = None
    schedules: tuple[Schedule, ...] = ()
    requests: int = 16
    objectives: Mapping[str, float] = field(default_factory=dict)
    trusts_source: bool = False


def bench_vision(bundle: Bundle, request: VisionRequest, about: Provenance, runner: Runner) -> VisionReport:
    """Return the report of a run. about: when and how it was started.

    Raises BenchError if the bundle was not verified, cannot take a batch, or a rival cannot compute it.
    """
    verified = verification(bundle, is_waived=request.is_waived)
    cases = _cases(bundle, request.batches)
    runner.report(Phase("load"))
    contenders = [_measured(bundle, request)]
    trust = Trust(request.is_waived, request.trusts_source)
    contenders += [rival(name, bundle, request.runtime, trust) for name in request.rivals]
    make_sample, inputs = _data(bundle)
    measured = []
    for case in cases:
        runner.report(Phase(f"measure {case.name}"))
        sample = make_sample(case)
        measured += [(case, sample, figures) for figures in _measured_cases(case, contenders, sample, request)]
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
    case: ShapeCase, contenders: Sequence[Contender], sample: Sample, request: VisionRequest
) -> Iterator[TimedCase | ServedCase]:
    """Yield one case, or one for each load on the server."""
    if not request.schedules:
        yield measure_case(case, contenders, sample, request.rules)
    for schedule in request.schedules:
        yield measure_load(case, schedule, contenders[0], sample, (request.requests, request.objectives))


def measure_case(case: ShapeCase, contenders: Sequence[Contender], sample: Sample, rules: Rules) -> TimedCase:
    """Time every contender on one sample, interleaved; return figures, samples and ratios to the first one."""
    outputs = [contender.run(sample.inputs) for contender in contenders]
    calls = {contender.name: partial(contender.run, sample.inputs) for contender in contenders}
    timings = measure(calls, rules)
    results = [
        _result(contender, timings[contender.name], case.batch, _difference(outputs[0], own))
        for contender, own in zip(contenders, outputs, strict=True)
    ]
    ours = timings[contenders[0].name]
    ratios = [_ratio(contenders[0].name, ours, each.name, timings[each.name]) for each in contenders[1:]]
    return TimedCase(name=case.name, shapes=case.shapes, batch=case.batch, results=tuple(results), ratios=tuple(ratios))


def _measured(bundle: Bundle, request: VisionRequest) -> Contender:
    """Return the bundle in this process, or as a server has it."""
    if request.endpoint is None:
        return own_contender(bundle, request.runtime, has_cuda_graphs=request.has_cuda_graphs)
    url, model = request.endpoint
    endpoint = Endpoint(url, model or bundle.manifest.name)
    return Contender("served", endpoint.computes, endpoint.infer)


def _cases(bundle: Bundle, batches: Sequence[int]) -> list[ShapeCase]:
    manifest = bundle.manifest
    if manifest.interface == "tokens":
        raise BenchError("the bundle holds a language model", str(bundle.path))
    if batches:
        return batch_cases(batches, manifest.inputs, manifest.profiles)
    return profile_cases(manifest.inputs, manifest.profiles)


def _data(bundle: Bundle) -> tuple[Callable[[ShapeCase], Sample], str]:
    """Return what makes inputs of a shape, and its description: the config's own data, else seeded random numbers."""
    config, specs = bundle.manifest.config, _specs(bundle)
    try:
        samples = read_samples(config.verify.inputs, config, specs)
        description = f"{samples[0].name}, cut or repeated to each shape" if samples else "random"
    except SourceError as error:
        samples, description = [], f"random, for the config's own cannot be read: {error.what}"
    if samples:
        return lambda case: wrapped_sample(case.name, case.shapes, samples[0]), description
    return lambda case: random_sample(case.name, case.shapes, config, specs), description


def _specs(bundle: Bundle) -> list[TensorSpec]:
    return [
        TensorSpec(
            tensor.name,
            tensor.dtype,
            tuple(f"{tensor.name}.{axis}" if size == -1 else size for axis, size in enumerate(tensor.shape)),
        )
        for tensor in bundle.manifest.inputs
    ]


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
