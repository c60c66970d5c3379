"""Layers that compressed-tensors compresses: what it decompresses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp

from trtkit.errors import TrtkitError
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.read import Quantized, read_quantized
from trtkit.verification.decoder_reference import rounded

OUT, IN = 48, 128
PACKED, INT, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
State = dict[str, torch.Tensor]
_NUMPY: dict[torch.dtype, Any] = {torch.bfloat16: ml_dtypes.bfloat16, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn}


def scheme_of(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> QuantizationScheme:
    activations = QuantizationArgs(**inputs) if inputs else None
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), input_activations=activations)


def integers(bits: int, strategy: str, *, symmetric: bool = True, group: int | None = None) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": symmetric, "group_size": group}


STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True}
TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
FP8_TOKEN = FP8 | {"strategy": "token", "dynamic": True}
FP8_GROUP = FP8 | {"strategy": "group", "dynamic": True, "group_size": 32}
FP8_BLOCK = FP8 | {"strategy": "block", "block_structure": [32, 64]}
SCHEMES: dict[str, tuple[str, QuantizationScheme]] = {
    "W4A16 by group": (PACKED, scheme_of(integers(4, "group", group=32))),
    "W4A16 by group with zero points": (PACKED, scheme_of(integers(4, "group", symmetric=False, group=64))),
    "W4A16 by row": (PACKED, scheme_of(integers(4, "channel"))),
    "W4A16 by row with zero points": (PACKED, scheme_of(integers(4, "channel", symmetric=False))),
    "W8A16 by group": (PACKED, scheme_of(integers(8, "group", group=32))),
    "W8A16 by row": (PACKED, scheme_of(integers(8, "channel"))),
    "W8A8": (INT, scheme_of(integers(8, "channel"), STATIC)),
    "W8A8 by token": (INT, scheme_of(integers(8, "channel"), TOKEN)),
    "W8A8 with zero points": (INT, scheme_of(integers(8, "channel", symmetric=False), TOKEN)),
    "W8A16 by tensor": ("naive-quantized", scheme_of(integers(8, "tensor"))),
    "FP8": (FLOAT, scheme_of(FP8, FP8)),
    "FP8 by row and token": (FLOAT, scheme_of(FP8 | {"strategy": "channel"}, FP8_TOKEN)),
    "FP8 by block": (FLOAT, scheme_of(FP8_BLOCK, FP8_GROUP)),
    "NVFP4A16": ("nvfp4-pack-quantized", preset_name_to_scheme("NVFP4A16", ["Linear"])),
    "NVFP4": ("nvfp4-pack-quantized", preset_name_to_scheme("NVFP4", ["Linear"])),
    "MXFP8A16": ("mxfp8-quantized", preset_name_to_scheme("MXFP8A16", ["Linear"])),
    "MXFP8": ("mxfp8-quantized", preset_name_to_scheme("MXFP8", ["Linear"])),
}
INPUTS = {
    "W8A8": ("int8", False),
    "W8A8 by token": ("int8", True),
    "W8A8 with zero points": ("int8", True),
    "FP8": ("fp8", False),
    "FP8 by row and token": ("fp8", True),
    "NVFP4": ("fp4", False),
    "MXFP8": ("mxfp8", False),
}


def ranges(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest weight of all that share a scale."""
    if args.strategy in ("group", "tensor_group"):
        parts, axes = weight.reshape(OUT, -1, args.group_size), (-1,)
    elif args.strategy == "block":
        rows, columns = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, 0, 0, -OUT % rows))
        parts, axes = padded.reshape(len(padded) // rows, rows, -1, columns), (1, 3)
    elif args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        return weight.amin().reshape(1), weight.amax().reshape(1)
    return parts.amin(axes), parts.amax(axes)


@cache
def compressed(name: str) -> tuple[State, torch.Tensor]:
    """Return a layer's tensors, and its weight as compressed-tensors decompresses it."""
    torch.manual_seed(1)
    kind, scheme = SCHEMES[name]
    weight, args = torch.randn(OUT, IN, dtype=torch.bfloat16), scheme.weights
    outer = torch.tensor([6 * 448 / float(weight.abs().max())]) if args.strategy == "tensor_group" else None
    low, high = ranges(weight, args)
    scale, zero = calculate_qparams(low, high, args, global_scale=outer)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    if outer is not None:
        state["weight_global_scale"] = outer
    compressor = BaseCompressor.get_value_from_registry(kind)
    made = compressor.compress(state, scheme)
    want = compressor.decompress(made, scheme)["weight"]
    inputs = scheme.input_activations
    if inputs is not None and not inputs.dynamic:
        made["input_scale"] = torch.tensor([0.02])
    if inputs is not None and inputs.dynamic == "local":
        made["input_global_scale"] = torch.tensor([500.0])
    return {key: value for key, value in made.items() if value is not None}, want


def arrays(state: State) -> dict[str, Any]:
    """Return tensors as safetensors files give them to readers."""
    found = {}
    for name, tensor in state.items():
        kind = _NUMPY.get(tensor.dtype)
        bits = {2: torch.int16, 1: torch.uint8}.get(tensor.element_size(), torch.uint8)
        found[f"model.a.{name}"] = tensor.numpy() if kind is None else tensor.view(bits).numpy().view(kind)
    return found


def config_of(name: str, **more: Any) -> dict[str, Any]:
    kind, scheme = SCHEMES[name]
    asked = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"]}
    return asked | {"config_groups": {"group_0": scheme.model_dump(mode="json")}} | more


def read(tensors: dict[str, Any], asked: dict[str, Any]) -> Quantized:
    stored = {name: StoredArray(array.shape, lambda array=array: array) for name, array in tensors.items()}
    return read_quantized(Path("model"), {"quantization_config": asked}, stored)


def matrix_of(tensors: dict[str, Any], asked: dict[str, Any]) -> QuantizedMatrix:
    found = read(tensors, asked)
    assert set(found.stored) == {"model.a.weight"}
    matrix = found.stored["model.a.weight"].read()
    assert isinstance(matrix, QuantizedMatrix)
    return matrix


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_what_the_library_decompresses(name: str) -> None:
    state, want = compressed(name)
    matrix = matrix_of(arrays(state), config_of(name))
    got = torch.from_numpy(matrix.weights())
    if name.startswith("NVFP4"):  # a division there, a product with the inverse here
        torch.testing.assert_close(got.to(want.dtype), want, rtol=1e-6, atol=0)
    else:
        assert want.dtype == torch.bfloat16
        torch.testing.assert_close(got.to(want.dtype), want, rtol=0, atol=0)
    inputs = matrix.inputs
    assert (None if inputs is None else (inputs.format, inputs.is_per_token)) == INPUTS.get(name)


def test_scales_of_inputs_are_kept() -> None:
    assert matrix_of(arrays(compressed("FP8")[0]), config_of("FP8")).inputs.scale == pytest.approx(0.02)
    assert matrix_of(arrays(compressed("NVFP4")[0]), config_of("NVFP4")).inputs.scale == pytest.approx(0.002)


def test_a_group_is_found_by_name_before_class() -> None:
    """Mixed precision: the layer's own group has zero points, that of all others has none."""
    state, want = compressed("W4A16 by group with zero points")
    own = SCHEMES["W4A16 by group with zero points"][1].model_dump(mode="json") | {"targets": ["re:.*\\.a$"]}
    groups = config_of("FP8")["config_groups"] | {"group_1": own}
    asked = config_of("FP8", config_groups=groups, format="mixed-precision")
    got = torch.from_numpy(matrix_of(arrays(state), asked).weights())
    torch.testing.assert_close(got.to(want.dtype), want, rtol=0, atol=0)


@pytest.mark.parametrize(
    "names", ["model.layers.{}.self_attn.{}_scale", "model.layers.{}.self_attn.{}_proj.output_scale"]
)
@pytest.mark.parametrize("kind", ["float", "int"])
def test_scales_of_caches_are_read(names: str, kind: str) -> None:
    scales = {names.format(layer, role): np.array([layer + 0.5], np.float32) for layer in (0, 1) for role in "kv"}
    scheme = {"num_bits": 8, "type": kind, "strategy": "tensor", "dynamic": False, "symmetric": True}
    found = read(scales | arrays(compressed("FP8")[0]), config_of("FP8", kv_cache_scheme=scheme))
    assert found.kv_cache is not None
    assert found.kv_cache.format == {"float": "fp8", "int": "int8"}[kind]
    assert [scales["key"] for scales in found.kv_cache.scales.values()] == [0.5, 1.5]
    assert set(found.stored) == {"model.a.weight"}


def refused(tensors: dict[str, Any], asked: dict[str, Any]) -> str:
    with pytest.raises(TrtkitError) as caught:
        read(tensors, asked)
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format": "mxfp4-pack-quantized"}, "format `mxfp4-pack-quantized` is not supported\nfix: known: dense, "),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "format `sparse-24-bitmask` is not supported"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "the model's activations are rotated while it runs"),
        ({"config_groups": {}}, "model.a: no group of `config_groups` has weights and targets it"),
    ],
)
def test_what_is_not_supported_is_named(more: dict[str, Any], message: str) -> None:
    name = "W4A16 by group"
    assert message in refused(arrays(compressed(name)[0]), config_of(name, **more))


