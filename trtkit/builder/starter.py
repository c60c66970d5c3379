"""A commented starter config for a model, filled in from its file or folder, with sizes for the user to adjust."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from trtkit.builder.profiles import DEFAULT_BATCH
from trtkit.config.load import config_for_source, file_kind, find_config, shipped_configs, source_kind
from trtkit.config.overrides import model_in
from trtkit.config.schema import ModelConfig
from trtkit.config.yaml_file import read_yaml
from trtkit.dtypes import dtype_of, stated_precision
from trtkit.models.model import VISION
from trtkit.network.onnx.io import graph_inputs
from trtkit.resolve import most_new_tokens, resolve
from trtkit.sources.gguf.config import family_of, hf_config
from trtkit.sources.gguf.file import read_gguf
from trtkit.sources.onnx_file import read_graph
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

    from trtkit.network.onnx.io import OnnxTensorSpec

Data = dict[str, object]

_BATCH = [DEFAULT_BATCH.min, DEFAULT_BATCH.opt, DEFAULT_BATCH.max]
_PIXELS = {"min": 320, "opt": 640, "max": 960, "multiple_of": 32}
_LENGTH = [1, 128, 512]
_SIZES = "Sizes as `[min, opt, max]`; correct them: these are guesses."
_CONTEXT, _PREFILL = 4096, 512
_RESAMPLING = {"2": "bilinear", "3": "bicubic"}  # Pillow's filter numbers
_OPTIONAL = {
    "arrays": """\
# quantize: {method: int8, calibration: {data: FOLDER_OF_IMAGES}}
# preprocess: {resize: {exact: [224, 224]}, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
# task: {kind: classification, labels: labels.txt}
# verify: {inputs: [image.jpg]}
""",
    "tokens": """\
# quantize: {method: int4_awq, kv_cache: fp8}
""",
}


def starter_config(path: str, folder: Path) -> str:
    """Return a commented YAML config for a model. Raises ConfigError, SourceError.

    path: a shipped config, an .onnx or .gguf file, or a folder saved by transformers or TensorRT-LLM.
    folder: where the config will be written; a model inside it gets a relative path.
    """
    model = Path(path).expanduser()
    if path in shipped_configs() or file_kind(model) == "config":
        data, interface, notes = read_yaml(find_config(path)).data, "", {}
    else:
        kind = source_kind(model)
        interface = resolve(config_for_source(kind, model)).interface
        data, notes = {"source": {kind: _relative(model, folder)}}, {"profiles": _SIZES}
        data |= _KINDS[kind](model)
    optional = _OPTIONAL.get(interface, "")
    unset = "".join(line for line in optional.splitlines(keepends=True) if line[2:].partition(":")[0] not in data)
    more = f"\n# More keys, off until you remove the `#`:\n{unset}" if unset else ""
    head = "\n".join(comment(f"Config for {Path(path).name}, written by `trtkit config init`."))
    return f"{head}\n{commented_yaml(data, notes)}{more}"


def _relative(model: Path, folder: Path) -> str:
    """Return a path as it is written in a config in `folder`."""
    model, folder = model.resolve(), folder.resolve()
    return str(model.relative_to(folder) if model.is_relative_to(folder) else model)


def _onnx(path: Path) -> Data:
    """Return the profile for an ONNX file's dynamic dimensions, and the settings that Ultralytics stored in it."""
    config = resolve(config_for_source("onnx", path)).config
    ranges: Data = {}
    for spec in graph_inputs(read_graph(path)):
        ranges |= dict(_ranges(spec))
    if config.profiles:  # the image size of an Ultralytics model
        batch = [(key, sizes) for key, sizes in ranges.items() if sizes is _BATCH]
        ranges = {**dict(batch), **{key: sizes.max for key, sizes in config.profiles[0].items()}}
    sections = config.model_dump(mode="json", include={"preprocess", "task"}, exclude_unset=True, exclude_none=True)
    return {"precision": "fp32", **({"profiles": [ranges]} if ranges else {}), **sections}


