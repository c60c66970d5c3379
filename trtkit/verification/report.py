"""The verification report, shared by all model interfaces, and its JSON form."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from trtkit.jobs.json_form import to_json
from trtkit.pages import HasPage
from trtkit.runtime.tasks.answers import Box

VERSION = 1
"""Version of the report's JSON form."""
_NOTES = {
    "unreal",
    "layers_problem",
    "fixed",
    "source_precision",
    "method",
    "counted",
    "stored",
    "loss",
    "networks",
    "pictures",
    "neurons",
}

Answer = int | str
BatchRows = Literal["independent", "mixed"]


class Check(Protocol):
    """A check that must pass for the report to pass."""

    @property
    def passed(self) -> bool:
        """Whether it is right."""


@dataclass(frozen=True)
class ComparisonLimits:
    """Limits that a comparison must meet.

    tolerance: the relative RMS error of an output. slices: that of its worst slice. floor: see `slices.worst_slice`.
    """

    tolerance: float
    slices: float
    floor: float


@dataclass(frozen=True)
class WorstSlice:
    """One index of an axis. relative_rms_error: over the slice, on its own scale (see `slices.worst_slice`)."""

    axis: int
    index: int
    relative_rms_error: float


@dataclass(frozen=True)
class Comparison:
    """Difference between a result and its reference.

    relative_rms_error: `||a-b|| / ||b||`, or the RMS of a if b is all zeros; infinite if only one of them is finite, or
    if shapes differ. max_rel_error: largest `|a-b| / |b|` where b is not 0. cosine: cosine similarity. worst_slice: the
    channel, query or position with the largest error; None for outputs of one axis. equal_nans: number of NaNs at the
    same positions on both sides, which count as equal. values: number of values.
    """

    relative_rms_error: float
    max_abs_error: float
    max_rel_error: float
    cosine: float
    problem: str = ""
    worst_slice: WorstSlice | None = None
    equal_nans: int = 0
    values: int = 0

    def is_within(self, limits: ComparisonLimits) -> bool:
        """Whether the whole output and its worst slice are within the limits."""
        slices = 0.0 if self.worst_slice is None else self.worst_slice.relative_rms_error
        return self.relative_rms_error <= limits.tolerance and slices <= limits.slices


@dataclass(frozen=True, kw_only=True)
class Output(Comparison):
    """An output of the model. spread: how much the reference's output varies between inputs, None if unknown."""

    passed: bool
    spread: float | None


@dataclass(frozen=True, kw_only=True)
class PartOutput(Comparison):
    """The output of a part of the model, computed with everything before it. module: the reference's module."""

    name: str
    module: str
    passed: bool


@dataclass(frozen=True)
class Corner:
    """A run at the shapes of a profile corner, or in chunks or slots.

    relative_rms_error: the worst output's; infinite if the run failed. outputs: those that are out of tolerance.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    passed: bool
    relative_rms_error: float
    worst_slice: WorstSlice | None = None
    problem: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Agreement:
    """Agreement of answers. measure: `top-1`, `text`, `greedy text`, `detections`, or empty if there is none.

    agreement: share of equal answers. answers: pairs of ours and the reference's, one per item. names: of the classes
    in the answers, by number; empty if they have no names.
    """

    measure: str = ""
    agreement: float = 1.0
    required: float = 0.0
    top_5: float | None = None
    answers: tuple[tuple[Answer, Answer], ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether enough answers agree."""
        return self.agreement >= self.required


@dataclass(frozen=True)
class Rows:
    """Rows that only one side has, as a share of all, in the worst run. allowed: the largest share that passes."""

    unpaired: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class CountedRows:
    """Boxes of a network that ends in its own selection. rows: those that score at least `floor`, over all runs."""

    rows: int
    runs: int
    floor: float


@dataclass(frozen=True)
class Suppression:
    """NMS inside the network, replayed on the rows that it read.

    boxes: selected over all runs. problem: the first one.
    """

    boxes: int
    runs: int
    passed: bool
    problem: str = ""


@dataclass(frozen=True)
class EngineOutputs:
    """The engine's own outputs on a GPU against the reference executor's."""

    passed: bool
    outputs: dict[str, Comparison]


@dataclass(frozen=True)
class StoredOutputs:
    """Outputs compared with those of the quantized file itself. reference: what ran it. tolerance: the report's."""

    reference: str
    tolerance: float
    passed: bool
    outputs: dict[str, Comparison]


@dataclass(frozen=True)
class QuantizationLoss:
    """Relative RMS error on the worst calibration sample: now, and when the model was quantized."""

    measured: float
    recorded: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class PerplexityCheck:
    """Perplexity per token of a text, ours and the reference's. allowed: the largest relative change that passes."""

    text: str
    windows: int
    tokens: int
    perplexity: float
    reference: float
    relative_change: float
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Neurons:
    """Neuron blocks of all layers and calls, if steps read only active ones; missed blocks were active but not read."""

    active: int
    read: int
    missed: int

    def __str__(self) -> str:
        """Return the counts as text for users."""
        return f"{self.active} active blocks, {self.read} read, {self.missed} missed"


