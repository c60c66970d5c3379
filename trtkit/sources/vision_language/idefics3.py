"""The vision tower of Idefics3 and SmolVLM with its connector."""

import importlib
from pathlib import Path
from typing import Any

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights

_CLASSES = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}


class Idefics3Vision(torch.nn.Module):
    """From tiles [N, C, S, S] to soft tokens [N, P, D]. HF: `SmolVLMModel.get_image_features`.

    A tile fills its square, so every patch counts and its position is known.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        config = open_config(folder)
        module = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
        name = _CLASSES[config.model_type]
        config.vision_config._attn_implementation = "eager"
        self.vision_model = getattr(module, f"{name}VisionTransformer")._from_config(config.vision_config)
        self.connector = getattr(module, f"{name}Connector")(config)
        load_weights(self, Path(folder))
        positions = _patch_positions(self.vision_model.embeddings, config.vision_config)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return what replaces each tile's tokens."""
        embeddings = self.vision_model.embeddings
        patches = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        x = patches + embeddings.position_embedding(self.positions)
        x = self.vision_model.encoder(inputs_embeds=x, attention_mask=None).last_hidden_state
        soft_tokens: torch.Tensor = self.connector(self.vision_model.post_layernorm(x))
        return soft_tokens


def _patch_positions(embeddings: Any, config: Any) -> torch.Tensor:
    """Return the position of every patch of a full tile [1, P], as transformers' module looks them up."""
    seen: list[torch.Tensor] = []
    hook = embeddings.position_embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    side = config.image_size // config.patch_size
    with torch.inference_mode():
        pixels = torch.zeros(1, config.num_channels, config.image_size, config.image_size)
        embeddings(pixel_values=pixels, patch_attention_mask=torch.ones(1, side, side, dtype=torch.bool))
    hook.remove()
    return seen[0].clone()
