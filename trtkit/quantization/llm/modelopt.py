"""Let ModelOpt quantize a model of transformers where it stands, and set the weights' scales that it does not."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from trtkit.quantization.llm.experts import joined_expert_layers
from trtkit.quantization.llm.fp8 import least_error_scales
from trtkit.quantization.llm.smoothing import SMOOTHING, kept_in_16_bits
from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.quantization.llm.calibration import Measured
    from trtkit.quantization.llm.choice import Choice, Layer
    from trtkit.quantization.llm.experts import ExpertLayer
    from trtkit.quantization_methods import Algorithm, Format, Method

Attributes = dict[str, object]
_NUMBERS: dict[Format, object] = {"int8": 8, "fp8": (4, 3), "mxfp8": (4, 3), "fp4": (2, 1)}
_SCALES: dict[Format, tuple[int, int]] = {"mxfp8": (8, 0), "fp4": (4, 3)}


def quantize(
    model: Any, options: QuantizeOptions, choice: Choice, measured: Measured | None, loop: Callable[[Any], None]
) -> dict[Layer, ExpertLayer]:
    """Quantize the chosen layers, those that read the same inputs alike as in ModelOpt's checkpoints.

    loop: runs calibration data through the model. Returns where the experts' layers are.
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


def input_scales(model: Any, choice: Choice) -> dict[str, float]:
    """Return input scales that ModelOpt's export leaves out, by module: of fp8 with a scale for each row."""
    modules, largest = dict(model.named_modules()), FORMATS["fp8"].largest
    layers = _layers(choice, "least_error")
    return {layer.module: float(modules[layer.module].input_quantizer.amax) / largest for layer in layers}


def _layers(choice: Choice, algorithm: Algorithm) -> list[Layer]:
    """Return the layers that an algorithm quantizes."""
    return [layer for layer in choice.methods if choice.of(layer).algorithm == algorithm]


def _weights(method: Method) -> Attributes:
    """Return the attributes of ModelOpt's quantizer of weights."""
    return _attributes(method.format, 0 if method.scales == "row" else None)


def _attributes(kind: Format, axis: int | None = None) -> Attributes:
    """Return the attributes of one of ModelOpt's quantizers. axis: whose indices have a scale each."""
    if block := FORMATS[kind].block:
        return {"num_bits": _NUMBERS[kind], "block_sizes": {-1: block, "type": "dynamic", "scale_bits": _SCALES[kind]}}
    return {"num_bits": _NUMBERS[kind], "axis": axis}


def _entry(name: str, attributes: Attributes) -> Attributes:
    return {"quantizer_name": name, "cfg": attributes, "enable": True}


@contextlib.contextmanager
def _attention_left_alone() -> Iterator[None]:
    """Keep ModelOpt from rewriting attention, which it does for caches' sake and not for all models can."""
    from modelopt.torch.quantization.plugins.custom import CUSTOM_MODEL_PLUGINS
    from modelopt.torch.quantization.plugins.huggingface import register_hf_attentions_on_the_fly

    CUSTOM_MODEL_PLUGINS.remove(register_hf_attentions_on_the_fly)
    try:
        yield
    finally:
        CUSTOM_MODEL_PLUGINS.add(register_hf_attentions_on_the_fly)
