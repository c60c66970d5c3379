"""Quantize a transformers model in place with ModelOpt: SmoothQuant, FP8 and the scales of weights."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from trtkit.quantization.int4 import least_error
from trtkit.quantization.llm.mixtures import joined_expert_layers
from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.quantization.llm.calibration import CalibrationStatistics, LayerStatistics
    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantization.llm.mixtures import ExpertLayer
    from trtkit.quantization_methods import Algorithm, Format, Method


SMOOTHING = 0.8
"""Default of SmoothQuant's alpha: how much of the inputs' range is moved to the weights."""

TOLERATED = 0.0025
"""Limit on the mean squared relative error of outputs for which a layer's inputs are rounded."""


def kept_in_16_bits(
    weights: dict[LinearLayer, torch.Tensor], measured: CalibrationStatistics, alpha: float
) -> set[LinearLayer]:
    """Return the layers whose inputs no int8 scale fits, and all that share those inputs. weights: [out, in] each."""
    seen = {layer: measured.layers[layer.name] for layer in weights}
    kept = [seen[layer].squares for layer in weights if rounding_error(seen[layer], weights[layer], alpha) > TOLERATED]
    return {layer for layer in weights if any(torch.equal(seen[layer].squares, squares) for squares in kept)}


def rounding_error(statistics: LayerStatistics, weight: torch.Tensor, alpha: float) -> float:
    """Return the mean squared relative error of a layer's outputs if its smoothed inputs are rounded to int8.

    A channel's error is uniform within a step, or the whole channel if it is smaller than a step. Tokens have equal
    weight, so that large outputs of outliers do not hide the loss of others. weight: [out, in].
    """
    peaks, width = statistics.peaks.clamp(min=_TINY_RANGE), weight.abs().amax(0).clamp(min=_TINY_RANGE)
    scale = width ** (1 - alpha) / peaks**alpha
    step = float((peaks * scale).max()) / FORMATS["int8"].largest
    error = torch.minimum(statistics.squares * scale**2, torch.full_like(scale, step**2 / 12))
    return float((error * (weight / scale).square().sum(0)).sum()) * statistics.inverse_outputs


_TINY_RANGE = 1e-5


Attributes = dict[str, object]
_NUMBERS: dict[Format, object] = {"int8": 8, "fp8": (4, 3), "mxfp8": (4, 3), "fp4": (2, 1)}
_SCALES: dict[Format, tuple[int, int]] = {"mxfp8": (8, 0), "fp4": (4, 3)}


def quantize(
    model: Any,
    options: QuantizeOptions,
    choice: MethodChoice,
    measured: CalibrationStatistics | None,
    loop: Callable[[Any], None],
) -> dict[LinearLayer, ExpertLayer]:
    """Quantize the chosen layers, with shared scales for layers that share inputs, as ModelOpt checkpoints require.

    loop: runs calibration data through the model. Returns where experts' layers are.
    """
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

    logging.getLogger("modelopt").setLevel(logging.ERROR)
    entries: list[Attributes] = [{"quantizer_name": "*", "enable": False}]
    alpha = SMOOTHING if options.smoothing is None else options.smoothing
    modules = dict(model.named_modules())
    smoothed = {layer: modules[layer.module].weight.detach().float() for layer in _layers(choice, "smoothquant")}
    experts = joined_expert_layers(model, choice.methods)
    kept = set() if measured is None else kept_in_16_bits(smoothed, measured, alpha)
    for layer in choice.methods:
        method, expert = choice.of(layer), experts.get(layer)
        weights = expert.weight_quantizer if expert else f"{layer.module}.weight_quantizer"
        inputs = expert.input_quantizer if expert else f"{layer.module}.input_quantizer"
        if method.is_modelopts:
            entries.append(_entry(weights, _weights(method)))
        if method.rounds_inputs and layer not in kept:
            entries.append(_entry(inputs, _attributes(method.format)))
    algorithm: Attributes = {"method": "smoothquant", "alpha": alpha} if smoothed else {"method": "max"}
    with _attention_left_alone():
        mtq.quantize(model, {"quant_cfg": entries, "algorithm": algorithm}, loop if choice.needs_data else None)
    for layer in _layers(choice, "least_error"):
        assert measured is not None
        module, squares = modules[layer.module], measured.layers[layer.name].squares
        scales = least_error_scales(module.weight.detach().float(), squares)
        module.weight_quantizer.amax = FORMATS["fp8"].largest * scales
    requantize_resmooth_fused_llm_layers(model)
    return experts


def input_scales(model: Any, choice: MethodChoice) -> dict[str, float]:
    """Return the input scales that ModelOpt's export leaves out, by module: those of fp8 with a scale per row."""
    modules, largest = dict(model.named_modules()), FORMATS["fp8"].largest
    layers = _layers(choice, "least_error")
    return {layer.module: float(modules[layer.module].input_quantizer.amax) / largest for layer in layers}


def _layers(choice: MethodChoice, algorithm: Algorithm) -> list[LinearLayer]:
    return [layer for layer in choice.methods if choice.of(layer).algorithm == algorithm]


def _weights(method: Method) -> Attributes:
    """Return the attributes of ModelOpt's weight quantizer."""
    return _attributes(method.format, 0 if method.scales == "row" else None)


def _attributes(kind: Format, axis: int | None = None) -> Attributes:
    """Return the attributes of a ModelOpt quantizer. axis: the axis with a scale per index."""
    if block := FORMATS[kind].block:
        return {"num_bits": _NUMBERS[kind], "block_sizes": {-1: block, "type": "dynamic", "scale_bits": _SCALES[kind]}}
    return {"num_bits": _NUMBERS[kind], "axis": axis}


def _entry(name: str, attributes: Attributes) -> Attributes:
    return {"quantizer_name": name, "cfg": attributes, "enable": True}


@contextlib.contextmanager
def _attention_left_alone() -> Iterator[None]:
    """Keep ModelOpt from rewriting attention, which it does for the caches and cannot do for all models."""
    from modelopt.torch.quantization.plugins.custom import CUSTOM_MODEL_PLUGINS
    from modelopt.torch.quantization.plugins.huggingface import register_hf_attentions_on_the_fly

    CUSTOM_MODEL_PLUGINS.remove(register_hf_attentions_on_the_fly)
    try:
        yield
    finally:
        CUSTOM_MODEL_PLUGINS.add(register_hf_attentions_on_the_fly)


_FACTORS = [2 ** (step / 16) for step in range(16)]
_TINY = 1e-12


def least_error_scales(weight: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return the scale of least error for each row of a weight, [out, 1].

    It is at least the smallest that fits the row's largest value, and less than twice that. The steps of a float type
    double with each power of two, so a scale moves the rare large weights, which cost most, closer to a step or away
    from it. weight: [out, in]. squares: mean squares of each column's inputs, [in], which weight the errors.
    """
    least = weight.abs().amax(1, keepdim=True).clamp(min=_TINY) / FORMATS["fp8"].largest

    def error(scales: torch.Tensor) -> torch.Tensor:
        rounded = (weight / scales).to(torch.float8_e4m3fn).float() * scales
        return ((rounded - weight).square() * squares).sum(1, keepdim=True)

    return least_error(least, _FACTORS, error)
