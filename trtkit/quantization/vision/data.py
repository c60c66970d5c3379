"""Calibration data of a vision model: samples of its inputs, and the ranges of its tensors on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import QuantizeError
from trtkit.inputs.samples import Sample, check_names, check_samples, read_npz, read_samples, sample_files
from trtkit.network.onnx.io import save_model
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from trtkit.arrays import Array
    from trtkit.config.quantize import PartOptions
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Steps
    from trtkit.network.onnx.io import OnnxTensorSpec

PERCENTILE = 99.99
"""Percentile of magnitudes that the range of `percentile` covers."""
DRAWN = 8192
"""Values sampled from a tensor in each run, for comparing the error of scales."""


@dataclass(frozen=True)
class QuantizationRun:
    """Context of a quantization. shapes: typical ones, used to judge products. folder: for temporary files."""

    shapes: dict[str, tuple[int, ...]]
    folder: Path
    steps: Steps


ReadImages = Callable[[Sequence[Path], "Sequence[OnnxTensorSpec]"], list[Sample]]
"""Reads images as samples of the given inputs."""


def preprocessed_by(config: ModelConfig) -> ReadImages:
    """Return a reader that preprocesses images by a config's `preprocess`."""
    return lambda files, inputs: read_samples([str(file) for file in files], config, inputs)


@dataclass(frozen=True)
class OnnxQuantization:
    """How an ONNX model is quantized. key: of its options in the config, for errors."""

    options: PartOptions
    read_images: ReadImages
    key: str = "quantize"

    @classmethod
    def of(cls, config: ModelConfig) -> OnnxQuantization:
        """Return a config's quantization of the whole model."""
        assert config.quantize is not None
        return cls(config.quantize, preprocessed_by(config))


def read_calibration(quantization: OnnxQuantization, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Return the samples of `calibration.data`: at most `samples`, evenly spread.

    From a folder, its images, or its .npz files if it has no images. An .npz file holds arrays by input name, with
    samples along the first axis. Raises QuantizeError and SourceError.
    """
    calibration, key = quantization.options.calibration, quantization.key
    if calibration.data is None:
        option = ", or `--calib FOLDER`" if key == "quantize" else ""
        fix = f"give images like those the model will see: `--set {key}.calibration.data=FOLDER`{option}"
        raise QuantizeError("this method needs calibration data", f"{key}.calibration", fix)
    path = package_file.resolve(calibration.data)
    files = sample_files(path)
    images = [file for file in files if file.suffix.lower() != ".npz"]
    if images:
        return quantization.read_images(spread(images, calibration.samples), inputs)
    samples = [sample for file in files for sample in _parts(file, inputs)]
    chosen = spread(samples, calibration.samples)
    check_samples(chosen, inputs)
    return chosen


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """Return at most `count` items, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _parts(path: Path, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Split the arrays of an .npz file along the first axis into samples. Raises SourceError and QuantizeError."""
    arrays = read_npz(path)
    check_names(Sample(path.name, arrays), inputs)
    sizes = {spec.name: spec.shape[0] if spec.shape and isinstance(spec.shape[0], int) else 1 for spec in inputs}
    runs = {name: len(value) // sizes[name] if value.ndim else 0 for name, value in arrays.items()}
    count = min(runs.values())
    if not count or len(set(runs.values())) > 1:
        have = ", ".join(f"{number} of `{name}`" for name, number in runs.items())
        fix = "give every input the same number of samples, at least one, along the first axis"
        raise QuantizeError(f"the arrays hold different numbers of samples: {have}", str(path), fix)
    cut = [{name: value[run * sizes[name] :][: sizes[name]] for name, value in arrays.items()} for run in range(count)]
    return [Sample(f"{path.name}#{run}", arrays) for run, arrays in enumerate(cut)]


@dataclass
class Range:
    """A tensor's values over all runs. runs: total number of runs. largest: the largest magnitudes.

    samples: some values of each run.
    """

    runs: int
    low: float = np.inf
    high: float = -np.inf
    is_finite: bool = True
    count: int = 0
    largest: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    samples: list[Array] = field(default_factory=list)

    def add(self, values: Array) -> None:
        """Add a tensor's values of one run."""
        self.count += values.size
        if not values.size:
            return
        self.is_finite = self.is_finite and bool(np.isfinite(values).all())
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        drawn = np.random.default_rng(len(self.samples)).integers(values.size, size=min(DRAWN, values.size))
        self.samples.append(values.reshape(-1)[drawn])
        together = np.concatenate([self.largest, np.abs(values).reshape(-1)])
        self.largest = np.sort(together)[-max(_above(values.size * self.runs), len(self.largest)) :]

    @property
    def drawn(self) -> Array:
        return np.concatenate(self.samples)

    @property
    def percentile(self) -> float:
        """The magnitude at PERCENTILE of all values, rounded down to one of them."""
        return float(self.largest[-_above(self.count)])


def _above(count: int) -> int:
    """Return how many of `count` values are at or above PERCENTILE."""
    return count - math.floor(PERCENTILE / 100 * (count - 1))


def measure(
    model: onnx.ModelProto, tensors: Sequence[str], samples: Sequence[Sample], quantization: QuantizationRun
) -> dict[str, Range]:
    """Return the ranges of `tensors` over the samples, by ONNX Runtime.

    Raises QuantizeError if it cannot run the model.
    """
    import onnx
    import onnxruntime

    copy = type(model)()
    copy.CopyFrom(model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in known)
    path = quantization.folder / "measured.onnx"
    save_model(copy, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    ranges = {name: Range(len(samples)) for name in tensors}
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for sample in quantization.steps.track("measure", samples):
            for name, value in _values(session, tensors, sample).items():
                ranges[name].add(value)
    except Exception as error:  # ONNX Runtime raises a different class for each kind of failure
        reason = str(error).strip().splitlines()[0]
        raise QuantizeError(f"ONNX Runtime cannot run the model on the calibration data: {reason}") from None
    return ranges


def _values(session: Any, tensors: Sequence[str], sample: Sample) -> dict[str, Array]:
    missing = [name for name in tensors if name not in sample.inputs]
    outputs = dict(zip(missing, session.run(missing, dict(sample.inputs)) if missing else [], strict=True))
    return {name: outputs[name] if name in outputs else sample.inputs[name] for name in tensors}


def check_ranges(ranges: Mapping[str, Range], readers: Mapping[str, str], where: str) -> None:
    """Refuse tensors whose range gives no scale. readers: a node that reads each tensor. Raises QuantizeError."""
    for name, extent in ranges.items():
        node = readers[name]
        state, advice = "NaN or infinite", "give other data"
        if extent.is_finite and extent.low != extent.high:
            continue
        if extent.is_finite:
            state, advice = f"{extent.low:g} everywhere", "give data like what it will see"
        what = f"`{name}`, which `{node}` reads, is {state} on the calibration data"
        raise QuantizeError(what, where, f"{advice}, or exclude the node: `quantize.exclude: ['{node}']`")
