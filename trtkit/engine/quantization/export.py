"""Write a quantized model as ModelOpt's Hugging Face checkpoint, with what its export leaves out."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.dtypes import DType
    from trtkit.quantized import KvQuantization

Json = dict[str, Any]
_SINGLE, _INDEX, _EXTRA = "model.safetensors", "model.safetensors.index.json", "model-scales.safetensors"


@dataclass(frozen=True)
class Extra:
    """Scales that are not ModelOpt's to write. input_scales: by module."""

    kv_cache: KvQuantization | None = None
    input_scales: dict[str, float] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the scales by the names that ModelOpt's checkpoints give them."""
        found = {f"{module}.input_scale": scale for module, scale in self.input_scales.items()}
        if self.kv_cache is not None:
            both = zip(self.kv_cache.key_scales, self.kv_cache.value_scales, strict=True)
            for index, (key, value) in enumerate(both):
                start = f"model.layers.{index}.self_attn"
                found |= {f"{start}.k_proj.k_scale": key, f"{start}.v_proj.v_scale": value}
        return {name: torch.tensor(scale, dtype=torch.float32) for name, scale in found.items()}


def export(model: Any, folder: Path, dtype: DType, extra: Extra) -> None:
    """Write config.json and weights into `folder`; what is not quantized in `dtype`."""
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.opt import ModeloptStateManager

    with contextlib.redirect_stdout(io.StringIO()):
        if ModeloptStateManager.is_converted(model):
            export_hf_checkpoint(model, dtype=getattr(torch, dtype.torch), export_dir=folder)
        else:  # caches only
            model.to(getattr(torch, dtype.torch)).save_pretrained(folder)
    tensors = extra.tensors()
    if tensors:
        _add(folder, tensors)
    if extra.kv_cache is not None:
        _note_caches(folder, extra.kv_cache.format)


def _add(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Add tensors to a checkpoint: a file of their own beside shards, else into the only file."""
    from safetensors.torch import load_file, save_file

    index = folder / _INDEX
    if not index.is_file():
        save_file(load_file(folder / _SINGLE) | tensors, folder / _SINGLE, metadata={"format": "pt"})
        return
    save_file(tensors, folder / _EXTRA, metadata={"format": "pt"})
    fields: Json = json.loads(index.read_text(encoding="utf-8"))
    fields["weight_map"] |= dict.fromkeys(tensors, _EXTRA)
    index.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _note_caches(folder: Path, kind: str) -> None:
    """Say in both of ModelOpt's places which type the caches have."""
    config = folder / "config.json"
    fields: Json = json.loads(config.read_text(encoding="utf-8"))
    fields.setdefault("quantization_config", {"quant_method": "modelopt"})["kv_cache_quant_algo"] = kind.upper()
    config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    beside = folder / "hf_quant_config.json"
    if beside.is_file():
        fields = json.loads(beside.read_text(encoding="utf-8"))
        fields["quantization"]["kv_cache_quant_algo"] = kind.upper()
        beside.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
