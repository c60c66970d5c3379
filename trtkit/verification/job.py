"""The job that verifies: reference executor on the very network that TensorRT builds, against a reference."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.backends import list_gpus, load_backend
from trtkit.errors import ExecutionError, SourceError
from trtkit.inputs.samples import Sample, check_profiles, random_sample, read_samples, wrapped_sample
from trtkit.jobs.events import Phase, Progress, Verdict
from trtkit.reference import to_array
from trtkit.runtime.stages import ReferenceStage, engine_stages
from trtkit.verification.answers import agreement
from trtkit.verification.batching import row_by_row, two_rows
from trtkit.verification.compare import compare, worst
from trtkit.verification.corners import Shapes, corner_shapes
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.intermediates import onnx_runtime_tensors
from trtkit.verification.layers import layer_errors
from trtkit.verification.quantized import AGREEMENT, calibration_samples, has_calibration
from trtkit.verification.report import Check, Corner, EngineOutputs, Output, Part, Report, Rows
from trtkit.verification.rows import paired_rows, partners
from trtkit.verification.signal import hollow_outputs, spread
from trtkit.verification.slices import limits_of
from trtkit.verification.subject import open_subject
from trtkit.verification.unreal import unreal_reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.runtime.stages import StagesExecution
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Agreement, BatchRows, Comparison, LayerError
    from trtkit.verification.slices import Limits

Arrays = dict[str, np.ndarray[Any, Any]]

# Further inputs that the reference runs on only to see how far its outputs move.
_MOST_SPREAD = 3


class Verifier:
    """A model's stages on the reference executor, with its reference and tolerance."""

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        self.backend = load_backend(request.backend)
        self.subject = open_subject(request, self.backend, report)
        self.config, self.inputs = self.subject.config, self.subject.inputs
        self.profiles = request.profiles
        self._engines = request.engines
        self.execution, self.reference = self.subject.execution, self.subject.reference
        self.limits = limits_of(self.subject.tolerance, self.config.verify.max_slice_error)
        opened = self.subject.opened
        self.pairs_rows = self.config.verify.pair_rows or (opened is not None and opened.spec.has_unordered_rows)
        self.unpaired = 0.0

    def samples(self, paths: Sequence[str]) -> list[Sample]:
        """Return the inputs to compare on: those asked for, the config's, what it was quantized on, or random ones."""
        named = list(paths or self.config.verify.inputs)
        if named:
            samples = read_samples(named, self.config, self.inputs)
        else:
            samples = self._calibration_samples()
            samples = samples or [random_sample("random", self._opt_shapes(), self.config, self.inputs)]
        for sample in samples:
            check_profiles(sample, self.profiles)
        return samples

    def _calibration_samples(self) -> list[Sample]:
        """Return what the model was quantized on; data of one part's inputs only is no sample of the whole."""
        try:
            samples = calibration_samples(self.config, self.inputs)
            for sample in samples:
                check_profiles(sample, self.profiles)
        except SourceError:
            if self.subject.opened is None:
                raise
            return []
        return samples

    def has_real_data(self, paths: Sequence[str]) -> bool:
        """Whether `samples` reads files."""
        return bool(paths or self.config.verify.inputs or has_calibration(self.config))

    def run(self, sample: Sample) -> tuple[Arrays, Arrays]:
        """Return our outputs and the reference's, those that rounding cannot reorder."""
        ours = self._run(sample.inputs)
        theirs = self.reference.run(sample.inputs)
        return self._comparable(ours, {name: theirs[name] for name in ours})

    def batch_rows(self) -> BatchRows | None:
        """Return whether rows of axis 0 know of each other; None where there is one row only, or random ones fail."""
        shapes = two_rows(self.inputs, self.profiles)
        if shapes is None:
            return None
        sample = random_sample("two rows", shapes, self.config, self.inputs, seed=2)
        try:
            pair = row_by_row(self._run, sample.inputs)
        except ExecutionError:  # random inputs that the network cannot compute tell nothing
            return None
        if pair is None:
            return "mixed"
        unpaired, self.unpaired = self.unpaired, 0.0
        compared = worst(list(self.compared(*self._comparable(*pair)).values()))
        has_partners, self.unpaired = self.unpaired <= self.config.verify.max_unpaired_rows, unpaired
        return "independent" if compared.is_within(self.limits) and has_partners else "mixed"

    def _run(self, inputs: Mapping[str, Any]) -> Arrays:
        return {name: to_array(value) for name, value in self.execution.run(inputs).items()}

    def _comparable(self, ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
        """Return both without what rounding can reorder."""
        if self.pairs_rows:
            ours, theirs = self._paired(ours, theirs)
        opened = self.subject.opened
        left_out = () if opened is None or self.is_exact else opened.spec.ranked
        ours, theirs = (
            {name: value for name, value in each.items() if name not in left_out} for each in (ours, theirs)
        )
        return ours, theirs

    def compared(self, ours: Arrays, theirs: Arrays) -> dict[str, Comparison]:
        """Return the comparison of each output."""
        return {name: compare(value, theirs[name], self.limits.floor) for name, value in ours.items()}

    def spreads(self, samples: Sequence[Sample]) -> dict[str, float | None]:
        """Return how far the reference's outputs move between inputs: all samples, or the one and a random one."""
        first = samples[0]
        shapes = {name: array.shape for name, array in first.inputs.items()}
        others = samples[1:] or [random_sample("another", shapes, self.config, self.inputs, seed=1)]
        try:
            answers = [self.reference.run(sample.inputs) for sample in (first, *others[:_MOST_SPREAD])]
        except Exception:  # random inputs that ONNX Runtime or torch do not take tell nothing
            return dict.fromkeys(self.execution.output_names)
        return {name: spread([answer[name] for answer in answers]) for name in self.execution.output_names}

    def _paired(self, ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
        """Return rows in the reference's order; those that one side alone has are left out and counted if inexact."""
        ours = paired_rows(ours, theirs)
        if self.is_exact:
            return ours, theirs
        ours, theirs, share = partners(ours, theirs, self.limits.tolerance)
        self.unpaired = max(self.unpaired, share)
        return ours, theirs

    @property
    def is_exact(self) -> bool:
        """Whether near ties come out in the reference's order: nothing is rounded to fewer bits than fp32 has."""
        return self.config.precision == "fp32" and self.config.quantize is None

    def rows(self) -> Rows | None:
        """Return how many rows had no partner in the worst run, None where rows are not paired."""
        if not self.pairs_rows:
            return None
        allowed = self.config.verify.max_unpaired_rows
        return Rows(self.unpaired, allowed, self.unpaired <= allowed)

    def engine(self) -> StagesExecution | None:
        """Return the engines on the GPU that is here, None if none were built."""
        if not self._engines:
            return None
        return engine_stages(self.backend, self._engines, self.execution.output_names)

    def layer_errors(self, sample: Sample) -> list[LayerError]:
        """Measure every tensor of every stage on a sample."""
        onnx, tensors = self.subject.onnx, dict[str, Any](sample.inputs)
        others = [] if onnx is None else [partial(onnx_runtime_tensors, onnx, sample.inputs)]
        errors: list[LayerError] = []
        for stage in self._stages():
            inputs = {name: tensors[name] for name in stage.input_names}
            errors += layer_errors(self.backend, stage.definition, inputs, stage.constants, *others)
            if len(self.execution.stages) > 1:
                tensors |= stage.run(inputs)
        return errors

    def part_errors(self, sample: Sample) -> list[Part]:
        """Return the error of every part's output that the reference has too: of the model up to there."""
        opened, reference = self.subject.opened, self.reference
        if opened is None or not isinstance(reference, HybridReference):
            return []
        theirs, ours = reference.part_outputs(sample.inputs), self._seams(sample)
        errors = []
        for name, port in opened.spec.output_ports().items():
            if name not in theirs or name not in ours:
                continue
            compared = compare(ours[name], theirs[name], self.limits.floor)
            passed = compared.is_within(self.limits)
            errors.append(Part(**vars(compared), name=name, module=port.reference, passed=passed))
        return errors

    def _seams(self, sample: Sample) -> Arrays:
        """Return every `part.output` of one run."""
        for stage in self._stages():
            stage.keeps_seams = True
        self.execution.run(sample.inputs)
        seams = {name: to_array(value) for stage in self._stages() for name, value in stage.seams.items()}
        for stage in self._stages():
            stage.keeps_seams, stage.seams = False, {}
        return seams

    def _stages(self) -> list[ReferenceStage]:
        return [stage for stage in self.execution.stages if isinstance(stage, ReferenceStage)]

    def _opt_shapes(self) -> dict[str, tuple[int, ...]]:
        static = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in self.inputs}
        return {**static, **({name: shape.opt for name, shape in self.profiles[0].items()} if self.profiles else {})}


def verify(request: VerifyRequest, context: Context) -> Report:
    """Compare outputs on samples and profile corners, parts, and if wanted every layer."""
    verifier = Verifier(request, context.report)
    samples = verifier.samples(request.request.inputs)
    outputs, agreed = _compare_samples(verifier, samples, context.report)
    real = samples[0] if verifier.has_real_data(request.request.inputs) else None
    corners = _corners(verifier, real, context.report) if request.request.corners else []
    engine, rows, parts = _engine(verifier, samples), verifier.rows(), verifier.part_errors(samples[0])
    context.report(Phase("compare rows of a batch"))
    checks: list[Check] = [
        *outputs.values(),
        *corners,
        *parts,
        *(one for one in (engine, rows) if one is not None),
        agreed,
    ]
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
        task=agreed,
        corners=tuple(corners),
        parts=tuple(parts),
        rows=rows,
        engine=engine,
        batch_rows=verifier.batch_rows(),
    )
    if request.request.wants_layers(passed=report.passed):
        context.report(Verdict(report))
        context.report(Phase("compare layers"))
        report = replace(report, layers=tuple(verifier.layer_errors(samples[0])))
    return report if report.passed or real is not None else replace(report, unreal=unreal_reason(report))


