"""DETR3D: 3D boxes from surrounding cameras, with the state-dict names of the authors' checkpoints.

Source: arXiv:2110.06922, and the authors' code, https://github.com/WangYueFt/detr3d (R101 configuration).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from trtkit.errors import SourceError
from trtkit.sources.hybrid_source import open_hybrid_folder
from trtkit.sources.torch.models.deform_conv import DeformConv2d

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
        """Levels of the feature pyramid: all stages but the first, and an extra one."""
        return len(self.blocks)

    @property
    def space(self) -> Space:
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
    """Queries, decoder and the branches that map a query to classes and a box; each layer has its own branches."""

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
    """The whole model: images [B, cameras, 3, H, W] and lidar2img [B, cameras, 4, 4] to logits and box codes."""

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
    """The part of a Detr3d that is exported to ONNX."""

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
    """Return box codes with centres [B, Q, 3], given from 0 to 1 of the range, in metres."""
    low, high = (codes.new_tensor(pc_range[half]) for half in (slice(0, 3), slice(3, 6)))
    centre = centre * (high - low) + low
    return torch.cat((centre[..., :2], codes[..., 2:4], centre[..., 2:], codes[..., 5:]), -1)


def _frozen(value: Any) -> Any:
    """Return a config's list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def decode(logits: Tensor, codes: Tensor, count: int, post_center_range: Sequence[float]) -> dict[str, Tensor]:
    """Return `scores`, `labels`, `is_inside` [B, count] and `boxes` [B, count, 9], best first.

    logits: [B, Q, classes]; codes: [B, Q, 10], centres in metres. boxes: cx, cy, cz, w, l, h, yaw, vx, vy.
    is_inside: whether the centre lies in the range; the authors drop the others.
    """
    scores, index = logits.sigmoid().flatten(1).topk(count)
    query, labels = index // logits.shape[-1], index % logits.shape[-1]
    chosen = codes.gather(1, query.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
    centre = torch.cat((chosen[..., 0:2], chosen[..., 4:5]), -1)
    sizes = torch.cat((chosen[..., 2:4], chosen[..., 5:6]), -1).exp()
    yaw = torch.atan2(chosen[..., 6:7], chosen[..., 7:8])
    low, high = (centre.new_tensor(post_center_range[half]) for half in (slice(0, 3), slice(3, 6)))
    is_inside = ((centre >= low) & (centre <= high)).all(-1)
    boxes = torch.cat((centre, sizes, yaw, chosen[..., 8:]), -1)
    return {"scores": scores, "labels": labels.int(), "boxes": boxes, "is_inside": is_inside}


class _Conv(nn.Module):
    """A convolution under the name `conv`, as mmcv's ConvModule holds it."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.conv(x)
        return output


class FeaturePyramid(nn.Module):
    """Maps of the same width on every level. inputs: channels of the input stages."""

    def __init__(self, inputs: Sequence[int], width: int) -> None:
        super().__init__()
        self.lateral_convs = nn.ModuleList(_Conv(channels, width, 1) for channels in inputs)
        extra = [_Conv(width, width, 3, stride=2)]
        self.fpn_convs = nn.ModuleList([*(_Conv(width, width, 3) for _ in inputs), *extra])

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return one more level than `maps`."""
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, maps, strict=True)]
        for index in range(len(laterals) - 1, 0, -1):
            above = F.interpolate(laterals[index], size=laterals[index - 1].shape[2:], mode="nearest")
            laterals[index - 1] = laterals[index - 1] + above
        levels = [self.fpn_convs[index](x) for index, x in enumerate(laterals)]
        return [*levels, self.fpn_convs[len(laterals)](F.relu(levels[-1]))]


_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1. Caffe's style: the first convolution has the stride, so deformable ones have none."""

    def __init__(self, inputs: int, width: int, stride: int, *, is_deformable: bool) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = DeformConv2d(width, width) if is_deformable else nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x: [N, C, H, W]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        output: Tensor = self.relu(y + shortcut)
        return output


