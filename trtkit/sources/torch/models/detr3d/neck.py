"""Feature pyramid (arXiv:1612.03144) from the second stage on, with one level more by a strided convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class _Conv(nn.Module):
    """A convolution under the name `conv`, as mmcv's ConvModule holds it."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.conv(x)
        return output


class FeaturePyramid(nn.Module):
    """Maps of one width on every level. inputs: channels of the stages that it takes."""

    def __init__(self, inputs: Sequence[int], width: int) -> None:
        super().__init__()
        self.lateral_convs = nn.ModuleList(_Conv(channels, width, 1) for channels in inputs)
        extra = [_Conv(width, width, 3, stride=2)]
        self.fpn_convs = nn.ModuleList([*(_Conv(width, width, 3) for _ in inputs), *extra])

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return one level more than `maps` has."""
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, maps, strict=True)]
        for index in range(len(laterals) - 1, 0, -1):
            above = F.interpolate(laterals[index], size=laterals[index - 1].shape[2:], mode="nearest")
            laterals[index - 1] = laterals[index - 1] + above
        levels = [self.fpn_convs[index](x) for index, x in enumerate(laterals)]
        return [*levels, self.fpn_convs[len(laterals)](F.relu(levels[-1]))]
