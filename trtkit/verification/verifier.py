"""A model and its reference: runs both and makes their outputs comparable."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.backends import load_backend
from trtkit.errors import ExecutionError, SourceError
from trtkit.inputs.samples import Sample, check_profiles, random_sample, read_samples
from trtkit.network.onnx.nms import NMS_OUTPUTS
from trtkit.reference import to_array
from trtkit.runtime import device as devices
from trtkit.runtime.stages import ReferenceStage, engine_stages
from trtkit.verification.compare import compare, limits_of, worst
from trtkit.verification.detections import SCORE, counted_rows, layout_of, paired_rows, partners
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.layers import layer_errors
from trtkit.verification.quantized import calibration_samples, check_loss, has_calibration
from trtkit.verification.references import onnx_runtime_tensors
from trtkit.verification.report import Comparison, CountedRows, PartOutput, Rows, StoredOutputs
from trtkit.verification.signal import spread
from trtkit.verification.subject import open_subject
from trtkit.verification.suppression import RowsExecution, matched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.arrays import Arrays
    from trtkit.jobs.events import Listener
    from trtkit.network.input_spec import ResolvedProfile
    from trtkit.network.onnx.io import OnnxTensorSpec
    from trtkit.runtime.stages import StagesExecution
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import BatchRows, LayerError, Output, QuantizationLoss, Suppression

# Additional inputs that the reference runs on only to measure the variation of its outputs.
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
        self.counted: CountedRows | None = None

    def samples(self, paths: Sequence[str]) -> list[Sample]:
        """Return the inputs to compare on: the requested ones, the config's, the calibration data, or random ones."""
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
        """Return the model's calibration data; data of a single part's inputs is not a sample of the whole model."""
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
        """Return our outputs and the reference's."""
        ours = self._run(sample.inputs)
        theirs = self.reference.run(sample.inputs)
        return ours, {name: theirs[name] for name in ours}

    def batch_rows(self) -> BatchRows | None:
        """Return whether rows of axis 0 affect each other; None if there is only one row, or if random rows fail."""
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
        compared = worst(list(self.compared(*self.comparable(*pair)).values()))
        has_partners, self.unpaired = self.unpaired <= self.config.verify.max_unpaired_rows, unpaired
        return "independent" if compared.is_within(self.limits) and has_partners else "mixed"

    def _run(self, inputs: Arrays) -> Arrays:
        return {name: to_array(value) for name, value in self.execution.run(inputs).items()}

    def comparable(self, ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
        """Return both sides without differences that come from reordering by rounding."""
        ours, theirs = self._counted(ours, theirs)
        if self.pairs_rows:
            ours, theirs = self._paired(ours, theirs)
        opened = self.subject.opened
        left_out = () if opened is None or self.is_exact else opened.spec.ranked
        ours, theirs = (
            {name: value for name, value in side.items() if name not in left_out} for side in (ours, theirs)
        )
        return ours, theirs

    def _counted(self, ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
        """Return suppressed boxes without those that score too little to count; if none remain, all scores in order."""
        task = self.config.task
        name = next(iter(theirs), "")
        is_declared = task is not None and task.boxes is not None and task.boxes.layout == "suppressed"
        if not is_declared and (task is not None or layout_of(theirs) != "suppressed"):
            return ours, theirs
        floor = SCORE if task is None or task.boxes is None else task.boxes.min_score
        pair = [side[name].astype(np.float64) for side in (ours, theirs)]
        if pair[0].shape != pair[1].shape:
            return ours, theirs
        rows = counted_rows(pair[0], pair[1], floor)
        before = self.counted or CountedRows(0, 0, floor)
        self.counted = CountedRows(before.rows + len(rows[1]), before.runs + 1, floor)
        if not len(rows[1]):
            rows = (1 - np.sort(pair[0][..., 4]), 1 - np.sort(pair[1][..., 4]))  # how sure it is of no object
        return ours | {name: rows[0]}, theirs | {name: rows[1]}

    def compared(self, ours: Arrays, theirs: Arrays) -> dict[str, Comparison]:
        """Return the comparison of each output."""
        return {name: compare(value, theirs[name], self.limits.floor) for name, value in ours.items()}

    def spreads(self, samples: Sequence[Sample]) -> dict[str, float | None]:
        """Return how much the reference's outputs vary between inputs.

        All samples, or a single sample and a random one.
        """
        first = samples[0]
        shapes = {name: array.shape for name, array in first.inputs.items()}
        others = samples[1:] or [random_sample("another", shapes, self.config, self.inputs, seed=1)]
        try:
            answers = [self.reference.run(sample.inputs) for sample in (first, *others[:_MOST_SPREAD])]
        except Exception:  # random inputs that ONNX Runtime or torch do not take tell nothing
            return dict.fromkeys(self.execution.output_names)
        return {name: spread([answer[name] for answer in answers]) for name in self.execution.output_names}

    def _paired(self, ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
        """Return rows in the reference's order; unless exact, rows that only one side has are dropped and counted."""
        ours = paired_rows(ours, theirs)
        if self.is_exact:
            return ours, theirs
        ours, theirs, share = partners(ours, theirs, self.limits.tolerance)
        self.unpaired = max(self.unpaired, share)
        return ours, theirs

    @property
    def is_exact(self) -> bool:
        """Whether near ties come out in the reference's order: no rounding below fp32 precision is involved."""
        return self.config.precision == "fp32" and self.config.quantize is None

    def rows(self) -> Rows | None:
        """Return how many rows lacked a partner in the worst run, None if rows are not paired."""
        if not self.pairs_rows:
            return None
        allowed = self.config.verify.max_unpaired_rows
        return Rows(self.unpaired, allowed, self.unpaired <= allowed)

    def nms(self) -> Suppression | None:
        """Return the checks of the network's own NMS over all runs so far, None if it has no NMS."""
        return self.execution.summary() if isinstance(self.execution, RowsExecution) else None

    def stored(self, sample: Sample) -> StoredOutputs | None:
        """Compare with the quantized file itself, if the reference is the float model that it was made from."""
        stored = self.subject.stored
        if stored is None:
            return None
        ours, theirs = self._run(sample.inputs), stored.reference.run(sample.inputs)
        outputs = self.compared(*self.comparable(ours, {name: theirs[name] for name in ours}))
        limits = limits_of(stored.tolerance, self.config.verify.max_slice_error)
        passed = all(output.is_within(limits) for output in outputs.values())
        return StoredOutputs(stored.reference.description, stored.tolerance, passed, outputs)

    def loss(self, paths: Sequence[str], outputs: Mapping[str, Output]) -> QuantizationLoss | None:
        """Compare the loss of a quantized model with the recorded one, if `samples` are its calibration data."""
        is_calibration = not (paths or self.config.verify.inputs) and has_calibration(self.config)
        return check_loss(self.config, self.subject.recorded_loss, outputs.values()) if is_calibration else None

    def engine(self) -> StagesExecution | None:
        """Return the engines on the GPU; None without engines, or without a GPU that can run them."""
        device = devices.find_device_for(self.backend.name)
        if not self._engines or device is None:
            return None
        names = NMS_OUTPUTS if isinstance(self.execution, RowsExecution) else self.execution.output_names
        return engine_stages(self.backend, self._engines, names, device)

    def compared_engine(self, engine: StagesExecution, sample: Sample) -> dict[str, Comparison]:
        """Compare each output of the engine with the reference executor's; after NMS, the boxes that both selected."""
        theirs, ours = self.execution.run(sample.inputs), engine.run(sample.inputs)
        if not isinstance(self.execution, RowsExecution):
            own_outputs, other = ({name: to_array(value) for name, value in side.items()} for side in (ours, theirs))
            return self.compared(*self._counted(own_outputs, other))
        mine, its = (
            {name: to_array(value) for name, value in side.items()} for side in (ours, self.execution.selected)
        )
        own_outputs, other, unshared = matched(mine, its, self.limits.tolerance)
        allowed = 0.0 if self.is_exact else self.config.verify.max_unpaired_rows
        if unshared > allowed:
            problem = f"{unshared:.1%} of the boxes are not the other side's; {allowed:.1%} allowed"
            return {name: Comparison(math.inf, math.inf, math.inf, 0.0, problem) for name in own_outputs}
        return self.compared(own_outputs, other)

    def layer_errors(self, sample: Sample) -> list[LayerError]:
        """Measure every tensor of every stage on a sample."""
        onnx, tensors = self.subject.onnx, dict[str, Any](sample.inputs)
        others = [] if onnx is None else [partial(onnx_runtime_tensors, onnx, sample.inputs)]
        errors: list[LayerError] = []
        for stage in self._stages():
            inputs = {name: tensors[name] for name in stage.input_names}
            errors += layer_errors(stage.layers, inputs, *others)
            if len(self.execution.stages) > 1:
                tensors |= stage.run(inputs)
        return errors

    def part_errors(self, sample: Sample) -> list[PartOutput]:
        """Return the error of every part output that the reference also has, over the model up to that point."""
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
            errors.append(PartOutput(**vars(compared), name=name, module=port.reference, passed=passed))
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


def two_rows(
    inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]
) -> dict[str, tuple[int, ...]] | None:
    """Return the first profile's opt shapes with two rows; None if its axis 0 does not range from one row to two."""
    shapes = profiles[0] if profiles else {}
    if not inputs or any(spec.name not in shapes for spec in inputs):
        return None
    if any(not ranges.min or ranges.min[0] > 1 or ranges.max[0] < 2 for ranges in shapes.values()):
        return None
    return {name: (2, *ranges.opt[1:]) for name, ranges in shapes.items()}


def row_by_row(run: Callable[[Arrays], Arrays], inputs: Arrays) -> tuple[Arrays, Arrays] | None:
    """Return the outputs of two rows together, and those of each row alone, concatenated.

    None if an output does not grow with the rows, such as a list of all rows' detections.
    """
    together = run(inputs)
    alone = [run({name: value[row : row + 1] for name, value in inputs.items()}) for row in range(2)]
    for name, value in together.items():
        if any(row[name].shape != (1, *value.shape[1:]) for row in alone) or value.shape[:1] != (2,):
            return None
    return together, {name: np.concatenate([row[name] for row in alone]) for name in together}
