"""ResNet-50 (He et al., 2015, arXiv:1512.03385) with torchvision's structure and random weights."""

from __future__ import annotations

import torch
from torch import nn

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Convolution and batch norm."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_conv(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_conv(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_conv(width, outputs, 1),
        )
        has_projection = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_conv(inputs, outputs, 1, stride)) if has_projection else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        out += self.shortcut(x)
        return self.relu(out)  # type: ignore[no-any-return]


def resnet50(num_classes: int = 1000) -> nn.Sequential:
    """Return the module: images [N, 3, H, W] to logits [N, num_classes]."""
    torch.manual_seed(0)
    layers = [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in _STAGES:
        for index in range(blocks):
            layers.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
