"""The job that verifies a hybrid: all stages by the reference executor, against the whole model in torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.engine.hybrids import open_hybrid
from trtkit.errors import SourceError
from trtkit.inputs.samples import random_sample
from trtkit.jobs.events import Phase
from trtkit.reference import to_array
from trtkit.runtime.hybrid import HybridExecution, ReferenceStage, engine_hybrid, reference_hybrid
from trtkit.verification.compare import compare
from trtkit.verification.hybrid_reference import HybridReference
from trtkit.verification.job import Arrays, Verifier, compare_all, tolerance_of
from trtkit.verification.layers import LayerError, layer_errors
from trtkit.verification.quantized import hybrid_tolerance
from trtkit.verification.slices import limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.inputs.samples import Sample
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.verification.jobs import HybridToVerify

Json = dict[str, Any]


class HybridVerifier(Verifier):
    """A hybrid on the reference executor with its reference and tolerance."""

    def __init__(self, hybrid: HybridToVerify, report: Listener) -> None:
        self.config, self.backend = hybrid.config, load_backend(hybrid.backend)
        self.profiles = list(hybrid.profiles)
        report(Phase("write network"))
        self.opened = open_hybrid(self.config)
        self.inputs, self.stages = self.opened.inputs, hybrid.stages
        self.onnx = Path()
        self.hybrid = reference_hybrid(self.backend, self.opened, self.stages, report)
        self.executor: HybridExecution = self.hybrid
        report(Phase("load reference"))
        self._whole = HybridReference(self.opened)
        self.reference = self._whole
        tolerance = max(tolerance_of(self.config), hybrid_tolerance(self.config, self.opened.quantization))
        self.limits = limits_of(tolerance, self.config.verify.max_slice_error)
        self.pairs_rows = self.config.verify.pair_rows or self.opened.spec.has_unordered_rows
        self.unpaired = 0.0

    def samples(self, paths: Sequence[str]) -> list[Sample]:
        """Return the inputs to compare on; data that holds one part's inputs only is no sample of the whole."""
        try:
            return super().samples(paths)
        except SourceError:
            if paths or self.config.verify.inputs or self.config.quantize is None:
                raise
            return [random_sample("random", self._opt_shapes(), self.config, self.inputs)]

    def run(self, sample: Sample) -> tuple[Arrays, Arrays]:
        """Return our outputs and the reference's, those that can be compared."""
        ours, theirs = (self._comparable(outputs) for outputs in super().run(sample))
        return ours, theirs

    def _comparable(self, outputs: Arrays) -> Arrays:
        """Return the outputs that rounding cannot reorder."""
        left_out = () if self.is_exact else self.opened.spec.ranked
        return {name: value for name, value in outputs.items() if name not in left_out}

    def engine(self) -> HybridExecution | None:
        """Return the engines on the GPU that is here, None where none were built."""
        if not all(stage.get("engine") for stage in self.stages):
            return None
        return engine_hybrid(self.backend, self.opened, self.stages)

    def part_errors(self, sample: Sample) -> list[Json]:
        """Return the error of every part's output that the reference has too: of the model up to there."""
        theirs = self._whole.part_outputs(sample.inputs)
        ours = self._seams(sample)
        found = []
        for name, port in self.opened.spec.output_ports().items():
            if name not in theirs or name not in ours:
                continue
            compared = compare(ours[name], theirs[name], self.limits.floor)
            part = {"name": name, "module": port.reference, "passed": compared.is_within(self.limits)}
            found.append({**part, **compared.to_json()})
        return found

    def layer_errors(self, sample: Sample) -> list[LayerError]:
        """Measure every tensor of every stage on a sample."""
        tensors: dict[str, Any] = dict(sample.inputs)
        found: list[LayerError] = []
        for stage in self._reference_stages():
            inputs = {name: tensors[name] for name in stage.input_names}
            network = stage.network.graph.network
            found += layer_errors(self.backend, network, inputs, stage.constants)
            tensors |= stage.run(inputs)
        return found

    def _seams(self, sample: Sample) -> Arrays:
        """Return every `part.output` of one run."""
        for stage in self._reference_stages():
            stage.keeps_seams = True
        self.hybrid.run(sample.inputs)
        found = {name: to_array(value) for stage in self._reference_stages() for name, value in stage.seams.items()}
        for stage in self._reference_stages():
            stage.keeps_seams, stage.seams = False, {}
        return found

    def _reference_stages(self) -> list[ReferenceStage]:
        return [stage for stage in self.hybrid.stages if isinstance(stage, ReferenceStage)]


def verify(request: HybridToVerify, context: Context) -> Json:
    """Compare outputs on samples and profile corners, parts, and where asked every layer; return the report's data."""
    return compare_all(HybridVerifier(request, context.report), request.request, context.report)
