"""Find out what a config builds, once for a command, and refuse keys that mean nothing for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.config.llm import LlmOptions
from trtkit.config.task import Task
from trtkit.errors import ConfigError, Problem, SourceError, TrtkitError
from trtkit.models.hybrids.registry import HYBRIDS, TEXT_ENCODERS, HybridOptions, hybrid_spec
from trtkit.models.hybrids.text_encoder import EMBEDDING
from trtkit.models.model import ENCODER, LLM, SPECULATOR, VISION, Part, Stage, StagedModel
from trtkit.models.registry import (
    ENCODER_DECODERS,
    decoder_spec,
    is_language_model,
    is_of_another_kind,
    known_families,
    unsupported_family,
)
from trtkit.models.vision_language.registry import VISION_LANGUAGE, image_traits
from trtkit.sources.huggingface.preprocessing import folder_preprocess, folder_task
from trtkit.sources.huggingface.text import folder_pooling
from trtkit.sources.huggingface.vision import folder_image_size
from trtkit.sources.hybrid_source import hybrid_config
from trtkit.sources.package_file import hf_folder
from trtkit.sources.package_file import resolve as resolve_file
from trtkit.sources.safetensors_file import json_object
from trtkit.sources.ultralytics import read_export

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.config.schema import ModelConfig
    from trtkit.models.hybrids.spec import HybridSpec
    from trtkit.sources.huggingface.preprocessing import Fields
    from trtkit.sources.ultralytics import UltralyticsExport

# What models are called in errors.
_FILE, _MODULE, _VISION, _HYBRID = "an ONNX file", "a PyTorch module", "a vision model built through ONNX", "a hybrid"
_TEXT = "a text encoder"
_LANGUAGE, _VISION_LANGUAGE = "a decoder-only LLM", "a vision-language model"
_LISTENER, _READER = "a speech recognizer", "an encoder-decoder model"
_ENCODED = {_LISTENER, _READER}
_ARRAYS, _TOKENS = {_FILE, _MODULE, _VISION, _HYBRID, _TEXT}, {_LANGUAGE, _VISION_LANGUAGE, *_ENCODED}

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_USUAL_LENGTH = 512
"""Tokens of the texts that T5 was trained on."""


def resolve(config: ModelConfig) -> StagedModel:
    """Return the model that `config` builds; of a folder only its config.json is read, of a GGUF file its metadata.

    Raises ConfigError for keys that mean nothing for this model, SourceError for a family that is not supported.
    """
    source = config.source
    if source.hf is None:
        if source.gguf is not None or source.trtllm is not None:
            return _checked(_LANGUAGE, _decoder(_within_limits(config, _decoder_fields(config))))
        return _checked(_MODULE, _one_part(config)) if source.onnx is None else _file(config)
    fields = json_object(hf_folder(source) / "config.json")
    model_type = str(fields.get("model_type", ""))
    if not fields:  # whoever reads the folder says what it lacks
        return _one_part(config) if config.llm is None else _decoder(config)
    if is_of_another_kind(model_type):
        raise unsupported_family(model_type, str(hf_folder(source) / "config.json"))
    if config.llm is not None or model_type in known_families() or model_type in VISION_LANGUAGE:
        return _language_model(config, fields, model_type)
    if model_type in TEXT_ENCODERS:
        return _with_text_task(_checked(_TEXT, _hybrid(config)))
    if is_language_model(fields):
        raise unsupported_family(model_type, str(hf_folder(source) / "config.json"))
    is_hybrid = config.route == "hybrid" or (config.route is None and model_type in HYBRIDS)
    return _completed(_checked(_HYBRID, _hybrid(config)) if is_hybrid else _checked(_VISION, _one_part(config)), fields)


def _completed(model: StagedModel, fields: Fields) -> StagedModel:
    """Return a vision model whose config says, where it did not, what the folder says of pictures and outputs."""
    config = model.config
    assert config.source.hf is not None
    changes: dict[str, object] = {}
    size = _picture_size(model, fields)
    if config.preprocess is None and size is not None:
        changes["preprocess"] = folder_preprocess(hf_folder(config.source), size)
    if config.task is None:
        changes["task"] = folder_task(fields)
    changes = {key: value for key, value in changes.items() if value is not None}
    return replace(model, config=config.model_copy(update=changes)) if changes else model


def _file(config: ModelConfig) -> StagedModel:
    """Return the model of an ONNX file, whose config says, where it did not, what Ultralytics wrote into the file."""
    model = _checked(_FILE, _one_part(config))
    export = onnx_export(config)
    if export is None:
        return model
    preprocess, task = config.preprocess or export.preprocess, config.task or export.trtkit_task
    resize = None if preprocess is None else preprocess.resize
    size = None if resize is None else resize.letterbox or resize.exact
    changes = {
        "preprocess": preprocess,
        "task": task,
        "profiles": export.profiles(config.profiles, size or export.size),
    }
    return replace(model, config=config.model_copy(update=changes))


def onnx_export(config: ModelConfig) -> UltralyticsExport | None:
    """Return what Ultralytics wrote into the config's ONNX file; None for other files, and one that is not there."""
    if config.source.onnx is None:
        return None
    try:
        return read_export(resolve_file(config.source.onnx, config.source.requires))
    except SourceError:  # reported where the model is read
        return None