def _engine(verifier: Verifier, samples: list[Sample]) -> EngineOutputs | None:
    """Where there is a GPU, run the engine itself and compare it with the reference executor; None elsewhere."""
    import torch

    if not list_gpus() or not torch.cuda.is_available():
        return None
    engine = verifier.engine()
    if engine is None:
        return None
    comparisons: dict[str, list[Comparison]] = {}
    for sample in samples:
        ours = verifier.execution.run(sample.inputs)
        for name, value in engine.run(sample.inputs).items():
            compared = compare(to_array(value), to_array(ours[name]), verifier.limits.floor)
            comparisons.setdefault(name, []).append(compared)
    outputs = {name: worst(items) for name, items in comparisons.items()}
    passed = all(item.is_within(verifier.limits) for item in outputs.values())
    return EngineOutputs(passed, outputs)


def _compare_samples(
    verifier: Verifier, samples: list[Sample], report: Listener
) -> tuple[dict[str, Output], Agreement]:
    """Run every sample both ways; return the worst comparison of each output, and how answers agree."""
    report(Phase("compare outputs"))
    comparisons: dict[str, list[Comparison]] = {}
    pairs = []
    for index, sample in enumerate(samples):
        ours, theirs = verifier.run(sample)
        for name, item in verifier.compared(ours, theirs).items():
            comparisons.setdefault(name, []).append(item)
        pairs.append((ours, theirs))
        report(Progress("compare outputs", index + 1, len(samples)))
    required = AGREEMENT if verifier.config.quantize is not None else 1.0
    agreed = agreement(verifier.config.task, verifier.subject.onnx or Path(), pairs, required)
    spreads = verifier.spreads(samples)
    return {name: _output(worst(items), spreads[name], verifier.limits) for name, items in comparisons.items()}, agreed


