"""Folders of Medusa heads with random weights, under FasterDecoding's names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path


def weights_of(sizes: tuple[int, int], heads: int, layers: int) -> dict[str, torch.Tensor]:
    """Return random weights of heads. sizes: (hidden size, vocabulary size)."""
    (hidden, tokens), weights = sizes, {}
    for head in range(heads):
        for layer in range(layers):
            weights[f"{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden) * hidden**-0.5
            weights[f"{head}.{layer}.linear.bias"] = torch.randn(hidden) * 0.3
        weights[f"{head}.{layers}.weight"] = torch.randn(tokens, hidden) * 1.5 * hidden**-0.5
    return weights


def save_medusa(folder: Path, weights: dict[str, torch.Tensor], **fields: Any) -> Path:
    """Write a folder of heads with these weights and fields."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file(weights, folder / "medusa_lm_head.safetensors")
    return folder


def save_random(folder: Path, sizes: tuple[int, int], heads: int = 3, layers: int = 1) -> Path:
    """Write a folder of heads with random weights."""
    torch.manual_seed(heads)
    fields = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "any"}
    return save_medusa(folder, weights_of(sizes, heads, layers), **fields)
