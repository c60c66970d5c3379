"""Quantized vision models: the loss that they may have, what they were quantized from, and on which data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.builder.quantize import read_float_model
from trtkit.config.quantize import QuantizeOptions
from trtkit.dtypes import dtype_of
from trtkit.errors import SourceError
from trtkit.models.hybrids.spec import OnnxPart
from trtkit.network.onnx.quantize import likely_method
from trtkit.quantization.vision.data import OnnxQuantization, read_calibration
from trtkit.quantization_methods import METHODS, tolerance_of
from trtkit.sources import package_file
from trtkit.verification.references import NetworkOrigin, source_reference, unusable
from trtkit.verification.report import QuantizationLoss

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from trtkit.config.schema import ModelConfig
    from trtkit.inputs.samples import Sample
    from trtkit.network.onnx.io import OnnxTensorSpec
    from trtkit.quantization.by_part import HybridQuantization
    from trtkit.verification.references import Reference
    from trtkit.verification.report import Comparison

AGREEMENT = 0.5
"""Required share of equal answers.

Low, as near misses are common and data is scarce; a plainly wrong model has fewer.
"""


_LOSS_TIMES, _LOSS_MORE = 2.0, 0.05
"""Rounding in a different order may double a loss; a wrong scale costs more."""


@dataclass(frozen=True)
class QuantizedSource:
    """A source with Q/DQ nodes, judged like a model that the config's own `quantize` quantizes.

    config: with the options that the file was quantized with, or that its nodes suggest. float_config: reads the float
    model; None if it cannot be compared. digests: of the float model's files. float_problem: why it is not compared, as
    text that follows a reference's description; empty if there is no float model.
    """

    config: ModelConfig
    float_config: ModelConfig | None = None
    digests: tuple[str, ...] = ()
    float_problem: str = ""


def quantized_source(config: ModelConfig, graph: onnx.ModelProto, *, trusts_source: bool) -> QuantizedSource | None:
    """Describe a source that is itself quantized; None if it is not, or if the config quantizes it.

    trusts_source: whether the user permits running a factory named in the file's record, since the record is data.
    """
    method = likely_method(graph)
    if config.quantize is not None or not method:
        return None
    noted = None if config.source.onnx is None else read_float_model(_path(config))
    if noted is None or noted.config.quantize is None:
        # Quantized weights are rounded once, ahead of time: every runtime computes the same from them.
        options = QuantizeOptions.model_validate({"method": method}) if METHODS[method].rounds_inputs else None
        return QuantizedSource(config.model_copy(update={"quantize": options}))
    known = config.model_copy(update={"quantize": noted.config.quantize})
    origin = NetworkOrigin(_path(config), (), noted.digests, trusts_source)
    problem, _ = unusable(noted.config.source, origin)
    if problem:
        return QuantizedSource(known, float_problem=f"; not compared with the float model: {problem}")
    kept = {key: getattr(noted.config, key) for key in ("source", "fixed_inputs", "image_size")}
    return QuantizedSource(known, config.model_copy(update=kept), noted.digests)


def _path(config: ModelConfig) -> Path:
    """Return the path where a config's ONNX file is, or was."""
    assert config.source.onnx is not None
    try:
        return package_file.resolve(config.source.onnx, config.source.requires)
    except SourceError:
        return Path(config.source.onnx)


@dataclass(frozen=True)
class StoredReference:
    """The quantized file itself as a reference, in addition to the float model."""

    reference: Reference
    tolerance: float


def stored_reference(
    config: ModelConfig, quantized: ModelConfig, tolerance: float, origin: NetworkOrigin
) -> StoredReference | None:
    """Return a config's quantized file as a reference; None if it has changed or is gone.

    quantized: the config with the file's options. tolerance: that of a network that is not quantized.
    """
    assert quantized.quantize is not None
    if unusable(config.source, origin)[0]:
        return None
    rounds_inputs = METHODS[quantized.quantize.method].rounds_inputs
    allowed = max(tolerance, quantized_tolerance(quantized)) if rounds_inputs else tolerance
    return StoredReference(source_reference(config), allowed)


def check_loss(config: ModelConfig, recorded: float | None, outputs: Iterable[Comparison]) -> QuantizationLoss | None:
    """Compare the loss on the calibration data with the loss measured when the model was quantized.

    recorded: the latter; None if it was not measured. outputs: on the calibration data.
    """
    if recorded is None or config.verify.max_relative_rms_error is not None:
        return None
    measured = max((output.relative_rms_error for output in outputs), default=0.0)
    allowed = _LOSS_TIMES * recorded + _LOSS_MORE + dtype_of(config.precision).tolerance
    return QuantizationLoss(measured, recorded, allowed, measured <= allowed)


def quantized_tolerance(config: ModelConfig) -> float:
    """Return the relative RMS error that quantizing a vision model may add; 0 if not quantized or set by the config."""
    if config.quantize is None or config.verify.max_relative_rms_error is not None:
        return 0.0
    return tolerance_of(config.quantize.method)


def hybrid_tolerance(config: ModelConfig, quantization: HybridQuantization | None) -> float:
    """Return the error that quantizing a hybrid may add on top of its written parts' rounded weights.

    The reference rounds those weights too.
    """
    if quantization is None or config.verify.max_relative_rms_error is not None:
        return 0.0
    parsed = [choice.options.method for choice in quantization.choices.values() if isinstance(choice.part, OnnxPart)]
    rounded = [method for method in quantization.layers.values() if METHODS[method].rounds_inputs]
    return max(map(tolerance_of, [*parsed, *rounded]), default=0.0)


def has_calibration(config: ModelConfig) -> bool:
    """Whether the data that the model was quantized on is still available."""
    if config.quantize is None or config.quantize.calibration.data is None:
        return False
    try:
        package_file.resolve(config.quantize.calibration.data)
    except SourceError:
        return False
    return True


def calibration_samples(config: ModelConfig, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Return the samples that a model was quantized on; an empty list if none are available. Raises TrtkitError."""
    return read_calibration(OnnxQuantization.of(config), inputs) if has_calibration(config) else []
