"""Real vision models, quantized: photographs keep their classes, a page its text; steps equal ONNX Runtime's."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from benchmarks import quantize_vision_data as data
from tests.support import models
from tests.support.prepared import from_onnx, prepared
from tests.support.quantized_vision import executed, in_single_steps, onnx_runtime, scales, with_steps
from trtkit.config import load_config
from trtkit.config.schema import ModelConfig
from trtkit.inputs.images import image_input
from trtkit.runtime.page import find_lines
from trtkit.runtime.tasks import ctc_characters, ctc_text, top_classes
from trtkit.verification.compare import compare

if TYPE_CHECKING:
    from pathlib import Path

# ImageNet: 281 tabby, 282 tiger cat and 285 Egyptian cat, 967 espresso, 665 moped and 670 motor scooter.
CLASSES = {"chelsea.png": {281, 282, 285}, "coffee.png": {967}, "motorcycle_left.png": {665, 670}}
LINE = (0, 44, 384, 68)
VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "image_size": 64}


pytestmark = pytest.mark.usefixtures("one_thread")


def worst_steps(path: Path, inputs: dict[str, Any]) -> tuple[float, float]:
    """Return how far, in steps, a quantized value is from ONNX Runtime's at most, and how many differ at all.

    Each step of the network is given what ONNX Runtime made before it.
    """
    model = onnx.load(path)
    theirs = onnx_runtime(with_steps(model), inputs)
    single = models.save(in_single_steps(model), path.with_name("single.onnx"))
    ours = executed(single, inputs | theirs)
    apart = [np.abs(ours[f"{name}/own"] - theirs[name]).ravel() / scale for name, scale in scales(model).items()]
    assert len(apart) > 15
    together = np.concatenate(apart)
    return float(together.max()), float((together > 0.5).mean())


@pytest.mark.slow
def test_a_classifier_in_int8_knows_the_photographs(tmp_path: Path) -> None:
    knows_the_photographs("efficientnet-lite0", ("int8",), tmp_path, samples=6)


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2"])
def test_classifiers_in_8_bits_know_the_photographs(name: str, tmp_path: Path) -> None:
    knows_the_photographs(name, ("int8", "fp8"), tmp_path)


def knows_the_photographs(name: str, methods: tuple[str, ...], tmp_path: Path, samples: int = 32) -> None:
    config = load_config(name)
    assert config.preprocess is not None
    exact = prepared(config, tmp_path / "fp32")
    folder = data.save(data.views(data.CALIBRATION, 3), tmp_path / "images")
    images = {file: image_input(data.photograph(file), config.preprocess) for file in CLASSES}
    together = {"images": np.concatenate(list(images.values()))}
    want = onnx_runtime(onnx.load(exact), together)["logits"]
    for method in methods:
        asked = {"method": method, "calibration": {"data": str(folder), "samples": samples}}
        path = prepared(from_onnx(config, exact), tmp_path / method, asked)
        got = executed(path, together)["logits"]
        for (best,), known in zip(top_classes(got, 1), CLASSES.values(), strict=True):
            assert best in known, method
        assert 0.02 < compare(got, want).relative_rms_error < 0.2
        assert path.stat().st_size < 0.45 * exact.stat().st_size
        if method == "int8":
            apart, differing = worst_steps(path, {"images": images["coffee.png"]})
            assert apart <= 1.001
            assert differing < 1e-4


def test_a_vit_in_8_bits_is_near_and_its_steps_equal_onnx_runtimes(tmp_path: Path) -> None:
    source = {
        "factory": "trtkit.sources.huggingface.vision:from_config",
        "kwargs": {"model_type": "vit", "seed": 0, "num_labels": 32, **VIT},
        "inputs": {"pixel_values": {"shape": ["batch", 3, 64, 64]}},
        "outputs": ["logits"],
    }
    preprocess = {"resize": {"exact": [64, 64]}, "mean": [0.5] * 3, "std": [0.5] * 3}
    asked = {"name": "vit", "source": {"torch": source}, "profiles": [{"batch": [1, 2, 4]}], "preprocess": preprocess}
    config = ModelConfig.model_validate(asked)
    assert config.preprocess is not None
    exact = prepared(config, tmp_path / "fp32")
    folder = data.save(data.views(data.CALIBRATION, 1), tmp_path / "images")
    inputs = {"pixel_values": image_input(data.photograph("coffee.png"), config.preprocess)}
    want = onnx_runtime(onnx.load(exact), inputs)["logits"]
    for method, limit in (("int8", 0.1), ("fp8", 0.15)):
        quantize = {"method": method, "calibration": {"data": str(folder)}}
        path = prepared(from_onnx(config, exact), tmp_path / method, quantize)
        assert 1e-4 < compare(executed(path, inputs)["logits"], want).relative_rms_error < limit
    apart, differing = worst_steps(tmp_path / "int8/network/model.onnx", inputs)
    assert apart <= 1.001
    assert differing < 1e-4
    assert set(softmaxes_read_through_sums(tmp_path / "int8/network/model.onnx")) == {"Mul", "Where"}


def softmaxes_read_through_sums(path: Path) -> list[str]:
    """Return what makes the operands of the sums that Softmax nodes read: scores and masks."""
    graph = onnx.load(path).graph
    made_by = {name: node for node in graph.node for name in node.output}
    sums = [made_by[node.input[0]] for node in graph.node if node.op_type == "Softmax"]
    return [made_by[name].op_type for node in sums for name in node.input]


@pytest.mark.slow
def test_a_line_is_read_in_int8(tmp_path: Path) -> None:
    config = load_config("ppocr-rec")
    assert config.preprocess is not None
    drawn = data.save(data.lines(), tmp_path / "lines")
    asked = {"method": "int8", "keep": 0.0, "calibration": {"data": str(drawn), "samples": 5}}
    path = prepared(config, tmp_path / "int8", asked)
    line = data.photograph("page.png").crop(LINE)
    (text, *_) = ctc_text(executed_line(path, image_input(line, config.preprocess)), ctc_characters(path))
    same = SequenceMatcher(None, text, "Let us first determine markers of the coins and the", autojunk=False)
    assert same.ratio() >= 0.9, text


@pytest.mark.conformance
def test_a_page_is_read_in_8_bits(tmp_path: Path) -> None:
    detector, recognizer = load_config("ppocr-det"), load_config("ppocr-rec")
    assert detector.preprocess is not None
    assert recognizer.preprocess is not None
    drawn = {
        "ppocr-det": data.save(data.pages(), tmp_path / "pages"),
        "ppocr-rec": data.save(data.lines(), tmp_path / "lines"),
    }
    paths = {
        (config.name, method): prepared(config, tmp_path / f"{config.name}-{method}", quantize)
        for config in (detector, recognizer)
        for method, quantize in (
            ("fp32", None),
            ("int8", {"method": "int8", "calibration": {"data": str(drawn[config.name])}}),
        )
    }
    page = data.photograph("page.png")
    x = {"x": image_input(page, detector.preprocess)}
    characters = ctc_characters(paths["ppocr-rec", "int8"])
    texts = {}
    for method in ("fp32", "int8"):
        (probability,) = executed(paths["ppocr-det", method], x).values()
        boxes = find_lines(probability[0, 0], page.size)
        read = [
            executed_line(paths["ppocr-rec", method], image_input(page.crop(box), recognizer.preprocess))
            for box in boxes
        ]
        texts[method] = [ctc_text(each, characters)[0] for each in read]
    assert len(texts["int8"]) == len(texts["fp32"])
    same = SequenceMatcher(None, "\n".join(texts["int8"]), "\n".join(texts["fp32"]), autojunk=False)
    assert same.ratio() >= 0.9, texts


def executed_line(path: Path, line: Any) -> Any:
    return next(iter(executed(path, {"x": line}).values()))
