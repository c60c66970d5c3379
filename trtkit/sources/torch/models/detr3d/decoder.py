"""DETR3D's decoder: queries are 3D points that fetch what every camera sees at their place (arXiv:2110.06922)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NEAREST_DEPTH = 1e-5


@dataclass(frozen=True)
class Space:
    """What a decoder looks at. pc_range: x, y, z from and to, metres. image: height and width, padding included."""

    pc_range: tuple[float, ...]
    image: tuple[int, int]
    cameras: int
    levels: int


def inverse_sigmoid(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return log(x / (1 - x)), both sides of the fraction at least `eps`."""
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
    place = projected[..., :2] / depth.clamp(min=_NEAREST_DEPTH)
    place = (place / place.new_tensor((space.image[1], space.image[0])) - 0.5) * 2
    is_seen = (depth[..., 0] > _NEAREST_DEPTH) & (place > -1).all(-1) & (place < 1).all(-1)  # [B, cameras, Q]
    batch, cameras = place.shape[:2]
    grid = place.flatten(0, 1).unsqueeze(2)  # [B cameras, Q, 1, 2]
    sampled = [F.grid_sample(level.flatten(0, 1), grid, align_corners=False).squeeze(-1) for level in levels]
    stacked = torch.stack(sampled, -1)
    stacked = stacked.view(batch, cameras, *stacked.shape[1:])  # [B, cameras, C, Q, levels]
    return stacked.permute(0, 2, 3, 1, 4), is_seen.permute(0, 2, 1)


@dataclass(frozen=True)
class Views:
    """What queries look at. levels: of the pyramid, [B, cameras, C, h, w] each. lidar2img: [B, cameras, 4, 4]."""

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
    """A weighted sum over cameras and levels of what is seen at each point; weights are sigmoids, not a softmax."""

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
    """Two linear layers with a residual, named as mmcv's FFN names them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Sequential(nn.Linear(size, hidden), nn.ReLU()), nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.layers(x)
        return output


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, a norm behind each."""

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
