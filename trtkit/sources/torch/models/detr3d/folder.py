"""A DETR3D folder: config.json with sizes, and weights under mmdetection3d's names."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trtkit.errors import SourceError
from trtkit.sources.hybrid_source import open_hybrid_folder
from trtkit.sources.torch.models.detr3d.model import Backbone, Detr3d, Detr3dConfig, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


def make_backbone(**sizes: Any) -> Backbone:
    """Return backbone and pyramid without weights; see Detr3dConfig for the sizes."""
    return Backbone(Detr3d(decoder_layers=0, num_queries=1, **sizes))


def from_folder(folder: str, outputs: Sequence[str]) -> nn.Module:
    """Return the model in a folder with its box coder; it takes images and lidar2img and gives the named outputs."""
    source = open_hybrid_folder(Path(folder))
    stated = source.config
    known = {item.name for item in fields(Detr3dConfig)}
    model = Detr3d(**{name: value for name, value in stated.items() if name in known})
    state = {name: torch.from_numpy(source.checkpoint[name].copy()) for name in source.checkpoint}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise SourceError(f"the weights do not fit: {str(error).splitlines()[1].strip()}", folder) from error
    return _WithCoder(model, outputs, stated).eval()


class _WithCoder(nn.Module):
    """The whole model, its answer in the order of `outputs`."""

    def __init__(self, model: Detr3d, outputs: Sequence[str], stated: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self._outputs = model, tuple(outputs)
        self._count = int(stated.get("max_detections", 300))
        self._range = stated.get("post_center_range", [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0])

    def forward(self, images: Tensor, lidar2img: Tensor) -> tuple[Tensor, ...]:
        """images: [B, cameras, 3, H, W]. lidar2img: [B, cameras, 4, 4]."""
        logits, codes = self.model(images, lidar2img)
        outputs = {"logits": logits, "codes": codes, **decode(logits, codes, self._count, self._range)}
        return tuple(outputs[name] for name in self._outputs)
