"""Ternary weights (BitNet b1.58): -1, 0 or 1 times one scale per matrix, with inputs in 8 bits per token.

A packed `weight` [out / 4, in] holds four rows per byte, each value plus 1: bits 0 and 1 belong to the first quarter of
the rows, and so on. `weight_scale` divides (`linear_class: bitlinear`) or multiplies (`autobitlinear`) the product.
With `quantization_mode: online`, weights are stored as trained, and rounded by the mean of their magnitudes. Source:
https://arxiv.org/abs/2402.17764; transformers' `integrations/bitnet.py`.

TensorRT has no 2-bit type. int4 holds the values exactly, in 4.1 bits including one scale per block.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantization_methods import largest_block
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix, pack
from trtkit.sources.quantized.layers import layers, number, part, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.sources.quantized.layers import Parts, Stored

_LEAST = 1e-5  # that the mean of magnitudes is taken for
_ROWS = 4  # of a byte
_INPUTS = QuantizedInputs("int8", is_per_token=True)


def bitnet_layers(stored: Stored, quantization: Mapping[str, object]) -> Parts:
    """Return a checkpoint's tensors, each ternary layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for layers that normalize their inputs, ProblemsError naming layers that cannot be read.
    """
    if quantization.get("use_rms_norm"):
        what, where = "norms inside of linear layers are not supported", "quantization_config.use_rms_norm"
        raise SourceError(what, where, "take a model without them")
    kind, mode = quantization.get("linear_class", "bitlinear"), quantization.get("quantization_mode", "offline")
    if kind not in ("bitlinear", "autobitlinear") or mode not in ("offline", "online"):
        what = f"`linear_class: {kind}` with `quantization_mode: {mode}` is not known"
        raise SourceError(what, "quantization_config", "known: bitlinear, autobitlinear; offline, online")
    if kind == "autobitlinear" and mode == "online":
        kept = [str(name) for name in quantization.get("modules_to_not_convert") or ("lm_head",)]  # type: ignore[attr-defined]
        modules = layers(stored, "weight", ("weight",))
        return replaced(
            stored, {name: module for name, module in modules.items() if _is_converted(name, module, kept)}, _online
        )
    modules = layers(stored, "weight_scale", ("weight", "weight_scale"))
    return replaced(stored, modules, partial(_packed, divides=kind == "bitlinear"))


def ternary_matrix(values: Array, scales: Array, inputs: QuantizedInputs | None = None) -> QuantizedMatrix:
    """Return values -1, 0 and 1 [out, in] as a matrix: int4 if a block size divides its columns, otherwise int8.

    scales: fp32 [], or [out, blocks].
    """
    out, size = values.shape
    block = largest_block([size // scales.shape[1] if scales.ndim == 2 else size])
    if not block:
        return QuantizedMatrix("int8", values.astype(np.int8), scales, inputs=inputs)
    repeated = size // block // (scales.shape[1] if scales.ndim == 2 else 1)
    by_block = np.repeat(scales, repeated, axis=1) if scales.ndim == 2 else np.full((out, size // block), scales)
    return QuantizedMatrix("int4", pack(values.astype(np.int8)), by_block.astype(np.float32), inputs=inputs)


def _packed(_: str, parts: Parts, *, divides: bool) -> QuantizedMatrix:
    """Return the matrix of a packed layer."""
    packed, scale = part(parts, "weight"), number(parts, "weight_scale")
    if packed.dtype != np.uint8 or packed.ndim != 2:
        what = f"`weight` holds {packed.dtype} of shape {list(packed.shape)}; bytes of four rows are expected"
        raise SourceError(what, fix="copy the checkpoint's files again")
    values = np.concatenate([packed >> 2 * row & 3 for row in range(_ROWS)]).astype(np.int8) - 1
    if (values > 1).any():
        raise SourceError("`weight` holds values other than -1, 0 and 1", fix="copy the checkpoint's files again")
    return ternary_matrix(values, np.array(1 / scale if divides else scale, np.float32), _INPUTS)


def _is_converted(name: str, parts: Parts, kept: list[str]) -> bool:
    """Whether a module with a weight is a rounded linear layer; `kept`: prefixes, patterns and suffixes of others."""
    is_matrix = len(parts["weight"].shape) == 2 and "embed" not in name.rpartition(".")[2]
    return is_matrix and not any(
        re.match(rf"(?:{pattern})(?:\.|$)", name) or name.endswith(pattern) for pattern in kept
    )


def _online(_: str, parts: Parts) -> QuantizedMatrix:
    """Return the matrix of a layer whose weights are stored as trained."""
    weight = np.asarray(part(parts, "weight"), np.float32)
    scale = max(float(np.abs(weight).mean(dtype=np.float64)), _LEAST)
    return ternary_matrix(np.clip(np.rint(weight / scale), -1, 1), np.array(scale, np.float32), _INPUTS)