def _ranges(spec: OnnxTensorSpec) -> Iterator[tuple[str, object]]:
    """Yield a range for each dynamic dimension, under its name if that is meaningful."""
    is_image = len(spec.shape) == 4 and dtype_of(spec.dtype).is_float
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, str):
            key = dim if dim.isidentifier() else f"{spec.name}.{axis}"
            yield key, _BATCH if axis == 0 else dict(_PIXELS) if is_image and axis >= 2 else _LENGTH


def _gguf(path: Path) -> Data:
    file = read_gguf(path)
    return {"precision": "fp16", **_llm(hf_config(file, family_of(file)))}


def _folder(path: Path) -> Data:
    """Return the settings found in a folder's config.json."""
    fields = json_object(path / "config.json")
    model = resolve(config_for_source(source_kind(path), path))
    if model.interface == "tokens":
        text = fields | _mapping(fields.get("text_config"))
        has_tower = any(stage.name == VISION for stage in model.stages)
        vision: Data = {"vision": {"max_images": 4}} if has_tower else {}
        return {"precision": stated_precision(fields) or "fp16", **_llm(text), **vision}
    return {
        "precision": "fp32",
        "profiles": [{"batch": _BATCH}],
        **_preprocess(json_object(path / "preprocessor_config.json")),
    }


def _llm(fields: Mapping[str, object]) -> Data:
    """Return an engine size that every model supports."""
    limit = fields.get("max_position_embeddings") or fields.get("n_positions") or fields.get("max_target_positions")
    length = min(_CONTEXT, limit) if isinstance(limit, int) and limit > 0 else _CONTEXT
    prefill = min(_PREFILL, length, most_new_tokens(dict(fields)) or _PREFILL)
    sizes = {"max_batch_size": 8, "max_sequence_length": length, "max_prefill_length": prefill}
    return {"llm": sizes}


def _preprocess(processor: Mapping[str, object]) -> Data:
    """Return resizing and normalization of a transformers image processor; empty if its form is not known."""
    size, crop = _mapping(processor.get("size")), _mapping(processor.get("crop_size"))
    section: Data = {}
    if "height" in size and "width" in size:
        section["resize"] = {"exact": [size["height"], size["width"]]}
    elif "shortest_edge" in size and "height" in crop and "width" in crop:
        section["resize"] = {"shortest_edge": size["shortest_edge"]}
        section["crop"] = [crop["height"], crop["width"]]
    if not section or "image_mean" not in processor or "image_std" not in processor:
        return {}
    resampling = _RESAMPLING.get(str(processor.get("resample")), "bilinear")
    return {
        "preprocess": section | {"filter": resampling, "mean": processor["image_mean"], "std": processor["image_std"]}
    }


def _mapping(value: object) -> Data:
    """Return a JSON object's fields; empty if the value is not an object."""
    return value if isinstance(value, dict) else {}


_KINDS = {"onnx": _onnx, "gguf": _gguf, "hf": _folder, "trtllm": _folder}


_WIDTH = 100


def commented_yaml(data: Mapping[str, object], notes: Mapping[str, str]) -> str:
    """Return `data` as YAML with each key under its description.

    notes: additions to a key's description, by dotted path.
    """
    return "\n".join(_lines(data, ModelConfig, "", notes)) + "\n"


def comment(text: str, indent: str = "") -> list[str]:
    """Return a text as comment lines."""
    start = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


def _lines(data: Mapping[str, object], model: type[BaseModel], path: str, notes: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one mapping. path: dotted keys above it, with a dot at the end."""
    indent = "  " * path.count(".")
    for key, value in data.items():
        field = model.model_fields[key]
        yield from comment(" ".join(filter(None, (field.description, notes.get(path + key)))), indent)
        below = model_in(field.annotation)
        if below is not None and isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, below, f"{path}{key}.", notes)
        else:
            yield from (indent + line for line in _dumped({key: value}, is_flat=not isinstance(value, dict | list)))


def _dumped(entry: Mapping[str, object], *, is_flat: bool) -> list[str]:
    """Return one key and its value as YAML, lists and mappings of plain values on one line."""
    style = False if is_flat else None
    text = yaml.safe_dump(dict(entry), sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=style)
    return text.splitlines()
