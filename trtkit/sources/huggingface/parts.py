"""Pieces of transformers' models that hybrids export: backbones and what belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.sources.huggingface.folder import load_folder
from trtkit.sources.huggingface.vision import EAGER

if TYPE_CHECKING:
    import torch


def backbone(config: dict[str, Any]) -> torch.nn.Module:
    """Return a backbone of transformers without weights, that takes pixels and returns its feature maps."""
    import transformers

    fields = {name: value for name, value in config.items() if name != "model_type"}
    inner = transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(config["model_type"], **fields))

    class TensorBackbone(type(inner)):  # type: ignore[misc]  # so that weights keep the backbone's own names
        """The backbone with plain tensors as its answer."""

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Return feature maps [B, C, h, w], the largest first."""
            return tuple(super().forward(pixel_values).feature_maps)

    inner.__class__ = TensorBackbone
    module: torch.nn.Module = inner
    return module


def rt_detr_features(folder: str) -> torch.nn.Module:
    """Return all of an RT-DETR that comes before its queries: backbone, hybrid encoder, projections of each level."""
    import torch
    import transformers

    model = load_folder(transformers.AutoModelForObjectDetection, folder, **EAGER).model

    class LevelFeatures(torch.nn.Module):
        """What the decoder attends to, level by level."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.encoder = model.backbone.model, model.encoder
            self.encoder_input_proj, self.decoder_input_proj = model.encoder_input_proj, model.decoder_input_proj

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Return feature maps [B, D, h, w], the largest first."""
            maps = self.backbone(pixel_values).feature_maps
            maps = [project(level) for project, level in zip(self.encoder_input_proj, maps, strict=True)]
            maps = self.encoder(maps).last_hidden_state
            return tuple(project(level) for project, level in zip(self.decoder_input_proj, maps, strict=True))

    return LevelFeatures()
