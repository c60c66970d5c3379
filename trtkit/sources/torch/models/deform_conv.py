"""Modulated deformable convolution (DCNv2, arXiv:1811.11168) in torch, exported to ONNX as `DeformConv`."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@torch.library.custom_op("trtkit::deform_conv2d", mutates_args=())
def deform_conv2d(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, step: list[int]) -> Tensor:
    """Convolve x [N, C, H, W] with weight [O, C, k, k], each tap moved by its offset and scaled by its mask.

    offset: [N, 2 k k, Ho, Wo], (y, x) of each tap. mask: [N, k k, Ho, Wo]. step: stride and padding. Values outside the
    image are zero.
    """
    (stride, padding), size = step, weight.shape[-1]
    count, _, height, width = x.shape
    out_height, out_width = offset.shape[2:]
    kernel_y, kernel_x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    base_y = (torch.arange(out_height) * stride - padding).view(1, -1, 1) + kernel_y.reshape(-1, 1, 1)
    base_x = (torch.arange(out_width) * stride - padding).view(1, 1, -1) + kernel_x.reshape(-1, 1, 1)
    moves = offset.view(count, size * size, 2, out_height, out_width)
    y, x_at = moves[:, :, 0] + base_y, moves[:, :, 1] + base_x  # pixels, [N, k k, Ho, Wo]
    grid = torch.stack(((2 * x_at + 1) / width - 1, (2 * y + 1) / height - 1), -1)
    taps = F.grid_sample(x, grid.flatten(1, 2), align_corners=False)  # [N, C, k k Ho, Wo]
    taps = taps.view(count, x.shape[1], size * size, out_height, out_width) * mask.unsqueeze(1)
    return torch.einsum("nckhw,ock->nohw", taps, weight.flatten(2))


@deform_conv2d.register_fake
def _(x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, step: list[int]) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0], *offset.shape[2:])


class DeformConv2d(nn.Module):
    """A DCNv2 layer with one offset group and mmcv's parameter names: a convolution computes offsets and masks."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        nn.init.kaiming_uniform_(self.weight)
        self.conv_offset = nn.Conv2d(inputs, 27, 3, stride, 1)
        nn.init.zeros_(self.conv_offset.weight)
        nn.init.zeros_(self.conv_offset.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, Ho, Wo] for x [N, C, H, W]. `conv_offset` yields 18 offsets, (y, x) by tap, then 9 masks."""
        moved = self.conv_offset(x)
        offset, mask = moved[:, :18], moved[:, 18:].sigmoid()
        output: Tensor = torch.ops.trtkit.deform_conv2d(x, self.weight, offset, mask, [self.stride, 1])
        return output


def export_table() -> dict[Any, Any]:
    """Return the translation for `torch.onnx.export`: ONNX's own DeformConv (opset 19)."""
    from onnxscript import opset19 as op

    def to_onnx(x: Any, weight: Any, offset: Any, mask: Any, step: list[int]) -> Any:
        strides, pads = [step[0]] * 2, [step[1]] * 4
        return op.DeformConv(x, weight, offset, None, mask, kernel_shape=[3, 3], pads=pads, strides=strides)

    return {torch.ops.trtkit.deform_conv2d.default: to_onnx}
