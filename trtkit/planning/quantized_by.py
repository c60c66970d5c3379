"""How a model is quantized: by a config's `quantize`, by its `quantization_config`, or by a bundle's network."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.builder.decoders import llm_options, makes_checkpoint, open_config_source
from trtkit.config.targets import load_target
from trtkit.errors import PlanError
from trtkit.models.weights import find_weights
from trtkit.network.targets import check_named_types
from trtkit.quantization.llm.choice import choose, linear_layers
from trtkit.quantization_methods import FORMATS, largest_block
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.quantized_model import EXPERTS_PATH, LayerForm, QuantizedModel, form_of
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.quantized.read import declared
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.source import PlannedModel
    from trtkit.quantization.llm.choice import LinearLayer
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]


def quantized_of(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return the quantization of a plan's network, None if there is none.

    Raises ConfigError for a target whose GPUs lack its types, and errors from reading its source.
    """
    if planned.bundle is not None:
        return planned.bundle.network_record().quantization
    quantized = _of_config(planned, spec)
    if quantized is not None:
        quantized = quantized.as_read(llm_options(planned.config).experts)
    target = load_target(planned.config.target)
    if quantized is not None:
        check_named_types(quantized.types, target.compute_capabilities)
    return quantized


def _of_config(planned: PlannedModel, spec: DecoderSpec) -> QuantizedModel | None:
    """Return the quantization of a config's network, by the config or already in the source."""
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
    """Return the model quantized by a config's `quantize`. Raises ConfigError as `choose` does."""
    choice = choose(spec, options)
    layers = {}
    for layer in choice.methods:
        method = choice.of(layer)
        inputs = method.format if method.rounds_inputs else None
        offsets = options.zero_points and method.takes_block
        layers[layer.name] = LayerForm(method.format, method.block(choice.block), inputs, has_offsets=offsets)
    return QuantizedModel(layers, options.kv_cache)


def by_source(spec: DecoderSpec, opened: DecoderSource) -> QuantizedModel | None:
    """Return a checkpoint's quantization, None if there is none. Its quantized layers are read one at a time."""
    if not opened.quantized_by and opened.kv_cache is None:
        return None
    layers = {}
    weights = find_weights(spec, opened.checkpoint, opened.where)
    for path in weights if opened.quantized_by else ():
        if isinstance(matrix := weights[path], QuantizedMatrix):
            layers[path.removesuffix(".weight")] = form_of(matrix)
    return QuantizedModel(layers, None if opened.kv_cache is None else opened.kv_cache.format)


