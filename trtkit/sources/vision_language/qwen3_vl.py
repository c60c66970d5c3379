"""The vision tower of Qwen3-VL and Qwen3.5 with its mergers."""

import importlib
from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights
from trtkit.sources.vision_language.patches import attend, rotary_table, turns_at

_CLASSES = {
    "qwen3_5": "Qwen3_5VisionModel",
    "qwen3_5_moe": "Qwen3_5MoeVisionModel",
    "qwen3_vl": "Qwen3VLVisionModel",
    "qwen3_vl_moe": "Qwen3VLMoeVisionModel",
}


class Qwen3Vision(torch.nn.Module):
    """From the patches of one image to its soft tokens [T, (1 + L) * D]: D of the tower, and D of L inner layers.

    patches: [T, M, C * 2 * p * p], as transformers' image processor cuts them. positions: [T, M, 2], row and column of
    each patch, below `positions` of the constructor. taps, tap_weights: [T, M, 4], the learned positions around each
    patch, and what each counts. HF: `Qwen3VLVisionModel`.
    """

    def __init__(self, folder: str, positions: int) -> None:
        super().__init__()
        config = open_config(folder)
        name = config.model_type
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        config.vision_config._attn_implementation = "eager"
        self.visual = getattr(module, _CLASSES[name])._from_config(config.vision_config)
        load_weights(self, Path(folder))
        self._inner = list(getattr(config.vision_config, "deepstack_visual_indexes", ()))
        self.tables = torch.nn.Buffer(rotary_table(self.visual.rotary_pos_emb.inv_freq, positions), persistent=False)

    def forward(
        self, patches: torch.Tensor, positions: torch.Tensor, taps: torch.Tensor, tap_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return what replaces the image's tokens."""
        embed = self.visual.patch_embed.proj
        x = torch.nn.functional.linear(patches.flatten(0, 1), embed.weight.flatten(1), embed.bias)
        learned = torch.nn.functional.embedding(taps.flatten(0, 1), self.visual.pos_embed.weight)  # [P, 4, D]
        x = x + (learned * tap_weights.flatten(0, 1).unsqueeze(-1)).sum(1)
        turns = turns_at(positions.flatten(0, 1), self.tables)
        features = []
        for index, block in enumerate(self.visual.blocks):
            x = x + attend(block.attn, block.norm1(x), turns)
            x = x + block.mlp(block.norm2(x))
            if index in self._inner:
                features.append(self.visual.deepstack_merger_list[self._inner.index(index)](x))
        return torch.cat([self.visual.merger(x), *features], -1)
