"""Vision models and hybrids on engines compute the same as on the reference executor."""

from __future__ import annotations

import gc
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx.helper import make_node

from tests.support.hybrids import CASES
from tests.support.hybrids import saved as save_hybrid
from tests.support.models import classifier, crowded_detector, model, save, tensor
from trtkit.builder.build import build_bundle
from trtkit.config.load import config_for_source
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import new_runner
from trtkit.runtime.model import open_model
from trtkit.verification import verifier
from trtkit.verification.verify import VerifySettings, verify_bundle

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tests.simulated_tensorrt import Simulated
    from trtkit.bundle.bundle import Bundle

pytestmark = pytest.mark.usefixtures("one_export")
PROFILES = "profiles=[{batch: {min: 1, opt: 2, max: 4}}, {batch: {min: 5, opt: 6, max: 8}}]"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and their bundles, which tests of the same model share."""
    return tmp_path_factory.mktemp("arrays")


def built(config: ModelConfig, folder: Path, gpu: Simulated) -> Bundle:
    """Return the bundle of a config in `folder`, built by the first test that needs it."""
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]
    bundle = build_bundle(config, folder / digest, new_runner()).bundle
    gpu.plans.add(bundle)
    return bundle


def classify(folder: Path, gpu: Simulated, *overrides: str) -> Bundle:
    return built(config_for_source("onnx", save(classifier(), folder / "classifier.onnx"), overrides), folder, gpu)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("has_cuda_graphs", [False, True])
def test_a_classifier_of_two_profiles(precision: str, has_cuda_graphs: bool, gpu: Simulated, shared: Path) -> None:
    """Batches come in any order, and come back."""
    bundle = classify(shared, gpu, PROFILES, f"precision={precision}")
    engine = open_model(bundle, "tensorrt", has_cuda_graphs=has_cuda_graphs)
    reference, random = open_model(bundle, "reference"), np.random.default_rng(0)
    assert engine.description.endswith("host memory")
    for batch in (2, 7, 2, 1, 5, 7, 4):
        image = random.standard_normal((batch, 3, 16, 16)).astype(np.float32)
        assert np.array_equal(engine(image), reference(image))


def test_the_engine_runs_unless_another_runtime_is_chosen(gpu: Simulated, shared: Path) -> None:
    bundle = classify(shared, gpu)
    assert open_model(bundle).description == open_model(bundle, "tensorrt").description
    assert open_model(bundle, "reference").description.startswith("reference executor")


def test_scalars_and_several_inputs(gpu: Simulated, shared: Path) -> None:
    """A sum without axes, of the larger of two images."""
    images = [tensor(name, "batch", 3, 4) for name in ("a", "b")]
    nodes = [
        make_node("Max", ["a", "b"], ["larger"]),
        make_node("ReduceSum", ["larger"], ["sum"], keepdims=0),
    ]
    onnx = model(nodes, images, [tensor("sum"), tensor("larger", "batch", 3, 4)])
    bundle = built(config_for_source("onnx", save(onnx, shared / "sum.onnx"), []), shared, gpu)
    inputs = {name: np.random.default_rng(seed).random((2, 3, 4), np.float32) for seed, name in enumerate("ab")}
    outputs = open_model(bundle, "tensorrt", has_cuda_graphs=True).run(inputs)
    assert outputs["sum"].shape == ()
    assert outputs["sum"] == pytest.approx(np.maximum(inputs["a"], inputs["b"]).sum(), rel=1e-6)


def test_outputs_stay_when_the_engine_runs_again(gpu: Simulated, shared: Path) -> None:
    engine = open_model(classify(shared, gpu), "tensorrt", has_cuda_graphs=True)
    first = engine(np.ones((2, 3, 16, 16), np.float32))
    kept = first.copy()
    engine(np.zeros((2, 3, 16, 16), np.float32))
    assert np.array_equal(first, kept)


def test_kernels_are_kept_when_an_engine_is_dropped(gpu: Simulated, shared: Path) -> None:
    bundle, compiled = classify(shared, gpu), []
    for _ in range(2):
        model = open_model(bundle, "tensorrt")
        model(np.ones((2, 3, 16, 16), np.float32))
        compiled.append(len(gpu.runtimes[-1].engines[-1].compiled_later))
        del model
        gc.collect()
    assert compiled == [1, 0]


def test_layers_are_timed(gpu: Simulated, shared: Path) -> None:
    bundle = classify(shared, gpu)
    seconds = open_model(bundle, "tensorrt").layer_seconds({"images": np.ones((2, 3, 16, 16), np.float32)})
    reference = open_model(bundle, "reference").layer_seconds({"images": np.ones((2, 3, 16, 16), np.float32)})
    assert seconds.keys() == reference.keys()


@pytest.mark.parametrize("compose", ["fused", "chained"])
@pytest.mark.parametrize("has_cuda_graphs", [False, True])
def test_a_hybrid(compose: str, has_cuda_graphs: bool, gpu: Simulated, shared: Path) -> None:
    case = next(each for each in CASES if each.model_type == "detr")
    save_hybrid(case, shared / "model")
    fields: dict[str, Any] = {"source": {"hf": str(shared / "model")}, "image_size": case.size, "compose": compose}
    bundle = built(ModelConfig.model_validate({"name": "m", "precision": "fp32", **fields}), shared, gpu)
    assert len(bundle.manifest.engines) == (1 if compose == "fused" else len(bundle.manifest.stages))
    engine, reference = open_model(bundle, "tensorrt", has_cuda_graphs=has_cuda_graphs), open_model(bundle, "reference")
    for seed in range(3):
        shape = (1, *bundle.manifest.inputs[0].shape[1:])
        pixels = {"pixel_values": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
        ours, theirs = engine.run(pixels), reference.run(pixels)
        assert list(ours) == list(theirs)
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], rtol=0, atol=1e-5)


def test_verify_compares_the_engine(gpu: Simulated, shared: Path) -> None:
    report = verify_bundle(classify(shared, gpu), VerifySettings(), new_runner())
    assert report.engine is not None
    assert report.engine.passed


def detect(folder: Path, gpu: Simulated, precision: str) -> Bundle:
    boxes = {"layout": "channels-first", "nms": "engine", "min_score": 0.4, "max_iou": 0.3, "max_boxes": 40}
    source = str(save(crowded_detector(), folder / "detector.onnx"))
    fields = {"source": {"onnx": source}, "task": {"kind": "detection", "boxes": boxes}, "precision": precision}
    return built(ModelConfig.model_validate({"name": "m", **fields}), folder, gpu)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_detector_with_nms_in_it(precision: str, gpu: Simulated, shared: Path) -> None:
    bundle = detect(shared, gpu, precision)
    engine, reference = open_model(bundle, "tensorrt"), open_model(bundle, "reference")
    images = {"images": np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)}
    ours, theirs = engine.run(images), reference.run(images)
    assert ours["num_detections"].min() > 5
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)
    report = verify_bundle(bundle, VerifySettings(), new_runner())
    assert report.engine is not None
    assert report.engine.passed
    assert list(report.engine.outputs) == ["detection_boxes", "detection_scores"]


@pytest.mark.parametrize(
    ("name", "change"), [("detection_boxes", 5.0), ("detection_scores", 0.1), ("detection_classes", 1)]
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_other_boxes_of_an_engine_are_seen(
    name: str, change: float, precision: str, gpu: Simulated, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, stages = detect(shared, gpu, precision), verifier.engine_stages

    class Wrong:
        def __init__(self, *args: Any) -> None:
            self.right = stages(*args)

        def run(self, inputs: Any) -> dict[str, torch.Tensor]:
            outputs = dict(self.right.run(inputs))
            outputs[name] = outputs[name] + change
            return outputs

    monkeypatch.setattr(verifier, "engine_stages", Wrong)
    report = verify_bundle(bundle, VerifySettings(), new_runner())
    assert report.engine is not None
    assert (report.engine.passed, report.passed) == (False, False)
