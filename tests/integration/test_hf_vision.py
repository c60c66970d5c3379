"""transformers' vision models by task: each network computes what transformers does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.prepared import prepared
from trtkit.backends import load_backend
from trtkit.config.schema import ModelConfig
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, read_layers, to_array
from trtkit.verification.compare import compare

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 32}


def swin() -> Any:
    """Windows of 4 x 4 that move by 2, and attention with a mask where they wrap around."""
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2]}
    return transformers.SwinForImageClassification(transformers.SwinConfig(**sizes, window_size=4, num_labels=5))


def segformer() -> Any:
    sizes = {"depths": [1, 1], "hidden_sizes": [8, 16], "decoder_hidden_size": 16, "num_labels": 5}
    stages = {"num_encoder_blocks": 2, "num_attention_heads": [1, 2], "sr_ratios": [4, 1]}
    config = transformers.SegformerConfig(**sizes, **stages, image_size=32)
    return transformers.SegformerForSemanticSegmentation(config)


def depth() -> Any:
    necks = {"backbone_out_indices": [0, 1], "neck_hidden_sizes": [8, 16], "fusion_hidden_size": 8}
    config = transformers.DPTConfig(**SMALL, **necks, patch_size=8, reassemble_factors=[2, 1], neck_ignore_stages=[])
    return transformers.DPTForDepthEstimation(config)


MODELS = {"Swin": swin, "SegFormer": segformer, "DPT": depth}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_head_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.save_pretrained(tmp_path / "model")
    source = {"source": {"hf": str(tmp_path / "model")}, "image_size": [32, 32]}
    config = ModelConfig.model_validate({"name": "m", **source, "profiles": [{"batch": [1, 2, 4]}]})
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, prepared(config, tmp_path / "network"), "ERROR")
    pixels = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    found = Executor(read_layers(backend, network.definition)).run({"pixel_values": pixels})
    with torch.inference_mode():
        answer = model(torch.from_numpy(pixels))
    assert len(found) == 1
    for output, value in found.items():
        assert compare(to_array(value), answer[output].numpy()).relative_rms_error < 1e-5
