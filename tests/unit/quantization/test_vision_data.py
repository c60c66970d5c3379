from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from trtkit.config.quantize import Calibration, QuantizeOptions
from trtkit.config.schema import ModelConfig
from trtkit.errors import QuantizeError
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.quantization.vision.data import PERCENTILE, OnnxQuantization, Range, read_calibration
from trtkit.sources.digest import digest_data

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = [OnnxTensorSpec("images", "fp32", ("batch", 3, 4, 4))]


def quantization(data: Path, samples: int = 32) -> OnnxQuantization:
    quantize = {"method": "int8", "calibration": {"data": str(data), "samples": samples}}
    preprocess = {"resize": {"exact": [4, 4]}}
    config = {"source": {"onnx": "m.onnx"}, "preprocess": preprocess, "quantize": quantize}
    return OnnxQuantization.of(ModelConfig.model_validate(config))


def save(folder: Path, count: int) -> None:
    for index in range(count):
        Image.new("RGB", (8, 6), (index, 0, 0)).save(folder / f"{index:02}.png")


@pytest.mark.parametrize(("count", "samples", "expected"), [(3, 32, [0, 1, 2]), (10, 4, [0, 2, 5, 7]), (10, 1, [0])])
def test_samples_are_spread_over_a_folder(count: int, samples: int, expected: list[int], tmp_path: Path) -> None:
    save(tmp_path, count)
    found = read_calibration(quantization(tmp_path, samples), IMAGES)
    assert [round(float(sample.inputs["images"][0, 0, 0, 0]) * 255) for sample in found] == expected


def test_arrays_beside_images_in_a_folder_are_left_out(tmp_path: Path) -> None:
    save(tmp_path, 1)
    np.savez(tmp_path / "a.npz", depth=np.zeros(3))
    assert [sample.name for sample in read_calibration(quantization(tmp_path), IMAGES)] == ["00.png"]


def test_arrays_are_cut_into_runs_of_a_fixed_batch(tmp_path: Path) -> None:
    inputs = [OnnxTensorSpec("x", "fp32", (2, 1)), OnnxTensorSpec("ids", "int64", ("n", 1))]
    np.savez(tmp_path / "a.npz", x=np.arange(6, dtype=np.float32)[:, None], ids=np.arange(3)[:, None])
    found = [sample.inputs for sample in read_calibration(quantization(tmp_path / "a.npz"), inputs)]
    assert [run["x"].ravel().tolist() for run in found] == [[0, 1], [2, 3], [4, 5]]
    assert [run["ids"].ravel().tolist() for run in found] == [[0], [1], [2]]


def test_inputs_of_unequal_counts_are_refused(tmp_path: Path) -> None:
    inputs = [OnnxTensorSpec("x", "fp32", ("n", 1)), OnnxTensorSpec("y", "fp32", ("n", 1))]
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 1), np.float32), y=np.zeros((2, 1), np.float32))
    with pytest.raises(QuantizeError) as caught:
        read_calibration(quantization(tmp_path / "a.npz"), inputs)
    assert caught.value.what == "the arrays hold different numbers of samples: 3 of `x`, 2 of `y`"


@pytest.mark.parametrize("sizes", [[7], [1000, 1000], [30000] * 5, [12345, 12345, 12345]])
def test_percentile_is_numpys(sizes: list[int]) -> None:
    generator = np.random.default_rng(0)
    runs = [generator.standard_normal(size).astype(np.float32) for size in sizes]
    found = Range(len(runs))
    for run in runs:
        found.add(run)
    want: Any = np.percentile(np.abs(np.concatenate(runs)), PERCENTILE, method="lower")
    assert found.percentile == want
    assert (found.low, found.high) == (np.concatenate(runs).min(), np.concatenate(runs).max())


def test_digests_are_of_what_calibrates(tmp_path: Path) -> None:
    save(tmp_path, 2)
    options = QuantizeOptions(method="int8", calibration=Calibration(data=str(tmp_path)))
    assert [file.path for file in digest_data(options)] == [str(tmp_path / f"{index:02}.png") for index in (0, 1)]
    assert digest_data(None) == []