@dataclass(frozen=True)
class LayerError:
    """Error and range of one tensor. Ranges are those of the widened network.

    node: the ONNX node that the layer came from, empty for layers that the parser added. reads: the tensors that the
    layer reads. relative_rms_error: against the widened network. reference_error: of the widened network against ONNX
    Runtime's tensor of the same name, None if there is none. headroom_bits: by type, how often the largest value could
    double before it overflows; negative means overflow. For a tensor of zeros it is computed from the type's smallest
    value. flushed: by type, the share of nonzero values that would become zero.
    """

    layer: str
    kind: str
    node: str
    tensor: str
    dtype: str
    relative_rms_error: float
    is_finite: bool
    largest: float
    smallest: float
    headroom_bits: dict[str, float]
    flushed: dict[str, float]
    reads: tuple[str, ...] = ()
    reference_error: float | None = None


@dataclass(frozen=True)
class BundleNetwork:
    """A network in a bundle, which runs, compared with the one written from the source, which is verified.

    is_held: whether the bundle holds its layers, which it does not for a network with plugins, run by TensorRT only.
    layer: the first that differs; empty if all are equal. difference: what differs.
    """

    stage: str
    rank: int = 0
    is_held: bool = True
    layer: str = ""
    difference: str = ""

    @property
    def passed(self) -> bool:
        """Whether no difference was found."""
        return not self.difference


@dataclass(frozen=True)
class BundleNetworks:
    """The networks of all stages and ranks of a bundle."""

    networks: tuple[BundleNetwork, ...]


@dataclass(frozen=True)
class ComparedPicture:
    """A picture that a model was verified on. boxes, reference_boxes: those with the highest scores, for a detector."""

    name: str
    path: str
    boxes: tuple[Box, ...] = ()
    reference_boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Repair:
    """The result of `trtkit verify --fix`. config: the file written. keep_fp32: patterns of the nodes kept in fp32."""

    config: str
    keep_fp32: tuple[str, ...]


@dataclass(frozen=True)
class Report(HasPage):
    """The result of a verification. Whatever does not apply to a model is None or empty.

    tolerance: the largest relative RMS error of an output. slice_tolerance: that of its worst slice. hollow: outputs
    whose PASS is inconclusive. parts: of a hybrid. rows: of unordered outputs. counted: of outputs that are boxes after
    a selection, of which only those with a sufficient score are compared. nms: of a network that contains NMS; its
    `outputs` here are the rows before it. source_precision: the type that sets the tolerance because the source itself
    rounds to it; empty if that is `precision`. method: how the model was quantized. stored: of a quantized file whose
    reference is its float model. loss: of a model that was compared on its calibration data. engine: if one ran on a
    GPU. batch_rows: whether each row of axis 0 has the same outputs as alone, so that requests may share a batch; None
    if axis 0 is static. top_1_agreement: of logits, at positions where the two best candidates are clearly apart.
    neurons: counts of the neuron blocks that were skipped, if a network reads only active ones. layers: empty unless
    they were compared. unreal: why random inputs may be to blame. layers_problem: why layers could not be compared.
    fixed: the repaired config that this report covers. networks: of a bundle, each as stored there, compared with the
    verified one. pictures: the first pictures among the samples.
    """

    name: str
    passed: bool
    precision: str
    reference: str
    executor: str
    tolerance: float
    slice_tolerance: float
    slice_floor: float
    samples: tuple[str, ...]
    outputs: dict[str, Output]
    hollow: tuple[str, ...]
    task: Agreement = field(default_factory=Agreement)
    corners: tuple[Corner, ...] = ()
    parts: tuple[PartOutput, ...] = ()
    rows: Rows | None = None
    counted: CountedRows | None = None
    nms: Suppression | None = None
    source_precision: str = ""
    method: str = ""
    stored: StoredOutputs | None = None
    loss: QuantizationLoss | None = None
    engine: EngineOutputs | None = None
    batch_rows: BatchRows | None = None
    top_1_agreement: float | None = None
    perplexity: PerplexityCheck | None = None
    neurons: Neurons | None = None
    layers: tuple[LayerError, ...] = ()
    unreal: str = ""
    layers_problem: str = ""
    fixed: Repair | None = None
    networks: tuple[BundleNetwork, ...] = ()
    pictures: tuple[ComparedPicture, ...] = ()

    def __str__(self) -> str:
        """Return what `trtkit verify` prints. The renderer lies above this package, so it is imported by name."""
        parts = importlib.import_module("trtkit.report.verification_tables").verify_tables(self)
        return cast("str", importlib.import_module("trtkit.cli.tables").as_text(parts))

    def __repr__(self) -> str:
        return f"<report of {self.name}: {'passed' if self.passed else 'failed'}>"

    def with_networks(self, networks: tuple[BundleNetwork, ...]) -> Report:
        """Return the report with the comparison of a bundle's own networks; it passes only if they are equal."""
        return replace(self, networks=networks, passed=self.passed and all(network.passed for network in networks))

    def to_json(self) -> dict[str, Any]:
        """Return the report's JSON form for users.

        Without empty notes, and with null for infinities, which JSON lacks.
        """
        data = {key: _finite(value) for key, value in to_json(self).items() if value or key not in _NOTES}
        return {"version": VERSION, **data}


def _finite(data: Any) -> Any:
    """Return JSON data with null for infinities."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
