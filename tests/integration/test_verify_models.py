"""Real models on real images: correct classes, from the network that TensorRT builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.prepared import from_onnx, prepared
from trtkit.backends import load_backend
from trtkit.config import load_config
from trtkit.config.schema import ModelConfig
from trtkit.inputs.samples import Sample, random_sample, read_samples
from trtkit.network.onnx.io import graph_inputs
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, read_layers, to_array
from trtkit.runtime.tasks import top_classes
from trtkit.sources import onnx_file
from trtkit.sources.torch.export import make_module
from trtkit.verification.compare import compare
from trtkit.verification.references import OnnxRuntimeReference

if TYPE_CHECKING:
    from pathlib import Path

# ImageNet: 282 tiger cat and 285 Egyptian cat, 967 espresso, 665 moped.
CLASSES = {"chelsea.png": {282, 285}, "coffee.png": {967}, "motorcycle_left.png": {665}}
VIT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 48}


pytestmark = pytest.mark.usefixtures("one_thread")


class Reader:
    """The reference executor on the network of an ONNX file."""

    def __init__(self, path: Path) -> None:
        backend = load_backend("tensorrt_rtx")
        self._network = parse_onnx(backend, path, "ERROR")
        self._executor = Executor(read_layers(backend, self._network.definition))

    def __call__(self, sample: Sample) -> Any:
        return to_array(next(iter(self._executor.run(sample.inputs).values())))


def photographs(config: ModelConfig, path: Path) -> list[Sample]:
    """Return the images that the shipped config names, preprocessed as it says."""
    return read_samples(config.verify.inputs, config, graph_inputs(onnx_file.read_graph(path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2"])
def test_classifiers_know_the_photographs_in_fp32_and_fp16(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    fp32 = prepared(config, tmp_path / "fp32")
    fp16 = prepared(from_onnx(config, fp32).model_copy(update={"precision": "fp16"}), tmp_path / "fp16")
    exact, half, onnx_runtime = Reader(fp32), Reader(fp16), OnnxRuntimeReference(fp32, "")
    for sample in photographs(config, fp32):
        logits = exact(sample)
        (want,) = onnx_runtime.run(sample.inputs).values()
        assert compare(logits, want).relative_rms_error <= 1e-5
        (best,) = top_classes(logits, 1)
        assert best[0] in CLASSES[sample.name]
        in_fp16 = half(sample)
        assert 1e-6 < compare(in_fp16, want).relative_rms_error < 2e-2  # fp16 indeed, and near enough
        assert top_classes(in_fp16, 1) == top_classes(want, 1)


def test_a_random_vit_matches_torch(tmp_path: Path) -> None:
    source = {
        "factory": "trtkit.sources.huggingface.vision:from_config",
        "kwargs": {"model_type": "vit", "seed": 0, "num_labels": 10, **VIT},
        "inputs": {"pixel_values": {"shape": ["batch", 3, 48, 48]}},
        "outputs": ["logits"],
    }
    config = ModelConfig.model_validate(
        {"name": "vit", "source": {"torch": source}, "profiles": [{"batch": [1, 2, 4]}]}
    )
    path = prepared(config, tmp_path / "vit")
    assert config.source.torch is not None
    module = make_module(config.source.torch)
    reader, inputs = Reader(path), graph_inputs(onnx_file.read_graph(path))
    for batch in (1, 3):
        sample = random_sample("random", {"pixel_values": (batch, 3, 48, 48)}, config, inputs)
        with torch.inference_mode():
            want = module(torch.from_numpy(sample.inputs["pixel_values"])).numpy()
        got = reader(sample)
        assert got.shape == (batch, 10)
        assert compare(got, want).relative_rms_error <= 1e-5
