"""ResNet in Caffe's style with deformable convolutions in its last stages, under mmdetection's parameter names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from trtkit.sources.torch.models.deform_conv import DeformConv2d

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

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
    """Four stages. blocks: bottlenecks of each; width: channels of the first; deformable: which stages are."""

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
        """Return the maps of all stages."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = []
        for stage in range(self._stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
            maps.append(x)
        return maps
