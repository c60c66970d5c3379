"""DETR3D: 3D boxes from surrounding cameras, with the state-dict names of the authors' checkpoints.

Source: arXiv:2110.06922, and the authors' code, https://github.com/WangYueFt/detr3d (R101 configuration).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trtkit.sources.torch.models.detr3d.decoder import DecoderLayer, Space, Views, inverse_sigmoid
from trtkit.sources.torch.models.detr3d.neck import FeaturePyramid
from trtkit.sources.torch.models.detr3d.resnet import ResNet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_CODE_SIZE = 10  # cx, cy, w, l, cz, h, sin, cos, vx, vy; sizes as logarithms


@dataclass(frozen=True, kw_only=True)
class Detr3dConfig:
    """Sizes; the defaults are the paper's R101 model on nuScenes.

    image: height and width of each camera's image, padded. blocks, width, deformable: the ResNet's stages.
    """

    image: tuple[int, int] = (928, 1600)
    cameras: int = 6
    blocks: tuple[int, ...] = (3, 4, 23, 3)
    width: int = 64
    deformable: tuple[bool, ...] = (False, False, True, True)
    hidden_size: int = 256
    num_attention_heads: int = 8
    intermediate_size: int = 512
    decoder_layers: int = 6
    num_queries: int = 900
    num_classes: int = 10
    pc_range: tuple[float, ...] = (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0)

    @property
    def levels(self) -> int:
        """Levels of the feature pyramid: the stages but the first, and one more."""
        return len(self.blocks)

    @property
    def space(self) -> Space:
        """What the decoder looks at."""
        return Space(self.pc_range, self.image, self.cameras, self.levels)


class _Decoder(nn.Module):
    def __init__(self, config: Detr3dConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.num_attention_heads, config.intermediate_size)
        self.layers = nn.ModuleList(DecoderLayer(*sizes, config.space) for _ in range(config.decoder_layers))


class _Transformer(nn.Module):
    def __init__(self, config: Detr3dConfig) -> None:
        super().__init__()
        self.decoder = _Decoder(config)
        self.reference_points = nn.Linear(config.hidden_size, 3)


class Head(nn.Module):
    """Queries, decoder and the branches that turn a query into classes and a box; each layer has its own."""

    def __init__(self, config: Detr3dConfig) -> None:
        super().__init__()
        self._config, size = config, config.hidden_size
        self.query_embedding = nn.Embedding(config.num_queries, 2 * size)
        self.transformer = _Transformer(config)
        layers = range(config.decoder_layers)
        self.cls_branches = nn.ModuleList(_classes(size, config.num_classes) for _ in layers)
        self.reg_branches = nn.ModuleList(_boxes(size) for _ in layers)
        self.code_weights = nn.Parameter(torch.ones(_CODE_SIZE), requires_grad=False)  # of the loss; kept for its name

    def forward(self, levels: Sequence[Tensor], lidar2img: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits [B, Q, classes] and box codes [B, Q, 10] of the last layer; centres in metres."""
        position, x = self.query_embedding.weight.chunk(2, 1)
        batch = lidar2img.shape[0]
        position, x = (item.expand(batch, -1, -1) for item in (position, x))
        reference = self.transformer.reference_points(position).sigmoid()
        codes = reference
        for layer, branch in zip(self.transformer.decoder.layers, self.reg_branches, strict=True):
            x = layer(x, position, reference, Views(levels, lidar2img))
            codes = branch(x)
            centre = torch.cat((codes[..., 0:2], codes[..., 4:5]), -1) + inverse_sigmoid(reference)
            reference = centre.sigmoid()
        return self.cls_branches[-1](x), _in_metres(codes, reference, self._config.pc_range)


class Detr3d(nn.Module):
    """The whole: images [B, cameras, 3, H, W] and lidar2img [B, cameras, 4, 4] to logits and box codes."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        sizes: dict[str, Any] = {name: _frozen(value) for name, value in config.items()}
        self.config = Detr3dConfig(**sizes)
        blocks, width = self.config.blocks, self.config.width
        self.img_backbone = ResNet(blocks, width, self.config.deformable)
        channels = [4 * (width << stage) for stage in range(1, len(blocks))]
        self.img_neck = FeaturePyramid(channels, self.config.hidden_size)
        self.pts_bbox_head = Head(self.config)

    def features(self, images: Tensor) -> list[Tensor]:
        """Return the pyramid's levels [N, C, h, w] of images [N, 3, H, W], all cameras in one batch."""
        levels: list[Tensor] = self.img_neck(self.img_backbone(images)[1:])
        return levels

    def forward(self, images: Tensor, lidar2img: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits [B, Q, classes] and box codes [B, Q, 10]."""
        levels = [level.view(*images.shape[:2], *level.shape[1:]) for level in self.features(images.flatten(0, 1))]
        logits_and_codes: tuple[Tensor, Tensor] = self.pts_bbox_head(levels, lidar2img)
        return logits_and_codes


class Backbone(nn.Module):
    """The part of a Detr3d that goes through ONNX."""

    def __init__(self, model: Detr3d) -> None:
        super().__init__()
        self.img_backbone, self.img_neck = model.img_backbone, model.img_neck

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the pyramid's levels [B, cameras, C, h, w] of images [B, cameras, 3, H, W]."""
        levels = self.img_neck(self.img_backbone(images.flatten(0, 1))[1:])
        return tuple(level.view(-1, images.shape[1], *level.shape[1:]) for level in levels)


def _classes(size: int, classes: int) -> nn.Sequential:
    hidden = [nn.Linear(size, size), nn.LayerNorm(size), nn.ReLU()]
    again = [nn.Linear(size, size), nn.LayerNorm(size), nn.ReLU()]
    return nn.Sequential(*hidden, *again, nn.Linear(size, classes))


def _boxes(size: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, _CODE_SIZE)
    )


def _in_metres(codes: Tensor, centre: Tensor, pc_range: Sequence[float]) -> Tensor:
    """Return box codes with their centres [B, Q, 3], 0 to 1 of the range, in metres."""
    low, high = (codes.new_tensor(pc_range[half]) for half in (slice(0, 3), slice(3, 6)))
    centre = centre * (high - low) + low
    return torch.cat((centre[..., :2], codes[..., 2:4], centre[..., 2:], codes[..., 5:]), -1)


def _frozen(value: Any) -> Any:
    """Return a config's list as a tuple."""
    return tuple(value) if isinstance(value, list) else value