def _with_text_task(model: StagedModel) -> StagedModel:
    """Return a text encoder whose config says, where it did not, what an output per text is."""
    assert model.spec is not None
    kinds = {"logits": "classification", EMBEDDING: "embedding"}
    outputs = list(model.spec.output_ports().values())
    kind = kinds.get(outputs[0].name) if len(outputs) == 1 and len(outputs[0].shape) == 2 else None
    if model.config.task is not None or kind is None:
        return model
    lenient = {"min_agreement": 0.0} if kind == "classification" else {}
    task = Task.model_validate({"kind": kind, **lenient})
    return replace(model, config=model.config.model_copy(update={"task": task}))


def _picture_size(model: StagedModel, fields: Fields) -> tuple[int, int] | None:
    """Return (height, width) of the engine's only input, if it is a picture."""
    if model.spec is None:
        try:
            return model.config.image_size or folder_image_size(hf_folder(model.config.source), fields)
        except SourceError:  # said where the model is exported
            return None
    shape = model.spec.inputs[0].shape if len(model.spec.inputs) == 1 else ()
    height, width = shape[-2:] if len(shape) == 4 else ("", "")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _one_part(config: ModelConfig) -> StagedModel:
    """Return a model that comes through ONNX as a whole."""
    return StagedModel(config, "arrays", (Stage(config.name, (Part("model", "onnx"),), "parser"),))


def _decoder(config: ModelConfig) -> StagedModel:
    """Return a language model, with its draft head if the config names one."""
    if config.llm is None or config.llm.speculator is None:
        return StagedModel(config, "tokens", (_decoder_stage(config.name),))
    speculator = Stage(SPECULATOR, (Part("head", "network"),), "speculator")
    return StagedModel(config, "tokens", (speculator, _decoder_stage(LLM)))


def _decoder_stage(name: str) -> Stage:
    return Stage(name, (Part("decoder", "network"),), "decoder")


def _language_model(config: ModelConfig, fields: Fields, model_type: str) -> StagedModel:
    """Return a language model, with the vision tower that its family has if the config does not switch it off."""
    if model_type in ENCODER_DECODERS:
        kind = _LISTENER if ENCODER_DECODERS[model_type] == "audio" else _READER
        encoder = Stage(ENCODER, (Part("encoder", "onnx"),), "parser")
        _checked(kind, StagedModel(config, "tokens", ()))
        return StagedModel(_with_lengths(config, kind), "tokens", (encoder, _decoder_stage(LLM)))
    config = _within_limits(config, fields)
    if model_type not in VISION_LANGUAGE:
        return _checked(_LANGUAGE, _decoder(config))
    if config.vision is not None and not config.vision.enabled:
        return _checked(_LANGUAGE, _decoder(config), {"vision"})
    tower = Stage(VISION, (Part("tower", "onnx"),), "parser")
    stages = (tower, _decoder_stage(LLM))
    return _checked(_VISION_LANGUAGE, StagedModel(config, "tokens", stages, images=image_traits(fields)))


