"""`open_model`: a bundle as a function of arrays accepts exactly its engine's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.support import models
from trtkit.errors import ExecutionError, SourceError
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.runtime.model import RuntimeName
    from trtkit.runtime.tasks.answers import Answer


@pytest.fixture
def bundle(workspace: Path, trtkit: Callable[..., object]) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    trtkit("build", "m.yaml", "--quiet")
    return workspace / "bundles" / "m"


def test_a_batch_that_no_profile_covers_is_refused_by_every_runtime(bundle: Path) -> None:
    runtimes: tuple[RuntimeName, ...] = ("reference", "onnxruntime")
    for runtime in runtimes:
        model = open_model(bundle, runtime)
        assert model(np.zeros((4, 3, 16, 16), np.float32)).shape == (4, 5)
        with pytest.raises(SourceError) as error:
            model(np.zeros((5, 3, 16, 16), np.float32))
        assert str(error.value) == (
            "inputs: dimension 0 of `images` is 5; the profile allows 1 to 4\n"
            "fix: give other inputs, or widen the profile and build again"
        )


@pytest.fixture
def photos(workspace: Path) -> list[Path]:
    return [noise(workspace / f"{seed}.png", seed) for seed in range(2)]


def noise(path: Path, seed: int) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    pixels[..., 0] //= 4  # so that swapped channels show
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def predict(workspace: Path, trtkit: Callable[..., object]) -> Callable[[Any], list[Answer]]:
    models.save(models.classifier(), workspace / "m.onnx")
    keys = "preprocess: {resize: {exact: [16, 16]}}\ntask: {kind: classification}\n"
    (workspace / "m.yaml").write_text(f"source: {{onnx: m.onnx}}\nprofiles: [{{batch: [1, 2, 4]}}]\n{keys}")
    trtkit("build", "m.yaml", "--quiet")
    return lambda items: list(open_model(workspace / "bundles" / "m").predict(items))


def test_one_picture_needs_no_list(predict: Callable[[Any], list[Answer]], photos: list[Path]) -> None:
    expected = predict(photos[:1])
    pixels = np.asarray(Image.open(photos[0]))
    for item in (photos[0], str(photos[0]), Image.open(photos[0]), pixels):
        assert predict(item) == expected


def test_arrays_are_rgb_pictures(predict: Callable[[Any], list[Answer]], photos: list[Path]) -> None:
    """BGR frames, as OpenCV reads them, are reversed by a view."""
    expected = predict(photos)
    frames = [np.ascontiguousarray(np.asarray(Image.open(photo))[..., ::-1]) for photo in photos]
    assert predict([frame[..., ::-1] for frame in frames]) == expected
    assert predict(np.stack(frames)[..., ::-1]) == expected
    assert predict(frames) != expected


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((4, 4, 3), np.float32), "float32 [4, 4, 3]"),
        (np.zeros((4, 4), np.uint8), "uint8 [4, 4]"),
        (np.zeros((4, 4, 4), np.uint8), "uint8 [4, 4, 4]"),
        (np.zeros((0, 4, 3), np.uint8), "uint8 [0, 4, 3]"),
    ],
)
def test_arrays_that_are_not_pictures_are_refused(
    array: np.ndarray, what: str, predict: Callable[[Any], list[Answer]]
) -> None:
    with pytest.raises(SourceError) as error:
        predict(array)
    assert str(error.value) == (
        f"predict: expected a picture as a uint8 array [height, width, 3], got {what}\n"
        "fix: give RGB bytes (`frame[..., ::-1]` of OpenCV's BGR); network inputs go to `run`"
    )


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("cat.jpg", "for pictures, use `model.predict('cat.jpg')`"),
        ({"images": np.zeros((1, 3, 16, 16), np.float32)}, "for inputs by name, use `model.run({'images': ...})`"),
        ([[1.0]], "pass a NumPy array, such as `numpy.asarray(x, numpy.float32)`"),
    ],
)
def test_what_is_not_an_array_names_the_method_that_takes_it(bundle: Path, given: Any, fix: str) -> None:
    with pytest.raises(ExecutionError) as error:
        open_model(bundle)(given)
    assert str(error.value) == f"a model takes one array when called, got {type(given).__name__}\nfix: {fix}"


def test_a_model_says_what_it_is(bundle: Path) -> None:
    assert repr(open_model(bundle, "onnxruntime")) == f"Model('{bundle}': m, ONNX Runtime, CPU)"


def test_a_language_model_is_no_function_of_arrays(tiny_bundle: Path) -> None:
    with pytest.raises(ExecutionError, match="language model, which takes prompts"):
        open_model(tiny_bundle)
