"""How a model is quantized, out of a config's `quantize`, a source in low precision, or the network of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import BACKENDS
from trtkit.builder.decoders import llm_options, makes_checkpoint, open_config_source
from trtkit.config.targets import load_target
from trtkit.models.weights import find_weights
from trtkit.network.targets import check_named_types
from trtkit.planning.quantization_config import by_config
from trtkit.quantization.llm.choice import choose
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.quantized_model import LayerForm, QuantizedModel, form_of
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.quantized.read import declared
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from trtkit.config.quantize import QuantizeOptions
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.source import PlannedModel
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]


def quantized_of(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return how the network of a plan is quantized, None if it is not.

    Raises ConfigError for a target whose GPUs cannot take its types, and what reading its source raises.
    """
    if planned.bundle is not None:
        return planned.bundle.network_record().quantization
    quantized = _of_config(planned, spec)
    if quantized is not None:
        quantized = quantized.as_read(llm_options(planned.config).experts)
    target = load_target(planned.config.target)
    if quantized is not None and target.compute_capabilities:
        features = BACKENDS[planned.backend].features
        check_named_types(quantized.types, target.name, target.compute_capabilities, features)
    return quantized


def _of_config(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return how a config's network is to be quantized, or its source is."""
    config, file = planned.config, Path(planned.where)
    if config.quantize is not None and makes_checkpoint(config):
        return by_options(spec, config.quantize)
    if config.source.hf is None:
        return by_source(spec, open_config_source(config))
    section = declared(file.parent, read_json(file)) if file.is_file() else None
    if section is None:
        return None
    if str(section.get("quant_algo")) == "MIXED_PRECISION" and list(file.parent.glob("*.safetensors")):
        return by_source(spec, open_hf_folder(file.parent))  # trtkit's own does not name its layers in int4
    return by_config(spec, section, planned.where)


def by_options(spec: DecoderSpec, options: QuantizeOptions) -> QuantizedModel:
    """Return what a config's `quantize` makes of a model. Raises ConfigError as `choose` does."""
    choice = choose(spec, options)
    layers = {}
    for layer in choice.methods:
        method = choice.of(layer)
        inputs = method.format if method.rounds_inputs else None
        offsets = options.zero_points and method.takes_block
        layers[layer.name] = LayerForm(method.format, method.block(choice.block), inputs, has_offsets=offsets)
    return QuantizedModel(layers, options.kv_cache)


def by_source(spec: DecoderSpec, opened: DecoderSource) -> QuantizedModel | None:
    """Return how a checkpoint is quantized, None if it is not. Its quantized layers are read one by one."""
    if not opened.quantized_by and opened.kv_cache is None:
        return None
    layers = {}
    weights = find_weights(spec, opened.checkpoint, opened.where)
    for path in weights if opened.quantized_by else ():
        if isinstance(matrix := weights[path], QuantizedMatrix):
            layers[path.removesuffix(".weight")] = form_of(matrix)
    return QuantizedModel(layers, None if opened.kv_cache is None else opened.kv_cache.format)
