"""Checkpoints that ModelOpt's `export_hf_checkpoint` writes, and trtkit's own, which are the same.

A linear layer is a `weight` of codes and a `weight_scale`, by the types of which its format is known:
int8 [out, in] with [out]; int4 packed by pairs of rows, uint8 [out / 2, in] with [out, blocks]; fp8 with one number or
[out]; MXFP8 with uint8 exponents [out, in / 32]; NVFP4 packed [out, in / 2] with fp8 [out, in / 16] and a
`weight_scale_2`. `input_scale` says that inputs are quantized too, `pre_quant_scale` multiplies them first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized import QuantizedInputs, QuantizedMatrix, pack
from trtkit.sources.quantized.layers import Parts, layers, number, part, replaced

if TYPE_CHECKING:
    from trtkit.quantized import Array, Format
    from trtkit.sources.quantized.layers import Stored

_PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale")


def modelopt_layers(stored: Stored, algorithm: str) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. algorithm: its `quant_algo`.

    Raises ProblemsError naming layers of a form that no network takes.
    """
    dynamic = "MXFP8" in algorithm.upper() or "MIXED" in algorithm.upper()
    return replaced(stored, layers(stored, "weight_scale", _PARTS), lambda parts: _matrix(parts, dynamic))


def _matrix(parts: Parts, has_dynamic_inputs: bool) -> QuantizedMatrix:
    """Return one layer's matrix."""
    codes, scales = part(parts, "weight"), part(parts, "weight_scale")
    factors = np.asarray(part(parts, "pre_quant_scale"), np.float32) if "pre_quant_scale" in parts else None
    if codes.ndim != 2:
        raise SourceError(f"a weight of {codes.ndim} axes is no linear layer's", fix="export experts one by one")
    if "weight_scale_2" in parts:
        outer = number(parts, "weight_scale_2")
        inputs = QuantizedInputs("fp4", number(parts, "input_scale")) if "input_scale" in parts else None
        return QuantizedMatrix("fp4", codes, scales, outer, input_factors=factors, inputs=inputs)
    kind = codes.dtype.name
    if kind == "uint8":
        rows = _unpacked_rows(codes)
        return QuantizedMatrix("int4", rows, _blocks(scales, len(rows)), input_factors=factors)
    if kind == "float8_e4m3fn" and scales.dtype.name == "uint8":
        inputs = QuantizedInputs("mxfp8") if has_dynamic_inputs else None
        return QuantizedMatrix("mxfp8", codes, scales.view("float8_e8m0fnu"), inputs=inputs)
    if kind not in ("int8", "float8_e4m3fn"):
        raise SourceError(f"codes of type {kind} are not known", fix="export as int8, int4, fp8, MXFP8 or NVFP4")
    name: Format = "int8" if kind == "int8" else "fp8"
    inputs = QuantizedInputs(name, number(parts, "input_scale")) if "input_scale" in parts else None
    return QuantizedMatrix(name, codes, _blocks(scales, len(codes)), input_factors=factors, inputs=inputs)


def _blocks(scales: Array, rows: int) -> Array:
    """Return scales in fp32 as [], [rows] or [rows, blocks]."""
    wide = np.asarray(scales, np.float32)
    if wide.size == 1:
        return wide.reshape(())
    if wide.shape[0] != rows or wide.ndim > 2:
        raise SourceError(f"scales of shape {list(wide.shape)} do not belong to rows or blocks of {rows} rows")
    return wide.reshape(rows) if wide.size == rows else wide


def _unpacked_rows(packed: Array) -> Array:
    """Return pairs of rows [out / 2, in] as rows of pairs [out, in / 2]."""
    rows = np.stack((packed & 15, packed >> 4), axis=1).reshape(-1, packed.shape[1])
    return pack(rows)
