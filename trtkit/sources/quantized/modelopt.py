"""Checkpoints written by ModelOpt's `export_hf_checkpoint`, and trtkit's own in the same format.

A linear layer has a `weight` of codes and a `weight_scale`, whose types determine its format: int8 [out, in] with
[out]; int4 packed by pairs of rows, uint8 [out / 2, in] with [out, blocks]; fp8 with one number or [out]; MXFP8 with
uint8 exponents [out, in / 32]; NVFP4 packed [out, in / 2] with fp8 [out, in / 16] and a `weight_scale_2`. With
`input_scale` inputs are quantized too; `pre_quant_scale` multiplies them first. int4 may have a `weight_offset` [out,
blocks], which only trtkit writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix, pack, unpack
from trtkit.sources.quantized.layers import Parts, block_scales, finite, layers, number, part, replaced, row_scales

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.quantization_methods import Format
    from trtkit.sources.quantized.layers import Stored

_BLOCK = (128, 128)
"""Rows and columns that share a scale in FP8_PB."""
_REFUSED = {
    "W4A8_AWQ": "no layer multiplies int4 by fp8",
    "NVFP4_SVD": "it adds a product of small rank",
    "MXFP4": "TensorRT has no MXFP4",
    "W4A8_MXFP4_FP8": "TensorRT has no MXFP4",
    "W4A8_NVFP4_FP8": "no layer multiplies fp4 by fp8",
}
_PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale", "weight_offset")


def modelopt_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for algorithms that no network supports, ProblemsError naming layers that cannot be read.
    """
    algorithm = str(quantization.get("quant_algo")).upper()
    by_layer = quantization.get("quantized_layers") or {}
    methods = {name: str(how.get("quant_algo")).upper() for name, how in by_layer.items()}
    for kind in (algorithm, *methods.values()):
        if kind in _REFUSED:
            what = f"ModelOpt's `{kind}` is not supported: {_REFUSED[kind]}"
            raise SourceError(what, "quant_algo", "quantize again with another format")
    modules = layers(stored, "weight_scale", _PARTS)
    return replaced(stored, modules, lambda module, parts: modelopt_matrix(parts, methods.get(module, algorithm)))


def modelopt_matrix(parts: Parts, algorithm: str) -> QuantizedMatrix:
    """Return one layer's matrix. algorithm: its `quant_algo`. Raises SourceError."""
    codes, scales = part(parts, "weight"), part(parts, "weight_scale")
    factors = finite(part(parts, "pre_quant_scale")).reshape(-1) if "pre_quant_scale" in parts else None
    if codes.ndim != 2:
        raise SourceError(
            f"a weight of {codes.ndim} axes does not belong to a linear layer", fix="export experts one by one"
        )
    kind = codes.dtype.name
    if "weight_scale_2" in parts:
        if kind != "uint8" or scales.dtype.name != "float8_e4m3fn":
            what = f"codes of {kind} with scales of {scales.dtype.name} and of these are not known"
            raise SourceError(what, fix="export as NVFP4")
        outer = number(parts, "weight_scale_2")
        inputs = QuantizedInputs("fp4", number(parts, "input_scale")) if "input_scale" in parts else None
        fp4_scales = block_scales(scales, (len(codes), 2 * codes.shape[1]), 16)
        return QuantizedMatrix("fp4", codes, fp4_scales, outer, input_factors=factors, inputs=inputs)
    if kind == "uint8":
        rows = _unpacked_rows(codes)
        wide = row_scales(scales, (len(rows), 2 * rows.shape[1]))
        offsets = finite(part(parts, "weight_offset")) if "weight_offset" in parts else None
        return QuantizedMatrix("int4", rows, wide.reshape(len(rows), -1), offsets=offsets, input_factors=factors)
    if kind == "float8_e4m3fn" and scales.dtype.name == "uint8":
        exponents = block_scales(scales, codes.shape, 32).view("float8_e8m0fnu")
        inputs = QuantizedInputs("mxfp8") if "MXFP8" in algorithm or "MIXED" in algorithm else None
        return QuantizedMatrix("mxfp8", codes, exponents, inputs=inputs)
    if kind not in ("int8", "float8_e4m3fn"):
        raise SourceError(f"codes of type {kind} are not known", fix="export as int8, int4, fp8, MXFP8 or NVFP4")
    name: Format = "int8" if kind == "int8" else "fp8"
    wide = row_scales(scales, codes.shape, _BLOCK)
    return QuantizedMatrix(name, codes, wide, input_factors=factors, inputs=_inputs(parts, name, algorithm))


def _inputs(parts: Parts, name: Format, algorithm: str) -> QuantizedInputs | None:
    """Return how inputs are quantized to 8 bits."""
    if "input_scale" in parts:
        return QuantizedInputs(name, number(parts, "input_scale"))
    return QuantizedInputs(name, is_per_token=True) if "PER_TOKEN" in algorithm else None


def paired_rows(codes: Array) -> Array:
    """Return rows of pairs [out, in / 2] as pairs of rows [out / 2, in], ModelOpt's packing of int4."""
    halves = unpack(codes)
    return np.asarray(halves[0::2] | halves[1::2] << 4)


def _unpacked_rows(packed: Array) -> Array:
    """Return pairs of rows [out / 2, in] as rows of pairs [out, in / 2]."""
    rows = np.stack((packed & 15, packed >> 4), axis=1).reshape(-1, packed.shape[1])
    return pack(rows)
