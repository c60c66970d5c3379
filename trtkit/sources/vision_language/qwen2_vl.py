"""The vision tower of Qwen2-VL and Qwen2.5-VL with its merger."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights

_CLASSES = {
    "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl": "Qwen2_5_VisionTransformerPretrainedModel",
}
# What a pair outside its window adds to a score: exp of it is 0, and 16 bits hold it.
_OUTSIDE = -30000.0


class Qwen2Vision(torch.nn.Module):
    """From the patches of one image to its soft tokens [T, D]; each token merges M neighbouring patches.

    patches: [T, M, C * 2 * p * p], as transformers' image processor cuts them. positions: [T, M, 2], row and column of
    each patch, below `positions` of the constructor. windows: [T], for Qwen2.5-VL: tokens of one number attend to each
    other in most layers. HF computes the same in the order of the windows; here order stays and a mask says it.
    Angles come from a table, so that no rounding of positions reaches them.
    """

    def __init__(self, folder: str, positions: int) -> None:
        super().__init__()
        config = open_config(folder)
        name = config.model_type
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        config.vision_config._attn_implementation = "eager"
        self.visual = getattr(module, _CLASSES[name])._from_config(config.vision_config)
        self._full = set(getattr(config.vision_config, "fullatt_block_indexes", range(config.vision_config.depth)))
        load_weights(self, Path(folder))
        angles = torch.arange(positions)[:, None] * self.visual.rotary_pos_emb.inv_freq
        self.tables = torch.nn.Buffer(torch.cat([angles.cos(), angles.sin()], -1), persistent=False)

    def forward(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what stands in the places of the image's tokens."""
        kernel = self.visual.patch_embed.proj.weight
        x = torch.nn.functional.linear(patches.flatten(0, 1), kernel.flatten(1))
        at = positions.flatten(0, 1)  # [P, 2]
        # [P, 2, H / 2]: by row and column, cosines and sines
        rotations = torch.nn.functional.embedding(at, self.tables)
        turns = torch.stack([part.flatten(1) for part in rotations.chunk(2, -1)])  # [2, P, H / 2]
        mask = None if windows is None else _window_mask(windows, patches.shape[1])
        for index, block in enumerate(self.visual.blocks):
            x = x + _attend(block.attn, block.norm1(x), turns, None if index in self._full else mask)
            x = x + block.mlp(block.norm2(x))
        merged: torch.Tensor = self.visual.merger(x)
        return merged


def _window_mask(windows: torch.Tensor, merged: int) -> torch.Tensor:
    """Return what each pair of patches adds to its score [P, P]."""
    of_patch = windows[:, None].expand(-1, merged).reshape(-1)
    is_same = of_patch[:, None] == of_patch[None, :]
    return torch.where(is_same, 0.0, _OUTSIDE)


def _attend(attention: Any, x: torch.Tensor, turns: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return self-attention of x [P, D] within one image."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3).unbind(0)  # [N, P, H]
    q, k = (_turn(item, turns) for item in (q, k))
    scores = q @ k.transpose(-1, -2) * attention.scaling
    scores = scores if mask is None else scores + mask
    output: torch.Tensor = attention.proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    return output


def _turn(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotate x [N, P, H] by cosines and sines [2, P, H / 2]: element i of the two halves is a pair."""
    first, second = x.chunk(2, -1)
    cos, sin = turns
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
