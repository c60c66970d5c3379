"""The vision tower of Qwen2-VL and Qwen2.5-VL with its merger."""

import importlib
from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights
from trtkit.sources.vision_language.patches import attend, rotary_table, turns_at

_CLASSES = {
    "qwen2_vl": "Qwen2VisionTransformerPretrainedModel",
    "qwen2_5_vl": "Qwen2_5_VisionTransformerPretrainedModel",
}
# Added to the score of a pair outside its window: its exp is 0, and 16 bits hold it.
_OUTSIDE = -30000.0


class Qwen2Vision(torch.nn.Module):
    """From the patches of one image to its soft tokens [T, D]; each token merges M neighbouring patches.

    patches: [T, M, C * 2 * p * p], as transformers' image processor cuts them. positions: [T, M, 2], row and column of
    each patch, below `positions` of the constructor. windows: [T], for Qwen2.5-VL: tokens of one number attend to each
    other in most layers. HF computes the same in the order of the windows; here order stays and a mask says it.
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
        self.tables = torch.nn.Buffer(rotary_table(self.visual.rotary_pos_emb.inv_freq, positions), persistent=False)

    def forward(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what replaces the image's tokens."""
        kernel = self.visual.patch_embed.proj.weight
        x = torch.nn.functional.linear(patches.flatten(0, 1), kernel.flatten(1))
        turns = turns_at(positions.flatten(0, 1), self.tables)
        mask = None if windows is None else _window_mask(windows, patches.shape[1])
        for index, block in enumerate(self.visual.blocks):
            x = x + attend(block.attn, block.norm1(x), turns, None if index in self._full else mask)
            x = x + block.mlp(block.norm2(x))
        merged: torch.Tensor = self.visual.merger(x)
        return merged


def _window_mask(windows: torch.Tensor, merged: int) -> torch.Tensor:
    """Return the values to add to the scores of each pair of patches [P, P]."""
    of_patch = windows[:, None].expand(-1, merged).reshape(-1)
    is_same = of_patch[:, None] == of_patch[None, :]
    return torch.where(is_same, 0.0, _OUTSIDE)
