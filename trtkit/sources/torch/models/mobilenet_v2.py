"""MobileNetV2 (Sandler et al., 2018, arXiv:1801.04381) with torchvision's parameter names."""

import torch
from torch import nn

# Expansion, output channels, blocks, stride of the first block; Table 2 of the paper.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, filter per channel, project; add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [_conv(inputs, hidden, 1)] if expansion > 1 else []
        layers += [_conv(hidden, hidden, 3, stride, hidden), nn.Conv2d(hidden, outputs, 1, bias=False)]
        self.conv = nn.Sequential(*layers, nn.BatchNorm2d(outputs))
        self.has_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, C, H, W]."""
        out: torch.Tensor = self.conv(x)
        return x + out if self.has_residual else out


class MobileNetV2(nn.Module):
    """The classifier at width 1.0; state dict keys are torchvision's."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 32, stride=2)]
        channels = 32
        for expansion, outputs, blocks, stride in _STAGES:
            for index in range(blocks):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, _conv(channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [N, num_classes] of images [N, 3, H, W]."""
        return self.classifier(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]
