"""Errors and ranges of every layer, on networks small enough to compute by hand."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import models
from trtkit.backends import load_backend
from trtkit.network.layer_graph import read_layers
from trtkit.network.onnx.parse import parse_onnx
from trtkit.verification import layers
from trtkit.verification.layers import layer_errors, passes
from trtkit.verification.references import onnx_runtime_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.verification.report import LayerError


def square(dtype: str = "FLOAT16") -> onnx.ModelProto:
    """x -> a = x * x -> y = a / 4096, all in one type."""
    number = models.constant("scale", 4096, "float16" if dtype == "FLOAT16" else "float32")
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"], name="square"),
        helper.make_node("Div", ["a", "scale"], ["y"], name="normalize"),
    ]
    return models.model(nodes, [models.tensor("x", 4, dtype=dtype)], [models.tensor("y", 4, dtype=dtype)], [number])


def measured(model: onnx.ModelProto, folder: Path, **inputs: Any) -> dict[str, LayerError]:
    path = models.save(model, folder / "model.onnx")
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, path, "ERROR")
    tensors = partial(onnx_runtime_tensors, path, inputs)
    return {item.tensor: item for item in layer_errors(read_layers(backend, network.definition), inputs, tensors)}


def test_an_overflow_is_seen_where_it_happens(tmp_path: Path) -> None:
    x = np.array([1, -2, 300, 0], np.float16)
    found = measured(square(), tmp_path, x=x)
    assert [found[name].is_finite for name in "ay"] == [False, False]
    assert found["a"].relative_rms_error == math.inf
    assert (found["a"].largest, found["a"].smallest) == (90000, 1)
    assert found["a"].headroom_bits["fp16"] == pytest.approx(math.log2(65504 / 90000), abs=0.01)


def test_a_layer_knows_its_node_type_and_what_it_reads(tmp_path: Path) -> None:
    found = measured(square(), tmp_path, x=np.ones(4, np.float16))
    assert (found["a"].node, found["a"].kind, found["a"].dtype) == ("square", "elementwise", "fp16")
    assert found["a"].reads == ("x", "x")
    assert found["y"].reads[0] == "a"


def test_rounding_is_measured_against_the_widened_network(tmp_path: Path) -> None:
    """2049 lies between two fp16 numbers: 45.27 squared in fp16 is 2048 or 2050 instead."""
    x = np.full(4, 45.27, np.float16)
    found = measured(square(), tmp_path, x=x)
    exact = np.float64(x[0]) ** 2
    want = abs(float(np.float16(exact)) - exact) / exact
    assert found["a"].relative_rms_error == pytest.approx(want, rel=1e-3)
    assert 0 < want < 5e-4


def test_headroom_counts_doublings_in_each_type(tmp_path: Path) -> None:
    found = measured(square("FLOAT"), tmp_path, x=np.array([8, 1, 0, 2], np.float32))["a"]
    assert found.dtype == "fp32"
    assert found.headroom_bits["fp16"] == pytest.approx(10, abs=0.01)  # 65504 / 64 = 1023.5
    assert found.headroom_bits["fp8"] == pytest.approx(math.log2(448 / 64), abs=0.01)
    assert found.headroom_bits["bf16"] == pytest.approx(122, abs=0.02)


def test_a_tensor_of_zeros_has_all_the_headroom_there_is(tmp_path: Path) -> None:
    found = measured(square("FLOAT"), tmp_path, x=np.zeros(4, np.float32))["a"]
    assert found.largest == 0
    assert found.headroom_bits["fp16"] == pytest.approx(math.log2(65504 / 2**-24), abs=0.01)
    assert found.flushed == {"fp16": 0, "bf16": 0, "fp8": 0}


def test_the_flushed_share_counts_nonzero_values_below_half_the_smallest(tmp_path: Path) -> None:
    """x * x is 4e-8 (kept by fp16, whose half of the smallest is 2.98e-8), 1e-8 (flushed), 0 (not counted) and 1."""
    found = measured(square("FLOAT"), tmp_path, x=np.array([2e-4, 1e-4, 0, 1], np.float32))["a"]
    assert found.flushed["fp16"] == pytest.approx(1 / 3, abs=1e-3)
    assert found.flushed["bf16"] == 0
    assert found.flushed["fp8"] == pytest.approx(2 / 3, abs=1e-3)


def test_onnx_runtimes_tensors_stand_beside_ours(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    found = measured(models.classifier(batch=2), tmp_path, images=x)
    compared = [item for item in found.values() if item.reference_error is not None]
    assert {"stem", "active", "logits"} <= {item.tensor for item in compared}
    assert all(item.reference_error < 1e-6 for item in compared if item.reference_error is not None)
    assert all(item.relative_rms_error is not None and item.relative_rms_error < 1e-6 for item in found.values())


def test_a_wrong_tensor_is_told_from_onnx_runtimes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    right, wrong = (models.save(models.classifier(2, seed=n), tmp_path / f"{n}.onnx") for n in (0, 1))
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, wrong, "ERROR")
    tensors = partial(onnx_runtime_tensors, right, {"images": x})
    errors = layer_errors(read_layers(backend, network.definition), {"images": x}, tensors)
    found = {item.tensor: item.reference_error for item in errors}
    assert found["stem"] is not None
    assert found["stem"] > 0.1


def test_tensors_are_held_a_few_at_a_time() -> None:
    groups = list(passes({"a": 60, "b": 30, "c": 20, "d": 500, "e": 10}, 100))
    assert groups == [{"a", "b"}, {"c"}, {"d"}, {"e"}]
    assert list(passes({}, 100)) == []


def test_passes_find_what_one_pass_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([1, -2, 3, 45.27], np.float16)
    together = measured(square(), tmp_path, x=x)
    monkeypatch.setattr(layers, "PASS_BYTES", 1)
    assert measured(square(), tmp_path, x=x) == together
    assert list(together) == ["a", "y"]