def spoil(name: str, part: str, change: Any) -> dict[str, Any]:
    found = arrays(compressed(name)[0])
    found[f"model.a.{part}"] = change(found[f"model.a.{part}"])
    return found


@pytest.mark.parametrize(
    ("name", "part", "change", "message"),
    [
        ("W4A16 by group", "weight_packed", lambda p: p[:, :-1], "`weight_packed` holds [48, 120] numbers, `weight_sh"),
        ("W4A16 by group", "weight_scale", lambda s: s[:, :-1], "3 groups of 32 columns are not the matrix's 128"),
        ("W4A16 by group", "weight_scale", lambda s: s * np.nan, "scales are NaN or infinite"),
        ("FP8", "weight_scale", lambda s: s * np.nan, "scales are NaN or infinite"),
        ("FP8", "input_scale", lambda s: -s, "`input_scale` is not one positive number"),
        (
            "FP8 by block",
            "weight_scale",
            lambda s: s[:-1],
            "do not belong to rows or blocks of 48 rows and 128 columns",
        ),
        ("NVFP4", "weight_scale", lambda s: s[:, :-1], "do not belong to 48 rows of 128 columns in blocks of 16"),
        ("MXFP8", "weight_scale", lambda s: s[:-1], "do not belong to 48 rows of 128 columns in blocks of 32"),
    ],
)
def test_damaged_layers_are_named(name: str, part: str, change: Any, message: str) -> None:
    text = refused(spoil(name, part, change), config_of(name))
    assert text.startswith("quantized layers that cannot be read\n  model.a: ")
    assert message in text


def test_scales_that_are_missing_are_named() -> None:
    found = arrays(compressed("FP8")[0])
    del found["model.a.weight_scale"]
    assert "`model.a.weight` holds float8_e4m3fn" in refused(found, config_of("FP8"))


@pytest.mark.parametrize("name", ["W8A8 by token", "FP8 by row and token"])
def test_tokens_are_rounded_as_compressed_tensors_rounds_them(name: str) -> None:
    inputs = matrix_of(arrays(compressed(name)[0]), config_of(name)).inputs
    assert inputs is not None
    x = torch.randn(1, 5, IN, generator=torch.Generator().manual_seed(1)) * torch.tensor([[0.01], [1], [30], [2], [5]])
    args = SCHEMES[name][1].input_activations
    expected = fake_quantize(x, *compute_dynamic_scales_and_zp(x, args, torch.nn.Module()), args)
    torch.testing.assert_close(rounded(x, inputs), expected, rtol=1e-6, atol=0)
