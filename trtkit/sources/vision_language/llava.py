"""LLaVA's vision tower with its projector."""

from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights


class LlavaVision(torch.nn.Module):
    """From pixels [N, C, H, W] to soft tokens [N, P, D]. HF: `LlavaModel.get_image_features`."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel
        from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

        super().__init__()
        config = open_config(folder)
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="eager")
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        layers = config.vision_feature_layer
        self._layers = [layers] if isinstance(layers, int) else list(layers)
        self._first = 1 if config.vision_feature_select_strategy == "default" else 0
        load_weights(self, Path(folder))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return what replaces each image's tokens."""
        states = self.vision_tower(pixel_values, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer][:, self._first :] for layer in self._layers], -1)
        soft_tokens: torch.Tensor = self.multi_modal_projector(features)
        return soft_tokens