_HEAD = "lm_head"
_ROWS = 0
_MODELOPT = {
    "FP8": LayerForm("fp8", None, "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": LayerForm("fp8", _ROWS, "fp8", is_per_token=True),
    "FP8_PB_WO": LayerForm("fp8", 128),
    "W8A16": LayerForm("int8"),
    "W8A8_SQ_PER_CHANNEL": LayerForm("int8", _ROWS, "int8"),
    "INT8_SQ": LayerForm("int8", _ROWS, "int8"),
    "W4A16": LayerForm("int4", 128),
    "W4A16_AWQ": LayerForm("int4", 128),
    "NVFP4": LayerForm("fp4", FORMATS["fp4"].block, "fp4"),
    "NVFP4_AWQ": LayerForm("fp4", FORMATS["fp4"].block, "fp4"),
    "W4A16_NVFP4": LayerForm("fp4", FORMATS["fp4"].block),
    "MXFP8": LayerForm("mxfp8", FORMATS["mxfp8"].block, "mxfp8"),
}
"""Forms by ModelOpt's `quant_algo`; a custom block size is in `group_size`."""


def by_config(spec: DecoderSpec, section: Json, where: str) -> QuantizedModel:
    """Return the quantization of a model's layers. section: its `quantization_config`.

    What each tool writes there is documented in the modules of `trtkit.sources.quantized` that read its checkpoints.
    Raises PlanError for a form that no network is written with.
    """
    method = str(section.get("quant_method", "modelopt"))
    if method not in _FORMS:
        known = ", ".join(f"`{name}`" for name in _FORMS)
        raise PlanError(f"`quant_method` is `{method}`", where, f"known: {known}")
    form_of = _FORMS[method](section, where)
    layers = {}
    for layer in linear_layers(spec):
        form = None if _is_left(layer, section) else form_of(layer)
        if form is not None:
            _check(layer, form, where)
            layers[layer.name] = form
    return QuantizedModel(layers, _kv_cache(section, where))


def _is_left(layer: LinearLayer, section: Json) -> bool:
    """Whether a layer is not quantized: by name, by part of it, by glob or, after `re:`, by regular expression."""
    left: list[str] = []
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        left += section.get(key) or ()
    return any(_matches(layer.module, name) for name in left)


def _matches(module: str, name: str) -> bool:
    if name.startswith("re:"):
        return bool(re.match(name[3:], module))
    return fnmatch.fnmatchcase(module, name) or f".{name}." in f".{module}."


def _check(layer: LinearLayer, form: LayerForm, where: str) -> None:
    if form.block and layer.size % form.block:
        what = f"a block size of {form.block} does not divide the {layer.size} columns of `{layer.module}`"
        raise PlanError(what, where, "correct `quantization_config`")


def _modelopt(section: Json, where: str) -> Callable[[LinearLayer], LayerForm | None]:
    whole, of_layers = _algorithm(section), section.get("quantized_layers") or {}
    if not of_layers and whole != "NONE":
        _modelopt_form(section, where)

    def form_of(layer: LinearLayer) -> LayerForm | None:
        stated = of_layers.get(layer.module)
        if stated is None and (of_layers or whole == "NONE" or layer.module == _HEAD):
            return None
        return _modelopt_form({**section, **(stated or {})}, where)

    return form_of


def _algorithm(section: Json) -> str:
    return str(section.get("quant_algo")).upper()


def _modelopt_form(section: Json, where: str) -> LayerForm:
    """Return a layer's form. Raises PlanError for unknown algorithms."""
    name = _algorithm(section)
    if name not in _MODELOPT:
        raise PlanError(f"`quant_algo` is `{name}`", where, f"known: {', '.join(_MODELOPT)}")
    form = _MODELOPT[name]
    return replace(form, block=int(section.get("group_size") or form.block or 128)) if form.format == "int4" else form


def _grouped(section: Json, where: str) -> Callable[[LinearLayer], LayerForm | None]:
    """Return the form of AWQ and GPTQ, the same for all linear layers except the head."""
    bits = int(section.get("bits") or section.get("w_bit") or 4)
    group = int(section.get("group_size") or section.get("q_group_size") or 128)
    if bits not in (4, 8):
        raise PlanError(f"TensorRT does not support {bits}-bit weights", where, "use 4 or 8 bits")
    has_offsets = not section["sym"] if "sym" in section else section.get("zero_point", True)

    def form_of(layer: LinearLayer) -> LayerForm | None:
        block = layer.size if group < 0 else group
        form = LayerForm("int4" if bits == 4 else "int8", block, has_offsets=bool(has_offsets))
        return None if layer.module == _HEAD and not section.get("lm_head") else form

    return form_of


def _fp8(section: Json, _where: str) -> Callable[[LinearLayer], LayerForm | None]:
    _, columns = section.get("weight_block_size") or (0, None)
    form = LayerForm("fp8", columns, "fp8" if section.get("activation_scheme") == "static" else None)
    return lambda layer: None if layer.module == _HEAD else form


def _mxfp4(_section: Mapping[str, object], _where: str) -> Callable[[LinearLayer], LayerForm | None]:
    """Return the form of gpt-oss, for experts only."""
    form = LayerForm("mxfp4", FORMATS["mxfp4"].block)
    return lambda layer: form if EXPERTS_PATH in layer.name else None


def _bitnet(section: Mapping[str, object], _where: str) -> Callable[[LinearLayer], LayerForm | None]:
    """Return the form of ternary layers, which remain in int4, or in int8 if no block size divides their columns."""

    def form_of(layer: LinearLayer) -> LayerForm | None:
        if layer.module == _HEAD and not section.get("modules_to_not_convert"):
            return None
        block = largest_block([layer.size])
        return LayerForm("int4" if block else "int8", block or None, "int8", is_per_token=True)

    return form_of


def _compressed(section: Json, where: str) -> Callable[[LinearLayer], LayerForm | None]:
    groups = [dict(group) for group in (section.get("config_groups") or {}).values()]

    def form_of(layer: LinearLayer) -> LayerForm | None:
        return next((_scheme_form(group, layer, where) for group in groups if _targets(group, layer)), None)

    return form_of


def _targets(group: Mapping[str, Any], layer: LinearLayer) -> bool:
    names: Sequence[str] = group.get("targets") or ()
    return bool(group.get("weights")) and any(name == "Linear" or _matches(layer.module, name) for name in names)


def _scheme_form(group: Json, layer: LinearLayer, where: str) -> LayerForm:
    """Return the form of one compressed-tensors group."""
    weights, inputs = group["weights"], group.get("input_activations") or {}
    kind, bits, strategy = weights.get("type", "int"), int(weights.get("num_bits", 8)), weights.get("strategy")
    columns = weights.get("group_size") or (weights.get("block_structure") or (0, 0))[1]
    if (kind, bits) == ("float", 4):
        return LayerForm("fp4", FORMATS["fp4"].block, "fp4" if inputs else None)
    if (kind, bits) not in (("float", 8), ("int", 8), ("int", 4)):
        raise PlanError(f"TensorRT does not support {bits}-bit weights of type `{kind}`", where, "use another format")
    if (kind, strategy, columns) == ("float", "group", FORMATS["mxfp8"].block):
        return LayerForm("mxfp8", columns, "mxfp8" if inputs else None)
    block = None if strategy == "tensor" else int(columns) if columns else _ROWS
    if bits == 4:
        block = block or layer.size
    rounds = bool(inputs) and inputs.get("strategy") not in ("group", "tensor_group")
    name = "fp8" if kind == "float" else "int8" if bits == 8 else "int4"
    has_offsets = not weights.get("symmetric", True)
    return LayerForm(name, block, name if rounds else None, bool(inputs.get("dynamic")) and rounds, has_offsets)  # type: ignore[arg-type]


def _kv_cache(section: Json, where: str) -> Any:
    """Return the caches' type, None if they are not quantized."""
    scheme, named = section.get("kv_cache_scheme"), section.get("kv_cache_quant_algo")
    if not scheme and not named:
        return None
    kind = str(named or scheme).upper()
    if isinstance(scheme, dict) and not named:
        kind = f"{'FP' if scheme.get('type') == 'float' else 'INT'}{scheme.get('num_bits', 8)}"
    if kind not in ("INT8", "FP8"):
        raise PlanError(f"caches in {kind} are not supported", where, "use FP8 or INT8")
    return kind.lower()


_FORMS: dict[str, Callable[[Json, str], Callable[[LinearLayer], LayerForm | None]]] = {
    "modelopt": _modelopt,
    "awq": _grouped,
    "gptq": _grouped,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "bitnet": _bitnet,
    "mxfp4": _mxfp4,
}
