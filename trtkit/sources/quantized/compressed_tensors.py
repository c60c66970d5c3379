"""Checkpoints written by llm-compressor, in the formats of compressed-tensors.

A linear layer has a `weight_scale` and either `weight` (int8, fp8) or `weight_packed` (int32: integers; uint8: NVFP4).
`quantization_config.config_groups` defines by name or class how each layer's weights and inputs are quantized. Source:
https://github.com/vllm-project/compressed-tensors
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.quantized.layers import (
    Parts,
    block_scales,
    check_group,
    integer_matrix,
    layers,
    number,
    part,
    replaced,
    row_scales,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.quantization_methods import Format
    from trtkit.sources.quantized.layers import Stored

_Json = dict[str, Any]
_PARTS = (
    "weight", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_global_scale",
    "weight_g_idx", "input_scale", "input_zero_point", "input_global_scale",
)  # fmt: skip
_FORMATS = (
    "dense", "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp8-quantized", "mixed-precision",
)  # fmt: skip


def compressed_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for formats that no network supports, ProblemsError naming layers that cannot be read.
    """
    groups = [dict(group) for group in (quantization.get("config_groups") or {}).values()]
    sparsity = (quantization.get("sparsity_config") or {}).get("format", "dense")
    for kind in (quantization.get("format", "dense"), *(group.get("format") or "dense" for group in groups), sparsity):
        if kind not in _FORMATS:
            what = f"compressed-tensors' format `{kind}` is not supported"
            raise SourceError(what, "quantization_config.format", f"known: {', '.join(_FORMATS)}")
    if (quantization.get("transform_config") or {}).get("config_groups"):
        what = "the model's activations are rotated while it runs, which is not supported"
        raise SourceError(what, "quantization_config.transform_config", "quantize without transforms")
    modules = layers(stored, "weight_scale", _PARTS)
    return replaced(stored, modules, lambda module, parts: _matrix(parts, _scheme(module, groups)))


def _scheme(module: str, groups: list[_Json]) -> _Json:
    """Return a layer's group: by name, otherwise by class. Raises SourceError if there is none."""
    named = [group for group in groups if any(_matches(module, target) for target in group.get("targets", ()))]
    classes = [group for group in groups if any("." not in target for target in group.get("targets", ()))]
    for group in (*named, *classes):
        if group.get("weights"):
            return group
    raise SourceError("no group of `config_groups` has weights and targets it", fix="copy config.json again")


def _matches(module: str, target: str) -> bool:
    return bool(re.match(target[3:], module)) if target.startswith("re:") else module == target


def _matrix(parts: Parts, scheme: _Json) -> QuantizedMatrix:
    if "weight_packed" not in parts:
        return _eight_bits(parts, scheme)
    return _fp4(parts) if "weight_global_scale" in parts else _packed(parts, scheme)


def _packed(parts: Parts, scheme: _Json) -> QuantizedMatrix:
    """Return integers packed into words: [out, in * bits / 32], with zero points as [out * bits / 32, blocks]."""
    weights = scheme["weights"]
    bits, (out, size) = int(weights["num_bits"]), (int(length) for length in part(parts, "weight_shape"))
    numbers = unsigned(part(parts, "weight_packed"), bits)[:, :size]
    if numbers.shape != (out, size):
        what = f"`weight_packed` holds {list(numbers.shape)} numbers, `weight_shape` says {[out, size]}"
        raise SourceError(what, fix="copy the checkpoint's files again")
    scales = np.asarray(part(parts, "weight_scale"), np.float32)
    scales = np.broadcast_to(scales.reshape(1, 1), (out, 1)) if scales.size == 1 else scales.reshape(out, -1)
    if weights.get("strategy") == "group":
        check_group(scales, size, int(weights["group_size"]))
    zeros = None
    if not weights.get("symmetric", True):
        zeros = unsigned(part(parts, "weight_zero_point").T, bits)[:, :out].T
    groups = np.asarray(part(parts, "weight_g_idx")) if "weight_g_idx" in parts else None
    matrix = integer_matrix(numbers, bits, scales, zeros, groups)
    if scheme.get("input_activations"):
        raise SourceError("weights in packed integers with quantized inputs are not supported", fix="keep the inputs")
    return matrix


def _fp4(parts: Parts) -> QuantizedMatrix:
    """Return NVFP4 weights: scales are divided by a global one, and so are those of inputs."""
    codes, outer = part(parts, "weight_packed"), 1 / number(parts, "weight_global_scale")
    inputs = None
    if "input_global_scale" in parts:
        inputs = QuantizedInputs("fp4", 1 / number(parts, "input_global_scale"))
    scales = block_scales(part(parts, "weight_scale"), (len(codes), 2 * codes.shape[1]), 16)
    return QuantizedMatrix("fp4", codes, scales, outer, inputs=inputs)


def _eight_bits(parts: Parts, scheme: _Json) -> QuantizedMatrix:
    """Return int8, fp8 or MXFP8 weights."""
    codes, scales, weights = part(parts, "weight"), part(parts, "weight_scale"), scheme["weights"]
    kind = codes.dtype.name
    if codes.ndim != 2 or kind not in ("int8", "float8_e4m3fn"):
        raise SourceError(f"codes of type {kind} of {codes.ndim} axes are not known", fix="use int8 or fp8")
    if kind != "int8" and scales.dtype.name == "uint8":
        exponents = block_scales(scales, codes.shape, 32).view("float8_e8m0fnu")
        inputs = QuantizedInputs("mxfp8") if scheme.get("input_activations") else None
        return QuantizedMatrix("mxfp8", codes, exponents, inputs=inputs)
    name: Format = "int8" if kind == "int8" else "fp8"
    rows = row_scales(scales, codes.shape, tuple(weights.get("block_structure") or (0, 0)))
    offsets = None
    if "weight_zero_point" in parts and np.asarray(part(parts, "weight_zero_point"), np.float32).any():
        rows = np.broadcast_to(rows.reshape(-1, 1), (len(codes), 1)) if rows.ndim < 2 else rows
        offsets = -np.asarray(part(parts, "weight_zero_point"), np.float32).reshape(-1, rows.shape[1]) * rows
    return QuantizedMatrix(name, codes, rows, offsets=offsets, inputs=_inputs(parts, name, scheme))


def _inputs(parts: Parts, name: Format, scheme: _Json) -> QuantizedInputs | None:
    """Return how inputs are quantized; inputs scaled by group at run time are left unquantized."""
    activations = scheme.get("input_activations")
    if not activations or activations.get("strategy") in ("group", "tensor_group"):
        return None
    if "input_zero_point" in parts and np.asarray(part(parts, "input_zero_point"), np.float32).any():
        raise SourceError("inputs have a zero point", fix="quantize with symmetric activations")
    if activations.get("dynamic"):
        if not activations.get("symmetric", True):
            raise SourceError("inputs are to have a zero point", fix="quantize with symmetric activations")
        # Half of the range from -128 to 127, the divisor in `calculate_qparams`.
        return QuantizedInputs(name, is_per_token=True, steps=127.5 if name == "int8" else None)
    return QuantizedInputs(name, number(parts, "input_scale"))
