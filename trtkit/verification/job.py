"""The job that verifies: reference executor on the very network that TensorRT builds, against a reference."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trtkit.backends import list_gpus, load_backend
from trtkit.dtypes import dtype_of
from trtkit.errors import ExecutionError
from trtkit.inputs.index_ranges import with_index_ranges
from trtkit.inputs.samples import Sample, check_profiles, random_sample, read_samples, wrapped_sample
from trtkit.jobs.events import Phase, Progress, Verdict
from trtkit.network.onnx.io import graph_inputs
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, Options, constants_from_onnx, to_array
from trtkit.sources import onnx_file
from trtkit.verification.answers import Agreement, agreement
from trtkit.verification.compare import Comparison, compare, worst
from trtkit.verification.corners import corner_shapes
from trtkit.verification.intermediates import onnx_runtime_tensors
from trtkit.verification.layers import LayerError, layer_errors
from trtkit.verification.quantized import AGREEMENT, calibration_samples, has_calibration, quantized_tolerance
from trtkit.verification.references import Origin, Reference, choose_reference
from trtkit.verification.rows import paired_rows, partners
from trtkit.verification.signal import hollow_outputs, spread
from trtkit.verification.slices import limits_of
from trtkit.verification.unreal import unreal_reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.verification.jobs import NetworkToVerify, Request
    from trtkit.verification.slices import Limits

Json = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]

# End to end, errors of many layers add up: ten times what one op may have.
_END_TO_END = 10
# Further inputs that the reference runs on only to see how far its outputs move.
_MOST_SPREAD = 3


class Execution(Protocol):
    """Something that computes the network."""

    @property
    def output_names(self) -> Sequence[str]:
        """The outputs, in order."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        ...


class Verifier:
    """A parsed network with its executor, reference and tolerance."""

    def __init__(self, network: NetworkToVerify, report: Listener) -> None:
        self.config, self.onnx, self._plan = network.config, network.onnx, network.plan
        self.backend = load_backend(network.backend)
        self.profiles = list(network.profiles)
        report(Phase("parse"))
        graph = onnx_file.read_graph(self.onnx)
        self.inputs = graph_inputs(graph)
        self.config = with_index_ranges(self.config, graph)
        self.network = parse_onnx(self.backend, self.onnx)
        self.constants = constants_from_onnx(self.onnx)
        options = Options(constants=self.constants)
        self.executor: Execution = Executor(self.backend, self.network.definition, options)
        report(Phase("load reference"))
        origin = Origin(self.onnx, list(self.executor.output_names), network.sources, network.request.trust_source)
        self.reference: Reference = choose_reference(self.config, network.request.against, origin)
        tolerance = max(tolerance_of(self.config), quantized_tolerance(self.config))
        self.limits = limits_of(tolerance, self.config.verify.max_slice_error)
        self.pairs_rows = self.config.verify.pair_rows
        self.unpaired = 0.0

    def samples(self, paths: Sequence[str]) -> list[Sample]:
        """Return the inputs to compare on: those asked for, the config's, what it was quantized on, or random ones."""
        named = paths or list(self.config.verify.inputs)
        if named:
            samples = read_samples(named, self.config, self.inputs)
        else:
            samples = calibration_samples(self.config, self.inputs)
            samples = samples or [random_sample("random", self._opt_shapes(), self.config, self.inputs)]
        for sample in samples:
            check_profiles(sample, self.profiles)
        return samples

    def has_real_data(self, paths: Sequence[str]) -> bool:
        """Whether `samples` reads files."""
        return bool(paths or self.config.verify.inputs or has_calibration(self.config))

    def run(self, sample: Sample) -> tuple[Arrays, Arrays]:
        """Return our outputs and the reference's."""
        ours = {name: to_array(value) for name, value in self.executor.run(sample.inputs).items()}
        theirs = self.reference.run(sample.inputs)
        theirs = {name: theirs[name] for name in ours}
        return self._paired(ours, theirs) if self.pairs_rows else (ours, theirs)

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
            return dict.fromkeys(self.executor.output_names)
        return {name: spread([answer[name] for answer in answers]) for name in self.executor.output_names}

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

    def rows(self) -> Json | None:
        """Return how many rows had no partner in the worst run, None where rows are not paired."""
        if not self.pairs_rows:
            return None
        allowed = self.config.verify.max_unpaired_rows
        return {"unpaired": self.unpaired, "allowed": allowed, "passed": self.unpaired <= allowed}

    def engine(self) -> Any:
        """Return the engine on the GPU that is here, None where none was built."""
        if self._plan is None:
            return None
        from trtkit.runtime.engine_execution import EngineExecution

        return EngineExecution(self.backend, Path(self._plan))

    def layer_errors(self, sample: Sample) -> list[LayerError]:
        """Measure every tensor on a sample."""
        others = partial(onnx_runtime_tensors, self.onnx, sample.inputs)
        return layer_errors(self.backend, self.network.definition, sample.inputs, self.constants, others)

    def part_errors(self, _sample: Sample) -> list[Json]:
        """Return the error of each part of a hybrid; none for a model of one part."""
        return []

    def _opt_shapes(self) -> dict[str, tuple[int, ...]]:
        static = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in self.inputs}
        return {**static, **({name: shape.opt for name, shape in self.profiles[0].items()} if self.profiles else {})}


