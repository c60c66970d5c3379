"""The verification job: the reference executor on the very network that TensorRT builds, compared with a reference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.profiles import with_first_names
from trtkit.config.schema import DimRange
from trtkit.errors import ExecutionError
from trtkit.inputs.images import input_size, placement, read_image
from trtkit.inputs.samples import Sample, random_sample, sample_pictures, wrapped_sample
from trtkit.jobs.events import Phase, Progress, Verdict
from trtkit.network.onnx.folding import aliases_of_file
from trtkit.runtime.tasks.answers import DetectedBoxes
from trtkit.runtime.tasks.reader import TaskReader
from trtkit.verification.answers import agreement, named
from trtkit.verification.bundle_networks import with_networks
from trtkit.verification.compare import worst
from trtkit.verification.corners import Shapes, corner_shapes
from trtkit.verification.quantized import AGREEMENT
from trtkit.verification.report import Check, ComparedPicture, Corner, EngineOutputs, Output, Report
from trtkit.verification.signal import hollow_outputs, unreal_reason
from trtkit.verification.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Arrays
    from trtkit.config.schema import ModelConfig
    from trtkit.inputs.samples import Sample
    from trtkit.runtime.tasks.answers import Box


_UNITS = "if only multiples of a stride work, add it to the profile, e.g. `multiple_of: 32`"

if TYPE_CHECKING:
    from trtkit.arrays import Arrays
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import JobContext
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Agreement, Comparison, ComparisonLimits


def verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare a model with its reference, then, for a bundle, its own networks with the verified ones."""
    return with_networks(_verify(request, context), request.bundle, context)


def _verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare outputs on samples and profile corners, parts, and every layer if requested."""
    verifier = Verifier(request, context.report)
    samples = verifier.samples(request.request.inputs)
    outputs, agreed, pairs = _compare_samples(verifier, samples, context.report)
    real = samples[0] if verifier.has_real_data(request.request.inputs) else None
    corners = _corners(verifier, real, context.report) if request.request.corners else []
    engine, rows, parts = _engine(verifier, samples), verifier.rows(), verifier.part_errors(samples[0])
    context.report(Phase("compare rows of a batch"))
    batch_rows, nms = verifier.batch_rows(), verifier.nms()
    stored, loss = verifier.stored(samples[0]), verifier.loss(request.request.inputs, outputs)
    optional = (one for one in (engine, rows, nms, stored, loss) if one is not None)
    checks: list[Check] = [*outputs.values(), *corners, *parts, *optional, agreed]
    report = Report(
        name=verifier.config.name,
        passed=all(check.passed for check in checks),
        precision=verifier.config.precision,
        reference=verifier.reference.description,
        executor=f"trtkit reference executor on the {verifier.backend.name} {verifier.backend.version} network",
        tolerance=verifier.limits.tolerance,
        slice_tolerance=verifier.limits.slices,
        slice_floor=verifier.limits.floor,
        samples=tuple(sample.name for sample in samples),
        outputs=outputs,
        hollow=hollow_outputs(outputs, verifier.limits),
        task=named(agreed, request.labels),
        corners=tuple(corners),
        parts=tuple(parts),
        rows=rows,
        counted=verifier.counted,
        nms=nms,
        source_precision=verifier.subject.source_precision,
        method="" if verifier.config.quantize is None else verifier.config.quantize.method,
        stored=stored,
        loss=loss,
        engine=engine,
        batch_rows=batch_rows,
        pictures=compared_pictures(verifier.config, request.request.inputs, samples, pairs, request.labels),
    )
    if request.request.wants_layers(passed=report.passed):
        context.report(Verdict(report))
        context.report(Phase("compare layers"))
        report = replace(report, layers=tuple(verifier.layer_errors(samples[0])))
    return report if report.passed or real is not None else replace(report, unreal=unreal_reason(report))


def _engine(verifier: Verifier, samples: list[Sample]) -> EngineOutputs | None:
    """Run the engine itself and compare it with the reference executor; None without a GPU."""
    engine = verifier.engine()
    if engine is None:
        return None
    comparisons: dict[str, list[Comparison]] = {}
    for sample in samples:
        for name, compared in verifier.compared_engine(engine, sample).items():
            comparisons.setdefault(name, []).append(compared)
    outputs = {name: worst(items) for name, items in comparisons.items()}
    passed = all(item.is_within(verifier.limits) for item in outputs.values())
    return EngineOutputs(passed, outputs)


def _compare_samples(
    verifier: Verifier, samples: list[Sample], report: Listener
) -> tuple[dict[str, Output], Agreement, list[tuple[Arrays, Arrays]]]:
    """Run every sample both ways; return each output's worst comparison, the answers' agreement, and all outputs."""
    report(Phase("compare outputs"))
    comparisons: dict[str, list[Comparison]] = {}
    pairs, all_outputs = [], []
    for index, sample in enumerate(samples):
        outputs = verifier.run(sample)
        ours, theirs = verifier.comparable(*outputs)
        for name, item in verifier.compared(ours, theirs).items():
            comparisons.setdefault(name, []).append(item)
        pairs.append((ours, theirs) if verifier.counted is None else outputs)
        all_outputs.append(outputs)
        report(Progress("compare outputs", index + 1, len(samples)))
    required = AGREEMENT if verifier.config.quantize is not None else 1.0
    agreed = agreement(verifier.config.task, verifier.subject.onnx or Path(), pairs, required)
    spreads = verifier.spreads(samples)
    compared = {name: _output(worst(items), spreads[name], verifier.limits) for name, items in comparisons.items()}
    return compared, agreed, all_outputs


def _output(compared: Comparison, spread: float | None, limits: ComparisonLimits) -> Output:
    return Output(**vars(compared), passed=compared.is_within(limits), spread=spread)


def _corners(verifier: Verifier, real: Sample | None, report: Listener) -> list[Corner]:
    """Run the corners of every profile, on the sample if it is real data, otherwise on random data."""
    options = verifier.config.verify
    aliases = {} if verifier.subject.onnx is None else aliases_of_file(verifier.subject.onnx)
    configured = with_first_names(verifier.config.profiles, aliases)
    shapes = list(corner_shapes(verifier.inputs, verifier.profiles, configured, options.random_shapes))
    has_units = any(isinstance(dim, DimRange) and dim.multiple_of > 1
                    for profile in configured for dim in profile.values())  # fmt: skip
    results = []
    for index, (name, inputs) in enumerate(shapes):
        report(Progress("profile corners", index, len(shapes)))
        try:
            if real is None:
                sample = random_sample(name, inputs, verifier.config, verifier.inputs)
            else:
                sample = wrapped_sample(name, inputs, real)
        except MemoryError:
            results.append(Corner(name, inputs, False, math.inf, problem=_MEMORY))
            continue
        results.append(_corner(verifier, sample, inputs))
        if name.split()[-2] == "random" and results[-1].problem and not has_units:
            results[-1] = replace(results[-1], problem=f"{results[-1].problem}; {_UNITS}")
    return results


_MEMORY = "inputs of these shapes do not fit in memory; fix: lower the profile's max, or leave corners out"


def _corner(verifier: Verifier, sample: Sample, shapes: Shapes) -> Corner:
    """Run one corner; a network that cannot compute it is a finding, not an internal error."""
    try:
        ours, theirs = verifier.comparable(*verifier.run(sample))
    except ExecutionError as error:
        return Corner(sample.name, shapes, False, math.inf, problem=str(error))
    except Exception as error:  # ONNX Runtime and torch raise their own kinds
        problem = f"the reference cannot run it: {str(error).strip().splitlines()[0]}"
        return Corner(sample.name, shapes, False, math.inf, problem=problem)
    compared = verifier.compared(ours, theirs)
    outside = [name for name, output in compared.items() if not output.is_within(verifier.limits)]
    return replace(corner(sample.name, shapes, worst(list(compared.values())), verifier.limits), outputs=tuple(outside))


def corner(name: str, shapes: Shapes, compared: Comparison, limits: ComparisonLimits) -> Corner:
    """Return a corner's comparison as a report holds it."""
    error, passed = compared.relative_rms_error, compared.is_within(limits)
    return Corner(name, shapes, passed, error, compared.worst_slice, compared.problem)


