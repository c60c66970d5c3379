"""How a model is quantized, out of a config's `quantize`, a source in few bits, or the network of a bundle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trtkit.backends import BACKENDS
from trtkit.config.targets import load_target
from trtkit.engine.decoder_build import makes_checkpoint
from trtkit.engine.decoders import open_model_source
from trtkit.models.weights import find_weights
from trtkit.network.targets import check_named_types
from trtkit.planning.quantization_config import by_config
from trtkit.planning.quantized_model import LayerForm, QuantizedModel
from trtkit.quantization.llm.choice import choose
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.quantized.read import declared
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord
    from trtkit.planning.source import PlannedModel
    from trtkit.quantization_methods import CacheFormat, Format
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]
_WEIGHT = "/weight"


def quantized_of(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return how the network of a plan is quantized, None where it is not.

    Raises ConfigError for a target whose GPUs cannot take its types, and what reading its source raises.
    """
    if planned.bundle is not None:
        return by_network(planned.bundle.network_record())
    found = _of_config(planned, spec)
    target = load_target(planned.config.target)
    if found is not None and target.compute_capabilities:
        features = BACKENDS[planned.backend].features
        check_named_types(found.types, target.name, target.compute_capabilities, features)
    return found


def _of_config(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return how a config's network is to be quantized, or its source is."""
    config, file = planned.config, Path(planned.where)
    if config.quantize is not None and makes_checkpoint(config):
        return by_options(spec, config.quantize)
    if config.source.hf is None:
        return by_source(spec, open_model_source(config))
    asked = declared(file.parent, read_json(file)) if file.is_file() else None
    if asked is None:
        return None
    if str(asked.get("quant_algo")) == "MIXED_PRECISION" and list(file.parent.glob("*.safetensors")):
        return by_source(spec, open_hf_folder(file.parent))  # trtkit's own does not name its layers in int4
    return by_config(spec, asked, planned.where)


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
    """Return how a checkpoint is quantized, None where it is not. Its quantized layers are read one by one."""
    if not opened.quantized_by and opened.kv_cache is None:
        return None
    layers = {}
    weights = find_weights(spec, opened.checkpoint, opened.where)
    for path in weights if opened.quantized_by else ():
        if isinstance(matrix := weights[path], QuantizedMatrix):
            layers[path.removesuffix(".weight")] = _form_of(matrix)
    return QuantizedModel(layers, None if opened.kv_cache is None else opened.kv_cache.format)


def _form_of(matrix: QuantizedMatrix) -> LayerForm:
    """Return the form of one matrix."""
    block = matrix.block if matrix.scales.ndim else None
    inputs = matrix.inputs
    kind, is_per_token = (None, False) if inputs is None else (inputs.format, inputs.is_per_token)
    return LayerForm(matrix.format, block, kind, is_per_token, matrix.offsets is not None)


def by_network(record: NetworkRecord) -> QuantizedModel | None:
    """Return how a built network is quantized, None where it is not. record: as it was described."""
    layers = record.layers
    made = {tensor.name: layer for layer in layers for tensor in layer.outputs}
    offsets = {name.removesuffix("/offset/offsets") for name in made if name.endswith("/offset/offsets")}
    products = {layer.inputs[1].name: layer for layer in layers if layer.type == "MATRIX_MULTIPLY"}
    scaled = {layer.name.rpartition("/")[0] for layer in layers if layer.type == "REDUCE"}
    found = {}
    for layer in layers:
        codes = layer.inputs[0].name if layer.type == "DEQUANTIZE" else ""
        if not codes.endswith(_WEIGHT) or codes not in made or made[codes].type != "CONSTANT":
            continue
        place = codes.removesuffix(_WEIGHT)
        inputs = _input_format(products.get(layer.outputs[0].name), made)
        kind, scope = inputs or (None, "")
        form = LayerForm(*_codes_form(layer), kind, scope in scaled, place in offsets)
        found[place.replace("/", ".")] = form
    kv_cache = _cache_type(record.inputs)
    return QuantizedModel(found, kv_cache) if found or kv_cache else None


def _codes_form(dequantize: LayerRecord) -> tuple[Format, int | None]:
    """Return format and block of a matrix by the layer that dequantizes it."""
    codes, scales = dequantize.inputs[:2]
    shape, columns = scales.shape, codes.shape[-1]
    kind = _format(codes, scales)
    if len(shape) < 2:
        return kind, 0 if math.prod(shape) > 1 else None
    return kind, columns // shape[-1]


def _input_format(product: LayerRecord | None, made: dict[str, LayerRecord]) -> tuple[Format, str] | None:
    """Return the format of a product's inputs and the scope that quantizes them; None where they are not."""
    layer = None if product is None else made.get(product.inputs[0].name)
    if layer is None or layer.type != "DEQUANTIZE":
        return None
    codes, scales = layer.inputs[:2]
    kind = _format(codes, scales)
    return kind, layer.name.rpartition("/")[0]


def _format(codes: TensorRecord, scales: TensorRecord) -> Format:
    """Return the format of codes with such scales."""
    return "mxfp8" if scales.dtype == "e8m0" else cast("Format", codes.dtype)


def _cache_type(inputs: Sequence[TensorRecord]) -> CacheFormat | None:
    """Return the type of caches in eight bits."""
    types = {tensor.dtype for tensor in inputs if tensor.name.startswith("past_")}
    return "int8" if "int8" in types else "fp8" if "fp8" in types else None
