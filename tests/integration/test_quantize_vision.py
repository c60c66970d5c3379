"""A small vision model, quantized: stored weights, results, layers left alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support import models
from tests.support.quantized_vision import (
    executed,
    in_single_steps,
    onnx_runtime,
    pictures,
    scales,
    small,
    steps,
    with_steps,
)
from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import JobContext
from trtkit.quantization.vision import repair
from trtkit.quantization.vision.onnx_model import recorded_loss
from trtkit.verification.compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PRODUCTS = ("Conv", "Gemm", "MatMul")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., onnx.ModelProto]:
    """Prepare the small model with a `quantize` section, calibrated on pictures, and return its ONNX model."""
    models.save(small(), tmp_path / "small.onnx")
    np.savez(tmp_path / "pictures.npz", images=pictures(8))

    def run(**asked: Any) -> onnx.ModelProto:
        quantize = {"calibration": {"data": str(tmp_path / "pictures.npz")}, **asked.pop("quantize")}
        source = {"onnx": str(tmp_path / "small.onnx")}
        config = {"name": "small", "source": source, "profiles": [{"batch": [1, 4, 8]}], "quantize": quantize, **asked}
        folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        prepare(PrepareRequest(ModelConfig.model_validate(config), folder), JobContext())
        assert [file.name for file in (folder / "network").iterdir()] == ["model.onnx"]
        return onnx.load(folder / "network/model.onnx")

    return run


def relative(ours: Any, theirs: Any) -> float:
    return compare(ours, theirs).relative_rms_error


def initializers(model: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def stored_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return the type in which each product's weight is stored, by node."""
    types = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer}
    behind = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    products = (node for node in model.graph.node if node.op_type in PRODUCTS)
    return {node.name: types[behind.get(node.input[1], node.input[1])] for node in products}


def step_of(values: np.ndarray[Any, Any], scale: float, method: str) -> np.ndarray[Any, Any]:
    """Return how far the neighbours of quantized values are."""
    if method == "int8":
        return np.full(values.shape, scale)
    exponent = np.floor(np.log2(np.maximum(np.abs(values) / scale, 2.0**-6)))
    return np.asarray(scale * 2.0 ** (exponent - 3))  # e4m3: three bits of fraction, subnormal below 2 ** -6


@pytest.mark.parametrize(
    ("method", "stored"), [("int8", "INT8"), ("fp8", "FLOAT8E4M3FN"), ("int8_wo", "INT8"), ("int4_wo", "INT4")]
)
def test_weights_are_stored_in_few_bits(method: str, stored: str, make: Callable[..., Any]) -> None:
    found = stored_types(make(quantize={"method": method}))
    assert found["head/out"] == stored
    assert found["block/conv1"] == (stored if method in ("int8", "fp8") else "FLOAT"), "too small to pay alone"


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_every_step_of_the_network_equals_onnx_runtimes(method: str, make: Callable[..., Any], tmp_path: Path) -> None:
    model = make(quantize={"method": method})
    inputs = {"images": pictures(3, seed=5)}
    theirs = onnx_runtime(with_steps(model), inputs)
    single = in_single_steps(model)
    models.save(single, tmp_path / "single.onnx")
    ours = executed(tmp_path / "single.onnx", inputs | theirs)
    assert len(steps(model)) >= 4
    for name, scale in scales(model).items():
        apart = np.abs(ours[f"{name}/own"] - theirs[name]) / step_of(theirs[name], scale, method)
        assert apart.max() <= 1.0 + 1e-3, name
        assert (apart > 0.5).mean() < 1e-3, "only values between two steps round otherwise"
    assert relative(ours["logits"], theirs["logits"]) < 1e-6


def test_int8_in_onnx_runtimes_integer_kernels_is_within_a_step_too(make: Callable[..., Any], tmp_path: Path) -> None:
    model = make(quantize={"method": "int8"})
    models.save(model, tmp_path / "whole.onnx")
    inputs = {"images": pictures(3, seed=5)}
    plain = onnx_runtime(model, inputs)["logits"]
    fused = onnx_runtime(model, inputs, optimize=True)["logits"]
    ours = executed(tmp_path / "whole.onnx", inputs)["logits"]
    last = list(scales(model).values())[-1]
    weights = np.abs(next(value for name, value in initializers(small()).items() if name == "w4"))
    bound = last * weights.sum(0).max()  # one step of every input of the last product
    assert np.abs(ours - plain).max() <= bound
    assert np.abs(ours - fused).max() <= bound


