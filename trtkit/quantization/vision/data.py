"""The data that a vision model is measured on: samples of its inputs, and the ranges that tensors have on them."""

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
"""Of magnitudes, what the range covers by `percentile`."""
DRAWN = 8192
"""Values of a tensor that are looked at in one run, where the error of scales is compared."""


@dataclass(frozen=True)
class QuantizationRun:
    """Where a model is quantized. shapes: typical ones, at which products are judged. folder: for files in between."""

    shapes: dict[str, tuple[int, ...]]
    folder: Path
    steps: Steps


ReadImages = Callable[[Sequence[Path], "Sequence[OnnxTensorSpec]"], list[Sample]]
"""Makes samples of images for these inputs."""


def preprocessed_by(config: ModelConfig) -> ReadImages:
    """Return what reads images by a config's `preprocess`."""
    return lambda files, inputs: read_samples([str(file) for file in files], config, inputs)


@dataclass(frozen=True)
class OnnxQuantization:
    """How an ONNX model is quantized. key: of its options in the config, for errors."""

    options: PartOptions
    read_images: ReadImages
    key: str = "quantize"

    @classmethod
    def of(cls, config: ModelConfig) -> OnnxQuantization:
        """Return how a config quantizes the whole model."""
        assert config.quantize is not None
        return cls(config.quantize, preprocessed_by(config))


def read_calibration(quantization: OnnxQuantization, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Return the samples that `calibration` names: `samples` at most, spread over what is there.

    Of a folder, its images, or .npz files if it has none. An .npz file holds arrays by input name, whose first axis
    counts samples. Raises QuantizeError and SourceError.
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
    """Return `count` items at most, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _parts(path: Path, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Cut the arrays of an .npz file along their first axis into runs. Raises SourceError and QuantizeError."""
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
    """What a tensor's values are over all runs. runs: how many there will be. largest: the greatest magnitudes.

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
        """Take in a tensor's values in one run."""
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
        """The magnitude at PERCENTILE of all values, the lower one where it falls between two."""
        return float(self.largest[-_above(self.count)])


def _above(count: int) -> int:
    """Return how many of `count` values are at PERCENTILE or above."""
    return count - math.floor(PERCENTILE / 100 * (count - 1))


def measure(
    model: onnx.ModelProto, tensors: Sequence[str], samples: Sequence[Sample], quantization: QuantizationRun
) -> dict[str, Range]:
    """Return the ranges of `tensors` over the samples, by ONNX Runtime. Raises QuantizeError where it cannot run."""
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
    except Exception as error:  # ONNX Runtime raises a class of its own for each refusal
        reason = str(error).strip().splitlines()[0]
        raise QuantizeError(f"ONNX Runtime cannot run the model on the calibration data: {reason}") from None
    return ranges


def _values(session: Any, tensors: Sequence[str], sample: Sample) -> dict[str, Array]:
    missing = [name for name in tensors if name not in sample.inputs]
    outputs = dict(zip(missing, session.run(missing, dict(sample.inputs)) if missing else [], strict=True))
    return {name: outputs[name] if name in outputs else sample.inputs[name] for name in tensors}


def check_ranges(ranges: Mapping[str, Range], readers: Mapping[str, str], where: str) -> None:
    """Refuse tensors from which no scale follows. readers: a node that reads each. Raises QuantizeError."""
    for name, extent in ranges.items():
        node = readers[name]
        state, advice = "NaN or infinite", "give other data"
        if extent.is_finite and extent.low != extent.high:
            continue
        if extent.is_finite:
            state, advice = f"{extent.low:g} everywhere", "give data like what it will see"
        what = f"`{name}`, which `{node}` reads, is {state} on the calibration data"
        raise QuantizeError(what, where, f"{advice}, or exclude the node: `quantize.exclude: ['{node}']`")
