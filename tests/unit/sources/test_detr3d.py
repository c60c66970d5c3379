"""DETR3D in torch: parts against ONNX Runtime and point-by-point arithmetic, names against the authors'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
import torch

from trtkit.sources.torch.models.deform_conv import DeformConv2d, export_table
from trtkit.sources.torch.models.detr3d import Backbone, Detr3d, Space, sample_features

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)
TINY: dict[str, Any] = {
    "image": [64, 96],
    "cameras": 3,
    "blocks": [1, 1, 2, 1],
    "width": 8,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "decoder_layers": 2,
    "num_queries": 20,
}


def exported(module: torch.nn.Module, x: torch.Tensor, path: Path) -> list[np.ndarray]:
    """Return what ONNX Runtime makes of a module."""
    program = torch.onnx.export(
        module, (x,), dynamo=True, opset_version=20, custom_translation_table=export_table(), verbose=False
    )
    assert program is not None
    program.save(str(path))
    session = onnxruntime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def random_offsets(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "conv_offset" in name:
            torch.nn.init.normal_(weight, std=0.2)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(1, 5, 9, 7), (2, 3, 8, 13)])
def test_deformable_convolution_equals_onnx_runtime(shape: tuple[int, ...], stride: int, tmp_path: Path) -> None:
    layer = DeformConv2d(shape[1], 6, stride)
    random_offsets(layer)
    x = torch.randn(shape)
    with torch.inference_mode():
        expected = layer(x).numpy()
    found = exported(layer, x, tmp_path / "layer.onnx")[0]
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-5


def test_backbone_equals_onnx_runtime(tmp_path: Path) -> None:
    model = Detr3d(**TINY).eval()
    random_offsets(model)
    x = torch.randn(1, 3, 3, 64, 96)
    with torch.inference_mode():
        expected = model.features(x.flatten(0, 1))
    assert [tuple(level.shape[2:]) for level in expected] == [(8, 12), (4, 6), (2, 3), (1, 2)]
    for found, level in zip(exported(Backbone(model), x, tmp_path / "backbone.onnx"), expected, strict=True):
        assert np.linalg.norm(found[0] - level.numpy()) / np.linalg.norm(level.numpy()) < 1e-5


def test_points_fetch_what_each_camera_sees_there() -> None:
    torch.manual_seed(0)
    space = Space((-4.0, -4.0, -4.0, 4.0, 4.0, 4.0), (20, 30), cameras=2, levels=2)
    levels = [torch.randn(1, 2, 3, 5, 6), torch.randn(1, 2, 3, 3, 4)]
    reference, lidar2img = torch.rand(1, 40, 3), torch.zeros(1, 2, 4, 4)
    lidar2img[0, 0] = torch.tensor([[20.0, 0, 15, 0], [0, 20, 10, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    lidar2img[0, 1] = torch.tensor([[20.0, 0, -15, 0], [0, 20, -10, 0], [0, 0, -1, 0], [0, 0, 0, 1]])
    features, is_seen = sample_features(levels, reference, lidar2img, space)
    for query, camera in np.ndindex(40, 2):
        point = torch.cat((reference[0, query] * 8 - 4, torch.ones(1)))
        u, v, depth = (lidar2img[0, camera] @ point)[:3].tolist()
        u, v = u / max(depth, 1e-5), v / max(depth, 1e-5)
        assert bool(is_seen[0, query, camera]) == (depth > 1e-5 and 0 < u < 30 and 0 < v < 20)
        if is_seen[0, query, camera]:
            for index, level in enumerate(levels):
                wanted = bilinear(level[0, camera], v / 20, u / 30)
                torch.testing.assert_close(features[0, :, query, camera, index], wanted, atol=1e-5, rtol=1e-5)
    assert 0 < int(is_seen.sum()) < 80


def bilinear(image: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """Return image [C, h, w] at a place given in 0 to 1 of its sides; outside is zero."""
    _, height, width = image.shape
    row, column = y * height - 0.5, x * width - 0.5
    total = torch.zeros(image.shape[0])
    for r in (int(np.floor(row)), int(np.floor(row)) + 1):
        for c in (int(np.floor(column)), int(np.floor(column)) + 1):
            if 0 <= r < height and 0 <= c < width:
                total += image[:, r, c] * (1 - abs(row - r)) * (1 - abs(column - c))
    return total


def test_full_size_has_the_published_layout() -> None:
    with torch.device("meta"):
        model = Detr3d()
    names = model.state_dict().keys()
    assert sum(name.endswith("conv2.conv_offset.weight") for name in names) == 26
    parts = (model.img_backbone, model.img_neck)
    assert sum(weight.numel() for part in parts for weight in part.parameters()) == 47_583_486
    assert model.pts_bbox_head.query_embedding.weight.shape == (900, 512)
    for name in (
        "img_backbone.layer3.22.conv2.conv_offset.bias",
        "img_neck.fpn_convs.3.conv.weight",
        "pts_bbox_head.transformer.decoder.layers.5.attentions.1.position_encoder.4.bias",
        "pts_bbox_head.cls_branches.5.6.weight",
        "pts_bbox_head.reg_branches.0.4.bias",
    ):
        assert name in names