def tolerance_of(config: ModelConfig) -> float:
    """Return the relative RMS error that outputs may have, end to end."""
    return config.verify.max_relative_rms_error or _END_TO_END * dtype_of(config.precision).tolerance


def verify(request: NetworkToVerify, context: Context) -> Json:
    """Compare outputs on samples and profile corners, and where asked every layer; return the report's data."""
    return compare_all(Verifier(request, context.report), request.request, context.report)


def compare_all(verifier: Verifier, request: Request, report: Listener) -> Json:
    """Compare a verifier's network with its reference; return the report's data."""
    samples = verifier.samples(request.inputs)
    outputs, agreed = _compare_samples(verifier, samples, report)
    real = samples[0] if verifier.has_real_data(request.inputs) else None
    corners = _corners(verifier, real, report) if request.corners else []
    engine, rows, parts = _engine(verifier, samples), verifier.rows(), verifier.part_errors(samples[0])
    checks = [*outputs.values(), *corners, *parts, *(one for one in (engine, rows) if one is not None)]
    passed = all(check["passed"] for check in checks) and agreed.passed
    found = {
        "passed": passed,
        "precision": verifier.config.precision,
        "reference": verifier.reference.description,
        "executor": f"trtkit reference executor on the {verifier.backend.name} {verifier.backend.version} network",
        **verifier.limits.to_json(),
        "samples": [sample.name for sample in samples],
        "outputs": outputs,
        "hollow": hollow_outputs(outputs, verifier.limits),
        "rows": rows,
        "task": agreed.to_json(),
        "corners": corners,
        "layers": [],
        "parts": parts,
        "engine": engine,
    }
    if request.wants_layers(passed=passed):
        report(Verdict(dict(found)))
        report(Phase("compare layers"))
        found["layers"] = [error.to_json() for error in verifier.layer_errors(samples[0])]
    if not passed and real is None:
        found["unreal"] = unreal_reason(found)
    return found


def _engine(verifier: Verifier, samples: list[Sample]) -> Json | None:
    """Where there is a GPU, run the engine itself and compare it with the reference executor; None elsewhere."""
    import torch

    if not list_gpus() or not torch.cuda.is_available():
        return None
    engine = verifier.engine()
    if engine is None:
        return None
    comparisons: dict[str, list[Comparison]] = {}
    for sample in samples:
        ours = verifier.executor.run(sample.inputs)
        for name, value in engine.run(sample.inputs).items():
            compared = compare(to_array(value), to_array(ours[name]), verifier.limits.floor)
            comparisons.setdefault(name, []).append(compared)
    outputs = {name: worst(items) for name, items in comparisons.items()}
    passed = all(item.is_within(verifier.limits) for item in outputs.values())
    return {"passed": passed, "outputs": {name: item.to_json() for name, item in outputs.items()}}


def _compare_samples(verifier: Verifier, samples: list[Sample], report: Listener) -> tuple[dict[str, Json], Agreement]:
    """Run every sample both ways; return the worst comparison of each output, as data, and how answers agree."""
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
    agreed = agreement(verifier.config.task, verifier.onnx, pairs, required)
    spreads = verifier.spreads(samples)
    return {name: _output(worst(items), spreads[name], verifier.limits) for name, items in comparisons.items()}, agreed


def _output(compared: Comparison, moved: float | None, limits: Limits) -> Json:
    return {**compared.to_json(), "passed": compared.is_within(limits), "spread": moved}


def _corners(verifier: Verifier, real: Sample | None, report: Listener) -> list[Json]:
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
        results.append({"name": name, "shapes": inputs, **_corner(verifier, sample)})
    return results


def _corner(verifier: Verifier, sample: Sample) -> Json:
    """Run one corner; a network that cannot compute it is a finding, not a fault of ours."""
    try:
        ours, theirs = verifier.run(sample)
    except ExecutionError as error:
        return {"passed": False, "relative_rms_error": None, "problem": str(error)}
    except Exception as error:  # ONNX Runtime and torch raise their own kinds
        reason = str(error).strip().splitlines()[0]
        return {"passed": False, "relative_rms_error": None, "problem": f"the reference cannot run it: {reason}"}
    return corner_json(worst(list(verifier.compared(ours, theirs).values())), verifier.limits)


def corner_json(compared: Comparison, limits: Limits) -> Json:
    """Return what a report has of a corner's comparison."""
    data = compared.to_json()
    kept = {key: data[key] for key in ("relative_rms_error", "worst_slice", "problem")}
    return {"passed": compared.is_within(limits), **kept}