_MOST, _MOST_BOXES = 24, 100
"""Limits on pictures per report and boxes per picture."""


def compared_pictures(
    config: ModelConfig,
    paths: Sequence[str],
    samples: Sequence[Sample],
    outputs: Sequence[tuple[Arrays, Arrays]],
    labels: Sequence[str],
) -> tuple[ComparedPicture, ...]:
    """Return the pictures among the samples. outputs: ours and the reference's, per sample."""
    if config.preprocess is None:
        return ()
    files = sample_pictures(paths or config.verify.inputs, config)
    chosen = [pair for pair in zip(samples, outputs, strict=True) if pair[0].name in files][:_MOST]
    pictures = []
    for sample, pair in chosen:
        path = files[sample.name]
        boxes: list[tuple[Box, ...]] = [(), ()]
        if config.task is not None and config.task.boxes is not None:
            placed = placement(read_image(path).size, config.preprocess)
            size = input_size(next(iter(sample.inputs.values())), config.preprocess)
            arrays = [{name: np.nan_to_num(value.astype(np.float32)) for name, value in one.items()} for one in pair]
            answers = [TaskReader(config.task).read(one, [placed], size)[0] for one in arrays]
            names = ("text",) if config.task.boxes.layout == "text-map" else labels
            boxes = [_named(answer.boxes, names) for answer in answers if isinstance(answer, DetectedBoxes)]
        pictures.append(ComparedPicture(sample.name, str(path), *boxes))
    return tuple(pictures)


def _named(boxes: Sequence[Box], labels: Sequence[str]) -> tuple[Box, ...]:
    """Return the highest-scoring boxes with the names of their classes, if those have names."""
    return tuple(
        replace(box, label=labels[box.class_id]) if 0 <= box.class_id < len(labels) else box
        for box in boxes[:_MOST_BOXES]
    )