@pytest.mark.parametrize(("method", "limit"), [("int8", 0.04), ("fp8", 0.08), ("int8_wo", 0.01), ("int4_wo", 0.15)])
def test_the_loss_against_fp32_is_small_and_not_nothing(
    method: str, limit: float, make: Callable[..., Any], tmp_path: Path
) -> None:
    models.save(make(quantize={"method": method}), tmp_path / "quantized.onnx")
    inputs = {"images": pictures(4, seed=7)}
    error = relative(executed(tmp_path / "quantized.onnx", inputs)["logits"], onnx_runtime(small(), inputs)["logits"])
    assert limit / 40 < error < limit


def test_weights_in_8_bits_alone_are_those_that_modelopt_makes(make: Callable[..., Any]) -> None:
    alone, modelopt = initializers(make(quantize={"method": "int8_wo"})), make(quantize={"method": "int8"})
    codes, factors = alone["w4/int8"], alone["w4/scale"]
    (product,) = (node for node in modelopt.graph.node if node.name == "head/out")
    (behind,) = (node for node in modelopt.graph.node if node.output[0] == product.input[1])
    theirs = initializers(modelopt)
    np.testing.assert_array_equal(codes, theirs[behind.input[0]])
    np.testing.assert_allclose(factors, theirs[behind.input[1]], rtol=1e-6)


@pytest.mark.parametrize(("block", "expected"), [(None, 128), (64, 64), (32, 32)])
def test_weights_in_4_bits_are_those_of_modelopts_fake_quantization(
    block: int | None, expected: int, make: Callable[..., Any]
) -> None:
    import torch
    from modelopt.torch.quantization.config import QuantizerAttributeConfig
    from modelopt.torch.quantization.nn import TensorQuantizer

    made = make(quantize={"method": "int4_wo", "block": block})
    (node,) = (node for node in made.graph.node if node.output[0] == "w4")
    assert {attribute.name: attribute.i for attribute in node.attribute} == {"axis": 0, "block_size": expected}
    got = onnx_runtime(with_output(made, "w4"), {"images": pictures(1)})["w4"]
    attributes = QuantizerAttributeConfig(num_bits=4, block_sizes={-1: expected, "type": "static"})
    weight = torch.from_numpy(initializers(small())["w4"].T.copy())
    want = TensorQuantizer(attributes)(weight).numpy().T
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def with_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model


def test_percentile_scales_are_numpys_of_all_values(make: Callable[..., Any]) -> None:
    model = make(quantize={"method": "int8", "algorithm": "percentile"})
    plain = small()
    plain.graph.output.append(onnx.ValueInfoProto(name="r0"))
    runs = [onnx_runtime(plain, {"images": pictures(8)[index : index + 1]})["r0"] for index in range(8)]
    want = np.percentile(np.abs(np.stack(runs)), 99.99, method="lower") / 127
    (node,) = (node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "r0")
    np.testing.assert_allclose(initializers(model)[node.input[1]], want, rtol=1e-6)


def test_scales_of_least_error_are_so_by_torchs_rounding(make: Callable[..., Any]) -> None:
    import torch

    model = make(quantize={"method": "int8"})
    plain = with_output(small(), "r2")
    values = torch.from_numpy(onnx_runtime(plain, {"images": pictures(8)})["r2"])
    (node,) = (node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "r2")
    found, largest = float(initializers(model)[node.input[1]].reshape(-1)[0]), float(values.max()) / 127

    def error(scale: float) -> float:
        rounded = torch.fake_quantize_per_tensor_affine(values, scale, 0, -128, 127)
        return float((rounded - values).square().mean())

    least = min(error(share * largest) for share in np.linspace(0.3, 1, 141))
    assert found < 0.98 * largest
    assert least <= error(found) < 1.05 * least < error(largest)


def test_biases_make_up_for_moved_means(make: Callable[..., Any]) -> None:
    feeds = {"images": pictures(8)}
    want = onnx_runtime(with_output(small(), "c0"), feeds)["c0"].mean((0, 2, 3))
    model = make(quantize={"method": "int8"})
    got = onnx_runtime(with_output(model, "c0"), feeds)["c0"].mean((0, 2, 3))
    (conv,) = (node for node in model.graph.node if node.name == "stem/conv")
    moved = initializers(model)[conv.input[2]] - initializers(small())["b0"]
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.abs(moved).max() > 1e-4, "there was something to make up for"


