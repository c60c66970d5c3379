"""Layers of AutoAWQ, AutoGPTQ and GPTQModel: to the bit what these libraries dequantize (golden/quantized/make.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from trtkit.errors import TrtkitError
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.read import read_quantized

GOLDEN = Path(__file__).parents[3] / "golden" / "quantized"
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": AWQ,
    "gptq_4bit": GPTQ,
    "gptq_4bit_asymmetric": GPTQ | {"sym": False},
    "gptq_4bit_act_order": GPTQ | {"desc_act": True},
    "gptq_4bit_one_group": GPTQ | {"group_size": -1},
    "gptq_8bit": GPTQ | {"bits": 8},
    "gptq_8bit_act_order": GPTQ | {"bits": 8, "desc_act": True},
    "gptq_v2_4bit": GPTQ | {"checkpoint_format": "gptq_v2"},
    "gptq_v2_8bit": GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"},
}
Arrays = dict[str, np.ndarray[Any, Any]]


def golden(name: str) -> tuple[Arrays, np.ndarray[Any, Any]]:
    """Return a layer's tensors, and its weight [out, in] as its library dequantizes it."""
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    return tensors, tensors.pop("dequantized").T


def read(tensors: Arrays, asked: dict[str, Any], folder: Path = Path("model")) -> QuantizedMatrix:
    stored = {f"a.{name}": StoredArray(array.shape, lambda array=array: array) for name, array in tensors.items()}
    found = read_quantized(folder, {"quantization_config": asked}, stored)
    assert set(found.stored) == {"a.weight"}
    assert found.method == asked["quant_method"]
    matrix = found.stored["a.weight"].read()
    assert isinstance(matrix, QuantizedMatrix)
    assert found.stored["a.weight"].shape == matrix.shape
    return matrix


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_what_their_library_dequantizes(name: str) -> None:
    tensors, want = golden(name)
    matrix = read(tensors, CONFIGS[name])
    assert want.dtype == np.float16
    np.testing.assert_array_equal(matrix.weights().astype(np.float16), want)
    assert matrix.format == ("int8" if "8bit" in name else "int4")
    assert matrix.block == (96 if "one_group" in name else 32)
    assert (matrix.columns is not None) == ("act_order" in name)


def test_zero_points_in_the_middle_cost_nothing() -> None:
    assert read(golden("gptq_4bit")[0], GPTQ).offsets is None
    assert read(golden("gptq_4bit_asymmetric")[0], GPTQ).offsets is not None


def test_what_an_older_writer_leaves_out_is_implied() -> None:
    """No `g_idx`, no `checkpoint_format`; AWQ without zero points."""
    tensors, want = golden("gptq_4bit_asymmetric")
    del tensors["g_idx"]
    np.testing.assert_array_equal(read(tensors, GPTQ).weights().astype(np.float16), want)
    tensors, want = golden("awq")
    zeros = read(tensors, AWQ).offsets
    del tensors["qzeros"]
    matrix = read(tensors, AWQ | {"zero_point": False})
    assert zeros is not None
    assert matrix.offsets is None
    with_zeros = matrix.weights().reshape(64, 3, 32) + zeros[:, :, None]
    np.testing.assert_array_equal(with_zeros.reshape(64, 96).astype(np.float16), want)


def test_layers_of_other_bits_than_the_rest_are_told_by_their_size() -> None:
    tensors, want = golden("gptq_8bit")
    np.testing.assert_array_equal(read(tensors, GPTQ).weights().astype(np.float16), want)


def refused(tensors: Arrays, asked: dict[str, Any]) -> str:
    with pytest.raises(TrtkitError) as caught:
        read(tensors, asked)
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (AWQ | {"version": "gemv"}, "AWQ's version `gemv` is not supported; `gemm` is\nfix: quantize again with `\"v"),
        (AWQ | {"bits": 3}, "quantization_config.bits: AWQ of 3 bits is not known"),
        (AWQ | {"group_size": 64}, "a: 3 groups of 64 columns are not the matrix's 96"),
        (
            AWQ | {"quant_method": "exl2"},
            "model/config.json: `quant_method` is `exl2`\nfix: known: `modelopt`, `awq`, `gptq`, "
            "`compressed-tensors`, `fp8`",
        ),
    ],
)
def test_configs_that_are_not_supported_are_refused(asked: dict[str, Any], message: str) -> None:
    assert message in refused(golden("awq")[0], asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (GPTQ | {"bits": 3}, "quantization_config.bits: TensorRT does not support 3-bit weights"),
        (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ's format `marlin` is not known\nfix: quantize again with"),
    ],
)
def test_gptq_forms_that_are_not_supported_are_refused(asked: dict[str, Any], message: str) -> None:
    assert message in refused(golden("gptq_4bit")[0], asked)


def spoilt(name: str, **changes: Any) -> Arrays:
    """Return a layer with some tensors changed by a function, or left out where it is None."""
    tensors = golden(name)[0]
    return {
        key: changes.get(key, lambda array: array)(array)
        for key, array in tensors.items()
        if changes.get(key, 0) is not None
    }


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("awq", {"scales": None}, "a: `scales` is missing"),
        ("awq", {"scales": lambda s: s * np.float16(np.nan)}, "a: scales are NaN or infinite"),
        ("awq", {"qweight": lambda q: q[:-8]}, "a: 3 groups of 32 columns are not the matrix's 88"),
        ("awq", {"qweight": lambda q: q.astype(np.int64)}, "a: packed words are int64 of 2 axes, not int32 of 2"),
        ("awq", {"qzeros": lambda z: z[:, :-1]}, "a: zero points of shape [56, 3] for scales of shape [64, 3]"),
        ("gptq_4bit", {"qzeros": None}, "a: `qzeros` is missing"),
        ("gptq_4bit", {"qweight": lambda q: q[:-1]}, "a: `g_idx` has 96 columns, `qweight` 88"),
        ("gptq_4bit", {"g_idx": None, "scales": lambda s: s[:2]}, "a: 2 groups of 32 columns are not the matrix's 96"),
        (
            "gptq_4bit",
            {"g_idx": lambda g: np.minimum(g, 1)},
            "a: `g_idx` does not put 96 columns into 3 groups of one size",
        ),
        ("gptq_4bit", {"scales": lambda s: s[:, :-1]}, "a: scales of shape [63, 3] do not belong to blocks of 64 rows"),
    ],
)
def test_damaged_layers_are_named(name: str, changes: dict[str, Any], message: str) -> None:
    text = refused(spoilt(name, **changes), CONFIGS[name])
    assert text.startswith("quantized layers that cannot be read\n")
    assert message in text


def test_codes_without_scales_are_refused() -> None:
    text = refused({"weight": np.ones((4, 8), np.int8)}, AWQ)
    assert "quantized weights without scales\n  a.weight: `a.weight` holds int8" in text
