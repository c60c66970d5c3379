"""Modulated deformable convolution v2: attributes, output shapes, and the ONNX nodes it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import BF16, FP16, FP32
from trtkit.network.custom_op import CustomOp, Port
from trtkit.network.foreign import Fact, Foreign, ForeignNode, Refusal, Replacement
from trtkit.network.lowering.sampling import FORMS

from .lowering import lower

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.graph import Shape

_FLOATS = (FP32, FP16, BF16)


@dataclass(frozen=True)
class DeformConvAttributes:
    """Pairs are (height, width). groups: of the convolution. offset_groups: channels of a group share their offsets."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    padding_end: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    offset_groups: int = 1


def infer(facts: Sequence[Fact | None], attributes: DeformConvAttributes) -> list[Fact]:
    """Return [N, O, Ho, Wo]. Raises Refusal if channels and groups do not fit."""
    x, weight, offset, _, mask = facts
    assert x is not None
    assert weight is not None
    assert offset is not None
    if -1 in weight.shape:
        raise Refusal("input `weight` must have a known shape", "export the model with its weights in it")
    kernel = weight.shape[2] * weight.shape[3]
    _same(x.shape[1], weight.shape[1] * attributes.groups, "channels of `x`", "channels of `weight` * groups")
    _same(offset.shape[1], 2 * attributes.offset_groups * kernel, "channels of `offset`", "2 * offset_groups * kernel")
    if mask is not None:
        _same(mask.shape[1], attributes.offset_groups * kernel, "channels of `mask`", "offset_groups * kernel")
    for groups, name in ((attributes.groups, "groups"), (attributes.offset_groups, "offset_groups")):
        if groups < 1 or (weight.shape[1] * attributes.groups) % groups:
            raise Refusal(f"{weight.shape[1] * attributes.groups} channels in {groups} {name}")
    _same(weight.shape[0] % attributes.groups, 0, "output channels beyond a multiple of groups", "none")
    size = output_size(x.shape, weight.shape, attributes)
    for axis, name in enumerate(("height", "width")):
        _same(offset.shape[2 + axis], size[axis], f"{name} of `offset`", "the output's")
    return [Fact(x.dtype, (x.shape[0], weight.shape[0], *_known(offset.shape[2:], size)))]


def output_size(x: Shape, weight: Shape, attributes: DeformConvAttributes) -> Shape:
    """Return the output's (height, width); -1 if the input's is unknown."""
    sizes = []
    for axis in range(2):
        padded = x[2 + axis] + attributes.padding[axis] + attributes.padding_end[axis]
        reach = attributes.dilation[axis] * (weight[2 + axis] - 1) + 1
        sizes.append((padded - reach) // attributes.stride[axis] + 1 if x[2 + axis] >= 0 else -1)
    return tuple(sizes)


def _known(a: Shape, b: Shape) -> Shape:
    return tuple(max(pair) for pair in zip(a, b, strict=True))


def _same(have: int, want: int, what: str, rule: str) -> None:
    if -1 not in (have, want) and have != want:
        raise Refusal(f"{have} {what}, {want} wanted: {rule}")


def _from_onnx(node: ForeignNode) -> Replacement:
    """Read DeformConv of opset 19 or 22: X, W, offset, B, mask."""
    pads = node.numbers("pads", (0, 0, 0, 0), 4)
    node.ignore("kernel_shape")
    attributes = DeformConvAttributes(
        node.numbers("strides", (1, 1), 2),
        (pads[0], pads[1]),
        (pads[2], pads[3]),
        node.numbers("dilations", (1, 1), 2),
        node.number("group", 1),
        node.number("offset_group", 1),
    )
    node.check_all_read()
    return Replacement(tuple(node.input(index) for index in range(5)), attributes, node.outputs)


def _from_mmcv(node: ForeignNode) -> Replacement:
    """Read mmcv's node: input, offset, mask, weight, bias."""
    attributes = _mmcv_attributes(node)
    node.check_all_read()
    x, offset, mask, weight, bias = (node.input(index) for index in range(5))
    return Replacement((x, weight, offset, bias, mask), attributes, node.outputs)


def _from_mmcv_v1(node: ForeignNode) -> Replacement:
    """Read mmcv's node for version 1, which has no mask and no bias: input, offset, weight."""
    attributes = _mmcv_attributes(node)
    node.only("bias", (0,), 0)
    node.ignore("im2col_step")
    node.check_all_read()
    return Replacement((node.input(0), node.input(2), node.input(1)), attributes, node.outputs)


def _mmcv_attributes(node: ForeignNode) -> DeformConvAttributes:
    padding = node.numbers("padding", (0, 0), 2)
    return DeformConvAttributes(
        node.numbers("stride", (1, 1), 2),
        padding,
        padding,
        node.numbers("dilation", (1, 1), 2),
        node.number("groups", 1),
        node.number("deform_groups", 1),
    )


OP = CustomOp(
    name="DeformConv2d",
    inputs=(
        Port("x", "N C H W", _FLOATS),
        Port("weight", "O C/groups Kh Kw", _FLOATS),
        Port("offset", "N 2*offset_groups*Kh*Kw Ho Wo", _FLOATS),
        Port("bias", "O", _FLOATS, is_optional=True),
        Port("mask", "N offset_groups*Kh*Kw Ho Wo", _FLOATS, is_optional=True),
    ),
    outputs=(Port("y", "N O Ho Wo", _FLOATS),),
    attributes=DeformConvAttributes,
    infer=infer,
    lower=lower,
    forms=FORMS,
    foreign=(
        Foreign("", "DeformConv", _from_onnx),
        Foreign("mmcv", "MMCVModulatedDeformConv2d", _from_mmcv),
        Foreign("mmdeploy", "MMCVModulatedDeformConv2d", _from_mmcv),
        Foreign("mmcv", "MMCVDeformConv2d", _from_mmcv_v1),
    ),
)