def _hybrid(config: ModelConfig) -> StagedModel:
    """Return a model of several parts: one stage of all where they are fused, one of each where they are chained."""
    assert config.source.hf is not None
    folder = hf_folder(config.source)
    fields, where = hybrid_config(folder)
    spec = hybrid_spec(fields, where, HybridOptions(config.image_size, folder_pooling(folder)))
    config = _with_values(config, spec)
    parts = tuple(Part(part.name, part.kind) for part in spec.parts)
    if config.compose == "fused":
        return StagedModel(config, "arrays", (Stage(config.name, parts, "parts"),), spec)
    return StagedModel(config, "arrays", tuple(Stage(part.name, (part,), "parts") for part in parts), spec)


def _with_values(config: ModelConfig, spec: HybridSpec) -> ModelConfig:
    """Return a config that says which integers an input takes, where it did not."""
    ranges = {port.name: (0.0, port.values - 1.0) for port in spec.inputs if port.values}
    verify = config.verify.model_copy(update={"ranges": ranges | config.verify.ranges})
    return config.model_copy(update={"verify": verify}) if ranges else config


def _with_lengths(config: ModelConfig, kind: str) -> ModelConfig:
    """Return a config whose slots hold all that the model can say and read, if it does not name their lengths."""
    stated, fields = config.llm or LlmOptions(), json_object(hf_folder(config.source) / "config.json")
    changes: dict[str, int] = {}
    if "max_sequence_length" not in stated.model_fields_set:
        usual = fields.get("max_target_positions", 448) if kind == _LISTENER else fields.get("n_positions")
        length = changes["max_sequence_length"] = int(usual or _USUAL_LENGTH)
        if "max_prefill_length" not in stated.model_fields_set:
            changes["max_prefill_length"] = min(length, 64)
    if kind == _READER and stated.max_source_length is None:
        changes["max_source_length"] = int(fields.get("n_positions") or _USUAL_LENGTH)
    return config.model_copy(update={"llm": stated.model_copy(update=changes)})


