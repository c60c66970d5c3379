"""Write a quantized model as a ModelOpt Hugging Face checkpoint, including what ModelOpt's export leaves out."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.errors import QuantizeError
from trtkit.sources.huggingface.stacked_experts import memory_name
from trtkit.sources.quantized.modelopt import paired_rows
from trtkit.sources.safetensors_file import json_object
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.dtypes import DType
    from trtkit.quantization_methods import Format
    from trtkit.quantized_matrix import KvQuantization, QuantizedMatrix

Json = dict[str, Any]
_INDEX = "model.safetensors.index.json"
WEIGHTS_ONLY: dict[Format, str] = {"int8": "W8A16", "int4": "W4A16_AWQ"}
"""ModelOpt's `quant_algo` of weight-only checkpoints that trtkit writes itself, by format."""


# ModelOpt's names for the scales of keys and values.
_SCALES = {"key": "k_proj.k_scale", "value": "v_proj.v_scale", "latent": "latent_scale"}


@dataclass(frozen=True)
class Extra:
    """What ModelOpt does not write. input_scales, matrices: by module; matrices are int4.

    attentions: modules of the layers with `kv_cache` scales, by number.
    fields: of config.json, to replace those of transformers' model.
    """

    kv_cache: KvQuantization | None = None
    attentions: Mapping[int, str] = field(default_factory=dict)
    input_scales: dict[str, float] = field(default_factory=dict)
    matrices: dict[str, QuantizedMatrix] = field(default_factory=dict)
    fields: Json = field(default_factory=dict)

    def scales(self) -> dict[str, torch.Tensor]:
        """Return the scales by their names in ModelOpt checkpoints."""
        values = {f"{module}.input_scale": scale for module, scale in self.input_scales.items()}
        if self.kv_cache is not None:
            for index, scales in self.kv_cache.scales.items():
                values |= {f"{self.attentions[index]}.{_SCALES[cache]}": scale for cache, scale in scales.items()}
        return {name: torch.tensor(scale, dtype=torch.float32) for name, scale in values.items()}

    def int4(self) -> dict[str, torch.Tensor]:
        """Return int4 tensors with codes packed by pairs of rows as in ModelOpt; `weight_offset` is trtkit's own."""
        tensors: dict[str, Any] = {}
        for module, matrix in self.matrices.items():
            tensors[f"{module}.weight"] = paired_rows(matrix.codes)
            tensors[f"{module}.weight_scale"] = matrix.scales
            if matrix.offsets is not None:
                tensors[f"{module}.weight_offset"] = matrix.offsets
            if matrix.input_factors is not None:
                tensors[f"{module}.pre_quant_scale"] = matrix.input_factors
        return {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}


def export(model: Any, folder: Path, dtype: DType, extra: Extra) -> None:
    """Write config.json and weights into `folder`; unquantized weights in `dtype`."""
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.opt import ModeloptStateManager

    with contextlib.redirect_stdout(io.StringIO()):
        if ModeloptStateManager.is_converted(model):
            export_hf_checkpoint(model, dtype=getattr(torch, dtype.torch), export_dir=folder)
        else:
            model.to(getattr(torch, dtype.torch)).save_pretrained(folder)
    tensors = extra.scales() | extra.int4()
    if tensors:
        _replace(folder, tensors)
    _note(folder, extra)


def rename(folder: Path, modules: Mapping[str, str]) -> None:
    """Rename the tensors of some modules of a checkpoint. modules: new names by those in its files."""
    from safetensors.torch import load_file, save_file

    def new(name: str) -> str:
        module, _, role = name.rpartition(".")
        return f"{modules[module]}.{role}" if module in modules else name

    if not modules:
        return
    file_names: dict[str, str] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors = {new(name): tensor for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
        file_names |= dict.fromkeys(tensors, file.name)
    _index(folder, file_names)


def check_quantized(folder: Path, modules: Sequence[str]) -> None:
    """Raise QuantizeError if a checkpoint holds any of these layers unquantized."""
    model_type = str(json_object(folder / "config.json").get("model_type", ""))
    names = {memory_name(name, model_type) for name in _names(sorted(folder.glob("model*.safetensors")))}
    left = [module for module in modules if f"{module}.weight_scale" not in names]
    if left:
        fix = "exclude them: `quantize.exclude`, or give them int4_wo"
        raise QuantizeError(f"ModelOpt did not quantize {len(left)} layers", ", ".join(left[:4]), fix)


def _replace(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace tensors of a checkpoint by name; new ones are added to its first file."""
    from safetensors.torch import load_file, save_file

    files = sorted(folder.glob("model*.safetensors"))
    new = tensors.keys() - _names(files)
    file_names: dict[str, str] = {}
    for file in files:
        held = load_file(file)
        held |= {name: tensors[name] for name in tensors if name in held or name in new}
        new = set()
        save_file(held, file, metadata={"format": "pt"})
        file_names |= dict.fromkeys(held, file.name)
    _index(folder, file_names)


def _index(folder: Path, file_names: dict[str, str]) -> None:
    """Update a checkpoint's index, if it has one, with the file of each tensor."""
    index = folder / _INDEX
    if index.is_file():
        fields: Json = json.loads(index.read_text(encoding="utf-8"))
        fields["weight_map"] = file_names
        index.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _names(files: Sequence[Path]) -> set[str]:
    """Return the names of all tensors in safetensors files."""
    from safetensors import safe_open

    names: set[str] = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            names.update(opened.keys())
    return names


def _note(folder: Path, extra: Extra) -> None:
    """Record the quantization in config.json and hf_quant_config.json where ModelOpt did not."""
    config, beside = folder / "config.json", folder / "hf_quant_config.json"
    fields: Json = json.loads(config.read_text(encoding="utf-8"))
    if extra.fields:
        fields = {**{key: value for key, value in fields.items() if not key.startswith("rope_")}, **extra.fields}
    section = fields.setdefault("quantization_config", {"quant_method": "modelopt", "quant_algo": None})
    if extra.matrices:
        mixed = section.get("quant_algo") is not None
        section["quant_algo"] = "MIXED_PRECISION" if mixed else WEIGHTS_ONLY["int4"]
        section["group_size"] = next(iter(extra.matrices.values())).block
    if extra.kv_cache is not None:
        section["kv_cache_quant_algo"] = extra.kv_cache.format.upper()
    config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    quantization = {key: value for key, value in section.items() if key not in ("quant_method", "producer")}
    record = {"producer": {"name": "trtkit", "version": __version__}, "quantization": quantization}
    if beside.is_file():
        written: Json = json.loads(beside.read_text(encoding="utf-8"))
        record = {**written, "quantization": {**written["quantization"], **quantization}}
    beside.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
