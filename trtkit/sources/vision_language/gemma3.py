"""Gemma 3's vision tower with its projector."""

from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights


class Gemma3Vision(torch.nn.Module):
    """From pixels [N, C, S, S] to soft tokens [N, P, D]. HF: `Gemma3Model.get_image_features`."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel
        from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

        super().__init__()
        config = open_config(folder)
        config.vision_config.vision_use_head = False  # pools what nobody reads
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="eager")
        self.multi_modal_projector = Gemma3MultiModalProjector(config)
        load_weights(self, Path(folder))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return what replaces each image's tokens."""
        states = self.vision_tower(pixel_values).last_hidden_state
        soft_tokens: torch.Tensor = self.multi_modal_projector(states)
        return soft_tokens