def _within_limits(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return the config with slots and steps no longer than the model takes, unless it sets their length."""
    stated, text = config.llm or LlmOptions(), fields.get("text_config") or fields
    known = [text.get(name) for name in _POSITIONS] if isinstance(text, dict) else []
    limit = next((length for length in known if isinstance(length, int) and length > 0), stated.max_sequence_length)
    limit -= limit % (stated.page_size or 1)
    changes: dict[str, int] = {}
    if "max_sequence_length" not in stated.model_fields_set and 0 < limit < stated.max_sequence_length:
        changes["max_sequence_length"] = limit
    if "max_prefill_length" not in stated.model_fields_set:
        length = changes.get("max_sequence_length", stated.max_sequence_length)
        changes["max_prefill_length"] = min(stated.max_prefill_length, length, most_new_tokens(fields) or length)
    if all(getattr(stated, name) == value for name, value in changes.items()):
        return config
    return config.model_copy(update={"llm": stated.model_copy(update=changes)})


def _decoder_fields(config: ModelConfig) -> Fields:
    """Return the fields of a config.json if the config leaves a length open.

    Empty for a file that cannot be read, which whoever opens it reports.
    """
    if config.llm is not None and {"max_sequence_length", "max_prefill_length"} <= config.llm.model_fields_set:
        return {}
    from trtkit.sources.decoder_source import decoder_fields

    try:
        return dict(decoder_fields(config.source))
    except (TrtkitError, ImportError):
        return {}


def most_new_tokens(fields: Fields) -> int | None:
    """Return how many new tokens a language model's network takes at once; None for any number.

    Of a config.json that is refused, whoever opens the model says why.
    """
    text = fields.get("text_config")
    joined = {**fields, **text} if isinstance(text, dict) else fields
    try:
        spec = decoder_spec({name: value for name, value in joined.items() if name != "quantization_config"})
    except TrtkitError:
        return None
    return spec.most_new_tokens


@dataclass(frozen=True)
class _Key:
    """A key of the config that means something for some models only."""

    name: str
    is_set: Callable[[ModelConfig], bool]
    models: set[str]
    fix: str = "remove it"


def _is_paged(config: ModelConfig) -> bool:
    """Whether it asks for caches in pages, whose attention can be a plugin."""
    return config.llm is not None and config.llm.kv == "paged"


_KEYS = (
    _Key("llm", lambda c: c.llm is not None, _TOKENS),
    _Key("parallel", lambda c: c.parallel is not None, _TOKENS - _ENCODED),
    _Key("llm.max_source_length", lambda c: c.llm is not None and c.llm.max_source_length is not None, {_READER}),
    _Key("source.lora", lambda c: c.source.lora is not None, {_LANGUAGE},
         "remove it, or merge the adapter with PEFT (`merge_and_unload`)"),
    _Key("llm.lora", lambda c: c.llm is not None and c.llm.lora is not None, {_LANGUAGE}),
    _Key("llm.speculator", lambda c: c.llm is not None and c.llm.speculator is not None, {_LANGUAGE}),
    _Key("quantize", lambda c: c.quantize is not None, {*_ARRAYS, *_TOKENS} - _ENCODED),
    _Key("quantize.sparsity", lambda c: c.quantize is not None and c.quantize.sparsity is not None, {_LANGUAGE}),
    _Key("build.sparse_weights", lambda c: c.build.sparse_weights, {_LANGUAGE}),
    _Key("vision", lambda c: c.vision is not None, {_VISION_LANGUAGE}),
    _Key("route", lambda c: c.route is not None, {_VISION, _HYBRID}),
    _Key("compose", lambda c: c.compose != "fused", {_HYBRID}),
    _Key("image_size", lambda c: c.image_size is not None, {_VISION, _HYBRID}),
    _Key("keep_fp32", lambda c: bool(c.keep_fp32), _ARRAYS - {_TEXT}),
    _Key("io_types", lambda c: c.io_types != "model", _ARRAYS - {_HYBRID, _TEXT},
         "remove it: trtkit sets these types itself"),
    _Key("fold_constants", lambda c: not c.fold_constants, {*_ARRAYS, _VISION_LANGUAGE} - {_TEXT}),
    _Key("profiles", lambda c: bool(c.profiles), _ARRAYS, "set `llm.max_batch_size`, `llm.max_sequence_length` and "
         "`llm.max_prefill_length`, which an LLM's profiles follow from"),
    _Key("custom_ops.form", lambda c: c.custom_ops.form != "grid_sample", {*_ARRAYS, _VISION_LANGUAGE} - {_TEXT}),
    _Key("custom_ops.plugins", lambda c: c.custom_ops.plugins != "never" and not _is_paged(c),
         {*_ARRAYS, _VISION_LANGUAGE} - {_TEXT}, "remove it; with `llm.kv: paged`, attention can be a plugin"),
    _Key("preprocess", lambda c: c.preprocess is not None, _ARRAYS - {_TEXT}),
    _Key("task", lambda c: c.task is not None, _ARRAYS),
    _Key("task.boxes.nms", lambda c: c.engine_nms is not None, _ARRAYS - {_HYBRID, _TEXT},
         "set it to `host`, or add `route: onnx`"),
)  # fmt: skip


def _checked(kind: str, model: StagedModel, meant: frozenset[str] | set[str] = frozenset()) -> StagedModel:
    """Return `model`; refuse keys that mean nothing for its kind. meant: keys that do all the same."""
    problems = [
        Problem(f"does not apply to {kind}", key.name, key.fix)
        for key in _KEYS
        if kind not in key.models and key.name not in meant and key.is_set(model.config)
    ]
    if problems:
        raise ConfigError(f"the config does not fit {kind}", problems)
    return model
