"""InternVL's vision tower with its projector."""

from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights


class InternVlVision(torch.nn.Module):
    """From crops [N, C, H, W] to soft tokens [N, P, D]. HF: `InternVLModel.get_image_features`."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel
        from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

        super().__init__()
        config = open_config(folder)
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="eager")
        self.multi_modal_projector = InternVLMultiModalProjector(config)
        self._layer, self._step = config.vision_feature_layer, int(1 / config.downsample_ratio)
        height, patch = config.vision_config.image_size[0], config.vision_config.patch_size[0]
        self._side = height // patch
        load_weights(self, Path(folder))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return what replaces each crop's tokens."""
        outputs = self.vision_tower(pixel_values, output_hidden_states=self._layer != -1)
        states = outputs.last_hidden_state if self._layer == -1 else outputs.hidden_states[self._layer]
        side, step, size = self._side, self._step, states.shape[-1]
        # Squares of step x step patches become one token: rows of a square last, as `pixel_shuffle` lays them out.
        squares = states[:, 1:].reshape(-1, side // step, step, side // step, step, size).permute(0, 1, 3, 2, 4, 5)
        soft_tokens: torch.Tensor = self.multi_modal_projector(squares.reshape(-1, (side // step) ** 2, step**2 * size))
        return soft_tokens