class ResNet(nn.Module):
    """Four stages. blocks: bottlenecks per stage; width: channels of the first; deformable: the deformable stages."""

    def __init__(self, blocks: Sequence[int], width: int, deformable: Sequence[bool]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for stage, (count, is_deformable) in enumerate(zip(blocks, deformable, strict=True)):
            layers = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(Bottleneck(inputs, width << stage, stride, is_deformable=is_deformable))
                inputs = (width << stage) * _EXPANSION
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self._stages = len(blocks)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = []
        for stage in range(self._stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
            maps.append(x)
        return maps


_NEAREST_DEPTH = 1e-5


@dataclass(frozen=True)
class Space:
    """The space that a decoder attends to. pc_range: x, y, z from and to, metres. image: padded height and width."""

    pc_range: tuple[float, ...]
    image: tuple[int, int]
    cameras: int
    levels: int


def inverse_sigmoid(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return log(x / (1 - x)), with numerator and denominator at least `eps`."""
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


def sample_features(
    levels: Sequence[Tensor], reference: Tensor, lidar2img: Tensor, space: Space
) -> tuple[Tensor, Tensor]:
    """Fetch each camera's features where the points appear in it.

    levels: [B, cameras, C, h, w] each. reference: [B, Q, 3] in 0 to 1 of the range. lidar2img: [B, cameras, 4, 4].
    Returns features [B, C, Q, cameras, levels] and whether a point is in view [B, Q, cameras].
    """
    low, high = (reference.new_tensor(space.pc_range[half]) for half in (slice(0, 3), slice(3, 6)))
    points = reference * (high - low) + low
    points = torch.cat((points, torch.ones_like(points[..., :1])), -1)  # [B, Q, 4]
    projected = torch.einsum("bnij,bqj->bnqi", lidar2img, points)
    depth = projected[..., 2:3]
    position = projected[..., :2] / depth.clamp(min=_NEAREST_DEPTH)
    position = (position / position.new_tensor((space.image[1], space.image[0])) - 0.5) * 2
    is_seen = (depth[..., 0] > _NEAREST_DEPTH) & (position > -1).all(-1) & (position < 1).all(-1)  # [B, cameras, Q]
    batch, cameras = position.shape[:2]
    grid = position.flatten(0, 1).unsqueeze(2)  # [B cameras, Q, 1, 2]
    sampled = [F.grid_sample(level.flatten(0, 1), grid, align_corners=False).squeeze(-1) for level in levels]
    stacked = torch.stack(sampled, -1)
    stacked = stacked.view(batch, cameras, *stacked.shape[1:])  # [B, cameras, C, Q, levels]
    return stacked.permute(0, 2, 3, 1, 4), is_seen.permute(0, 2, 1)


@dataclass(frozen=True)
class Views:
    """The attention inputs of queries.

    levels: of the pyramid, [B, cameras, C, h, w] each. lidar2img: [B, cameras, 4, 4].
    """

    levels: Sequence[Tensor]
    lidar2img: Tensor


class SelfAttention(nn.Module):
    """Attention among queries; positions are added to queries and keys, not to values."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x, position: [B, Q, C]."""
        at = x + position
        return x + self.attn(at, at, x, need_weights=False)[0]  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """A weighted sum over cameras and levels of the features at each point; weights are sigmoids, not a softmax."""

    def __init__(self, size: int, space: Space) -> None:
        super().__init__()
        self._space = space
        self.attention_weights = nn.Linear(size, space.cameras * space.levels)
        self.output_proj = nn.Linear(size, size)
        self.position_encoder = nn.Sequential(
            nn.Linear(3, size), nn.LayerNorm(size), nn.ReLU(), nn.Linear(size, size), nn.LayerNorm(size), nn.ReLU()
        )

    def forward(self, x: Tensor, position: Tensor, reference: Tensor, views: Views) -> Tensor:
        """x, position: [B, Q, C]. reference: [B, Q, 3]."""
        features, is_seen = sample_features(views.levels, reference, views.lidar2img, self._space)
        weights = self.attention_weights(x + position).sigmoid()
        weights = weights.view(*weights.shape[:2], self._space.cameras, self._space.levels) * is_seen.unsqueeze(-1)
        gathered = (features * weights.unsqueeze(1)).sum((-2, -1)).transpose(1, 2)  # [B, Q, C]
        output: Tensor = self.output_proj(gathered) + x + self.position_encoder(inverse_sigmoid(reference))
        return output


class _FeedForward(nn.Module):
    """Two linear layers with a residual, named as in mmcv's FFN."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Sequential(nn.Linear(size, hidden), nn.ReLU()), nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.layers(x)
        return output


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward, each followed by a norm."""

    def __init__(self, size: int, heads: int, hidden: int, space: Space) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([SelfAttention(size, heads), CrossAttention(size, space)])
        self.ffns = nn.ModuleList([_FeedForward(size, hidden)])
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))

    def forward(self, x: Tensor, position: Tensor, reference: Tensor, views: Views) -> Tensor:
        """As CrossAttention's."""
        x = self.norms[0](self.attentions[0](x, position))
        x = self.norms[1](self.attentions[1](x, position, reference, views))
        output: Tensor = self.norms[2](self.ffns[0](x))
        return output


def make_backbone(**sizes: Any) -> Backbone:
    """Return backbone and pyramid without weights; see Detr3dConfig for the sizes."""
    return Backbone(Detr3d(decoder_layers=0, num_queries=1, **sizes))


def from_folder(folder: str, outputs: Sequence[str]) -> nn.Module:
    """Return the model in a folder with its box coder; it takes images and lidar2img and returns the named outputs."""
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
    """The whole model, with outputs in the order of `outputs`."""

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
