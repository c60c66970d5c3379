"""Arrays that are mapped from a file give their memory back, and are read again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.quantized.modelopt import modelopt_layers
from trtkit.sources.safetensors_file import read_safetensors, release

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SIZE = 8 << 20


def mapped_bytes() -> int:
    """Return what this process holds of files."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:")) * 1024


def test_a_released_array_takes_no_memory_and_is_what_it_was(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, SIZE, np.uint8)
    save_file({"before": values[:999], "array": values, "after": values[:999]}, tmp_path / "a.safetensors")
    stored = read_safetensors(tmp_path / "a.safetensors")
    array = stored["array"].read()
    assert array.sum() == values.sum()
    held = mapped_bytes()
    release(array)
    assert held - mapped_bytes() > SIZE // 2
    np.testing.assert_array_equal(array, values)
    release(values)  # not mapped: nothing happens
    np.testing.assert_array_equal(stored["array"].read(), values)


def test_codes_that_were_put_into_another_order_are_not_held_twice(tmp_path: Path) -> None:
    packed = np.random.default_rng(0).integers(0, 255, (1024, SIZE // 1024), np.uint8)
    scales = np.ones((2048, SIZE // 1024 // 128), np.float16)
    save_file({"q.weight": packed, "q.weight_scale": scales}, tmp_path / "a.safetensors")
    layers = modelopt_layers(read_safetensors(tmp_path / "a.safetensors"), {"quant_algo": "W4A16_AWQ"})
    held = mapped_bytes()
    matrix = layers["q.weight"].read()
    assert isinstance(matrix, QuantizedMatrix)
    assert matrix.codes.nbytes == SIZE
    assert mapped_bytes() - held < SIZE // 2
