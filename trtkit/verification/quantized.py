"""Quantized vision models: what they may lose, and the data that they were quantized on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.hybrids.spec import OnnxPart
from trtkit.quantization.vision.data import read_calibration
from trtkit.quantization_methods import METHODS, tolerance_of
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.schema import ModelConfig
    from trtkit.inputs.samples import Sample
    from trtkit.network.onnx.io import TensorSpec
    from trtkit.quantization.by_part.choice import HybridQuantization

AGREEMENT = 0.5
"""Share of equal answers: near misses are many, and some data is few; what is plainly wrong has fewer."""


def quantized_tolerance(config: ModelConfig) -> float:
    """Return the relative RMS error that quantizing a vision model may cost; 0 where the config does not, or says."""
    if config.quantize is None or config.verify.max_relative_rms_error is not None:
        return 0.0
    return tolerance_of(config.quantize.method)


def hybrid_tolerance(config: ModelConfig, quantization: HybridQuantization | None) -> float:
    """Return what quantizing a hybrid may cost on top of its written parts' rounded weights, as in the reference."""
    if quantization is None or config.verify.max_relative_rms_error is not None:
        return 0.0
    parsed = [each.options.method for each in quantization.choices.values() if isinstance(each.part, OnnxPart)]
    rounded = [method for method in quantization.layers.values() if METHODS[method].rounds_inputs]
    return max(map(tolerance_of, [*parsed, *rounded]), default=0.0)


def has_calibration(config: ModelConfig) -> bool:
    """Whether the model was quantized on data that is still there."""
    if config.quantize is None or config.quantize.calibration.data is None:
        return False
    try:
        package_file.resolve(config.quantize.calibration.data)
    except SourceError:
        return False
    return True


def calibration_samples(config: ModelConfig, inputs: Sequence[TensorSpec]) -> list[Sample]:
    """Return the samples that a model was quantized on, none where it was not or they are gone. Raises TrtkitError."""
    return read_calibration(config, inputs) if has_calibration(config) else []