def _output(compared: Comparison, spread: float | None, limits: Limits) -> Output:
    return Output(**vars(compared), passed=compared.is_within(limits), spread=spread)


def _corners(verifier: Verifier, real: Sample | None, report: Listener) -> list[Corner]:
    """Run the corners of every profile, on the sample where it is real data, else on random data."""
    options = verifier.config.verify
    shapes = list(corner_shapes(verifier.inputs, verifier.profiles, verifier.config.profiles, options.random_shapes))
    results = []
    for index, (name, inputs) in enumerate(shapes):
        report(Progress("profile corners", index, len(shapes)))
        if real is None:
            sample = random_sample(name, inputs, verifier.config, verifier.inputs)
        else:
            sample = wrapped_sample(name, inputs, real)
        results.append(_corner(verifier, sample, inputs))
    return results


def _corner(verifier: Verifier, sample: Sample, shapes: Shapes) -> Corner:
    """Run one corner; a network that cannot compute it is a finding, not a fault of ours."""
    try:
        ours, theirs = verifier.run(sample)
    except ExecutionError as error:
        return Corner(sample.name, shapes, False, math.inf, problem=str(error))
    except Exception as error:  # ONNX Runtime and torch raise their own kinds
        problem = f"the reference cannot run it: {str(error).strip().splitlines()[0]}"
        return Corner(sample.name, shapes, False, math.inf, problem=problem)
    return corner(sample.name, shapes, worst(list(verifier.compared(ours, theirs).values())), verifier.limits)


def corner(name: str, shapes: Shapes, compared: Comparison, limits: Limits) -> Corner:
    """Return what a report has of a corner's comparison."""
    error, passed = compared.relative_rms_error, compared.is_within(limits)
    return Corner(name, shapes, passed, error, compared.worst_slice, compared.problem)