@pytest.mark.parametrize(("little", "kept"), [(repair.SMALL_LOSS, 0), (0.0, 2)])
def test_products_that_lose_most_stay_where_the_loss_is_not_small(
    little: float, kept: int, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(repair, "SMALL_LOSS", little)
    inputs, errors = {"images": pictures(4, seed=7)}, {}
    want = onnx_runtime(small(), inputs)["logits"]
    for keep in (0.0, 0.4):
        model = make(quantize={"method": "int8", "keep": keep})
        path = models.save(model, tmp_path / f"{keep}.onnx")
        errors[keep] = relative(executed(path, inputs)["logits"], want)
        stay = [name for name, stored in stored_types(model).items() if stored == "FLOAT"]
        assert len(stay) == (kept if keep else 0)
    assert errors[0.4] < 0.9 * errors[0.0] or not kept


def test_products_stay_until_the_finished_model_loses_little(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of products alone that add up to nothing do not hide what the whole loses."""
    alone = dict.fromkeys(("stem/conv", "block/conv1", "block/conv2", "head/hidden", "head/out"), 1e-12)
    monkeypatch.setattr(repair, "losses", lambda *_: alone)
    assert stored_types(make(quantize={"method": "int8", "keep": 0.8})) == dict.fromkeys(alone, "INT8")
    monkeypatch.setattr(repair, "SMALL_LOSS", 0.0)
    stay = [
        name for name, kind in stored_types(make(quantize={"method": "int8", "keep": 0.8})).items() if kind == "FLOAT"
    ]
    assert len(stay) == 4


def test_the_noted_loss_is_that_of_the_finished_model(make: Callable[..., Any]) -> None:
    model = make(quantize={"method": "int8"})
    errors = [
        relative(onnx_runtime(model, inputs)["logits"], onnx_runtime(small(), inputs)["logits"])
        for inputs in ({"images": picture[None]} for picture in pictures(8))
    ]
    assert recorded_loss(model) == pytest.approx(max(errors), rel=0.01)


def test_max_and_entropy_scales_differ_and_max_covers_all(make: Callable[..., Any]) -> None:
    largest = scales(make(quantize={"method": "int8", "algorithm": "max"}))
    entropy = scales(make(quantize={"method": "int8", "algorithm": "entropy"}))
    np.testing.assert_allclose(largest["images_DequantizeLinear_Output"], np.abs(pictures(8)).max() / 127, rtol=1e-6)
    assert all(entropy[name] <= scale * 1.001 for name, scale in largest.items())
    assert any(entropy[name] < 0.98 * scale for name, scale in largest.items())


def test_samples_limit_what_is_measured(make: Callable[..., Any], tmp_path: Path) -> None:
    data = {"data": str(tmp_path / "pictures.npz"), "samples": 2}
    two = scales(make(quantize={"method": "int8", "algorithm": "max", "calibration": data}))
    spread = pictures(8)[[0, 4]]
    np.testing.assert_allclose(two["images_DequantizeLinear_Output"], np.abs(spread).max() / 127, rtol=1e-6)


@pytest.mark.parametrize("method", ["int8", "int8_wo"])
def test_excluded_nodes_stay(method: str, make: Callable[..., Any]) -> None:
    found = stored_types(make(quantize={"method": method, "exclude": ["head/o*", "op:Conv"]}))
    assert found == {**dict.fromkeys(found, "FLOAT"), "head/hidden": "INT8"}


@pytest.mark.parametrize(("precision", "stored"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
@pytest.mark.parametrize("method", ["int8", "fp8", "int8_wo", "int4_wo"])
def test_the_rest_is_in_the_configs_precision(
    method: str, precision: str, stored: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    model = make(quantize={"method": method}, precision=precision)
    kinds = Counter(onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer)
    assert kinds[stored]
    assert not kinds["FLOAT"]
    models.save(model, tmp_path / "half.onnx")
    inputs = {"images": pictures(4, seed=7)}
    want = onnx_runtime(small(), inputs)["logits"]
    assert relative(executed(tmp_path / "half.onnx", inputs)["logits"], want) < 0.15


def test_fp8_values_of_the_network_are_those_of_ml_dtypes(make: Callable[..., Any]) -> None:
    model = make(quantize={"method": "fp8"})
    (product,) = (node for node in model.graph.node if node.name == "head/out")
    (behind,) = (node for node in model.graph.node if node.output[0] == product.input[1])
    values = initializers(model)
    want = initializers(small())["w4"] / values[behind.input[1]]
    np.testing.assert_array_equal(
        values[behind.input[0]].astype(np.float32), want.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
